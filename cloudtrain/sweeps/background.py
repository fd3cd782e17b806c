"""Background process that drives a sweep: `python -m cloudtrain.sweeps.background FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cloudtrain.api.notification import expect, message, send
from cloudtrain.errors import CloudtrainError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.settings import load_settings
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.driver import drive
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.native import drive_native
from cloudtrain.sweeps.state import SweepState, state_of
from cloudtrain.sweeps.trials import RunTrials
from cloudtrain.units import format_number


def main() -> int:
    """Drive the sweep of the folder to its end and return the exit code."""
    folder = SweepFolder(Path(sys.argv[1]))
    run = RunFolder(folder.path)
    try:
        state = state_of(folder.definition(), (event for event, _ in folder.events_from()))
        if not state.ended:
            expect(run, load_settings(folder.path))
            state = _drive(folder, state.definition)
    except CloudtrainError as error:
        print(error.render(), file=sys.stderr, flush=True)
        return error.exit_code

    send(run, _message_of(state))
    return 0


def _drive(folder: SweepFolder, definition: Definition) -> SweepState:
    if definition.is_native:
        return drive_native(folder)
    if definition.engine == "ray":
        return _drive_ray(folder)

    return drive(folder, RunTrials(folder, definition))


def _message_of(state: SweepState) -> dict[str, Any]:
    """Return the one message of a sweep, whose trials have none."""
    definition = state.definition
    reason = state.why_ended
    if state.best is not None and state.best.value is not None:
        value = format_number(state.best.value)
        reason += f"; best {definition.metric} {value} (trial {state.best.number})"

    usd = state.spent_usd if definition.trial_cap.usd is not None else None
    document = message(definition.sweep_id, definition.name, state.state, reason=reason, usd=usd)
    return {"sweep": definition.sweep_id, **document}


def _drive_ray(folder: SweepFolder) -> SweepState:
    # Importing Ray takes seconds, and most sweeps do not use it.
    from cloudtrain.sweeps.ray.cluster import RayCluster
    from cloudtrain.sweeps.ray.trials import RayRuns, RayTrials

    cluster = RayCluster(folder)
    try:
        return drive(folder, RayTrials(RayRuns(folder, folder.definition()), cluster))
    finally:
        cluster.disconnect()


if __name__ == "__main__":
    raise SystemExit(main())
