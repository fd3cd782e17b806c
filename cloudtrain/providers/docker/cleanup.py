"""Containers and networks of runs that nobody watches any more: those who would have removed them were killed."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.errors import CloudtrainError
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.container_spec import DATA_LABEL, RUN_LABEL
from cloudtrain.providers.local.backend import ORPHAN_STOP_SECONDS
from cloudtrain.providers.local.supervisor_status import SupervisorState, end_orphans, supervisor_state
from cloudtrain.runs.store import CLEANUP_FOLDER


def remove_leftovers(run: Path) -> str:
    """Remove all that is a run's; what there is to say of it. An engine that does not answer is no hindrance."""
    try:
        count = remove_containers(run)
    except CloudtrainError as error:
        return f"its containers could not be looked for: {error.message}"
    if count > 1:
        return f"{count} containers that were left have been removed"
    return "a container that was left has been removed" if count else ""


def clean_up_ended_run(run: Path) -> None:
    """Remove what an ended run has left because the engine was away at its end; if it still is, at a later look."""
    if cleanup_marker(run).exists() and supervisor_state(run) in (SupervisorState.DEAD, SupervisorState.NOT_STARTED):
        remove_leftovers(run)


def clean_up_dead_runs(data_dir: Path) -> None:
    """Remove all that belongs to runs of this data folder whose supervisor is proven to be gone."""
    with docker_engine() as engine:
        for run_id in sorted(engine.labelled({DATA_LABEL: str(data_dir)}, RUN_LABEL)):
            run = data_dir / "runs" / run_id
            if supervisor_state(run) in (SupervisorState.DEAD, SupervisorState.NOT_STARTED):
                end_orphans(run, ORPHAN_STOP_SECONDS)
                remove_containers(run)


def remove_containers(run: Path) -> int:
    """Remove all that is a run's in the engine; how many containers there were. CloudtrainError when it cannot be."""
    with docker_engine() as engine:
        count = engine.clear(labels_of(run))
    cleanup_marker(run).unlink(missing_ok=True)
    return count


def cleanup_marker(run: Path) -> Path:
    """There as long as the engine may have something of the run: also after an end in which it could not be asked."""
    return run.parents[1] / CLEANUP_FOLDER / run.name


def labels_of(run: Path) -> dict[str, str]:
    """What tells a run's containers and network from all others, also from those of a run of that id elsewhere."""
    return {RUN_LABEL: run.name, DATA_LABEL: str(run.parents[1])}
