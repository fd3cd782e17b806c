"""Background process that drives a sweep: `python -m cloudtrain.sweeps.background FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from cloudtrain.errors import CloudtrainError
from cloudtrain.sweeps.driver import drive
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.native import drive_native
from cloudtrain.sweeps.state import state_of
from cloudtrain.sweeps.trials import RunTrials


def main() -> int:
    """Drive the sweep of the folder to its end and return the exit code."""
    folder = SweepFolder(Path(sys.argv[1]))
    try:
        definition = folder.definition()
        if definition.is_native:
            drive_native(folder)
        elif definition.engine == "ray":
            _drive_ray(folder)
        else:
            events = (event for event, _ in folder.events_from())
            drive(folder, RunTrials(folder, state_of(definition, events).definition))
    except CloudtrainError as error:
        print(error.render(), file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _drive_ray(folder: SweepFolder) -> None:
    # Importing Ray takes seconds, and most sweeps do not use it.
    from cloudtrain.sweeps.ray.cluster import RayCluster
    from cloudtrain.sweeps.ray.trials import RayRuns, RayTrials

    cluster = RayCluster(folder)
    try:
        drive(folder, RayTrials(RayRuns(folder, folder.definition()), cluster))
    finally:
        cluster.disconnect()


if __name__ == "__main__":
    raise SystemExit(main())
