"""Remove containers and networks of runs whose supervisor was killed."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.errors import CloudtrainError
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.container_spec import DATA_LABEL, RUN_LABEL
from cloudtrain.providers.local.backend import ORPHAN_STOP_SECONDS
from cloudtrain.providers.local.supervisor_status import (
    SupervisorState,
    end_orphans,
    supervisor_state,
)
from cloudtrain.runs.store import CLEANUP_FOLDER


def remove_leftovers(run: Path) -> str:
    """Remove a run's containers and networks; return a note, also without an engine."""
    try:
        count = remove_containers(run)
    except CloudtrainError as error:
        return f"its containers could not be looked for: {error.message}"
    if count > 1:
        return f"{count} containers that were left have been removed"
    return "a container that was left has been removed" if count else ""


def clean_up_ended_run(run: Path) -> None:
    """Remove what an ended run has left because the engine was unreachable at its end."""
    if cleanup_marker(run).exists() and supervisor_state(run) in (
        SupervisorState.DEAD,
        SupervisorState.NOT_STARTED,
    ):
        remove_leftovers(run)


def clean_up_dead_runs(data_dir: Path) -> None:
    """Remove containers and networks of all runs of a data folder whose supervisor is dead."""
    with docker_engine() as engine:
        for run_id in sorted(engine.labelled({DATA_LABEL: str(data_dir)}, RUN_LABEL)):
            run = data_dir / "runs" / run_id
            if supervisor_state(run) in (SupervisorState.DEAD, SupervisorState.NOT_STARTED):
                end_orphans(run, ORPHAN_STOP_SECONDS)
                remove_containers(run)


def remove_containers(run: Path) -> int:
    """Remove a run's containers and networks; return the number of containers.

    Raise CloudtrainError if that fails.
    """
    with docker_engine() as engine:
        count = engine.clear(labels_of(run))
    cleanup_marker(run).unlink(missing_ok=True)
    return count


def cleanup_marker(run: Path) -> Path:
    """Return a file that exists while the engine may have containers or networks of the run."""
    return run.parents[1] / CLEANUP_FOLDER / run.name


def labels_of(run: Path) -> dict[str, str]:
    """Return labels of a run's containers and networks, unique across data folders."""
    return {RUN_LABEL: run.name, DATA_LABEL: str(run.parents[1])}
