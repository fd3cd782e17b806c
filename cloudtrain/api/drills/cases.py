"""The drills, a case each: the fault, its moment, and advice for a job that is not ready."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cloudtrain.api.drills.saved_files import newest_file
from cloudtrain.api.drills.verdict import Result, Verdict
from cloudtrain.api.drills.watched_run import WatchedRun, kill_at_once, send
from cloudtrain.planning.plan import Plan
from cloudtrain.runs.paths import RunPaths
from cloudtrain_wire.events import Checkpoint
from cloudtrain_wire.processes import ProcessTree

LOADER_NAME = "pt_data_worker"
"""Name of torch's DataLoader workers (torch.utils.data._utils.worker, since torch 2.6)."""
FILE_LIMIT_BYTES = 64
"""Maximum size of any file on a full disk (RLIMIT_FSIZE, setrlimit(2))."""
HANG_SECONDS = 10
"""limits.hang in the drill of a stalled loader, to keep the drill short."""

KEEP_ONE_MORE = (
    "keep the checkpoint before the newest, and resume from it if the newest cannot be loaded"
)
BEGINS_ANEW = (
    "it saves checkpoints and did not resume from them, but started over: load what is in"
    " $CLOUDTRAIN_CHECKPOINT_DIR at the start (docs/guides/spot.md)"
)
SEED_AND_RESTORE = (
    "seed the program, and restore everything that the next step depends on. Besides model and optimizer"
    " that is the scheduler, the random generators, and the place in the data (a seed for each"
    " epoch, sampler.set_epoch)"
)

SAVE_AT_STOP = (
    "it does not save at a stop, so the work since its last checkpoint is lost: save on SIGTERM"
    " (docs/guides/spot.md)"
)


class NotDrilled(Exception):
    """A drill that does not take place; its text is the reason."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One drill."""

    name: str
    action: str
    """Fault, for the plan."""
    inject: Callable[[WatchedRun], str]
    """Function that causes the fault and describes it. Raise ProcessLookupError if too late."""
    after_stop: Callable[[WatchedRun], str] | None = None
    """Function that damages what the stopped run has saved, and describes it."""
    checkpoints: int = 1
    """Number of checkpoints before the fault."""
    needs_checkpoint: bool = False
    """True if it needs a job that saves checkpoints."""
    kills: bool = False
    """True if no run succeeds after it without a restart."""
    has_remedy: bool = False
    """True if the job's report has a useful remedy; for other faults it names our signal."""
    limit: Literal["", "restarts", "retries", "hang"] = ""
    """Limit of the job that should not be 0."""
    with_limit: str = ""
    """What the limit does."""


def kill_rank(watched: WatchedRun) -> str:
    """Kill the last rank."""
    rank, process = max(watched.ranks().items())
    os.kill(process, signal.SIGKILL)
    return f"SIGKILL of rank {rank}"


def lose_node(watched: WatchedRun) -> str:
    """Kill all processes of the last node."""
    node, processes = max(watched.nodes().items())
    kill_at_once(processes)
    return f"SIGKILL of all {len(processes)} processes of node {node}"


def stop(watched: WatchedRun) -> str:
    """Stop the run as a cloud does that takes its machines back."""
    watched.run.request_stop(watched.state)
    return "SIGTERM to all ranks"


def fill_disk(watched: WatchedRun) -> str:
    """Limit the size of files that the job's processes write."""
    import resource  # which Windows lacks

    for processes in watched.nodes().values():
        for process in processes:
            _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
            resource.prlimit(process, resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, hard))

    return (
        f"no file of the job may grow beyond {FILE_LIMIT_BYTES} bytes (RLIMIT_FSIZE: EFBIG, not"
        " ENOSPC)"
    )


def stall_loader(watched: WatchedRun) -> str:
    """Stop the loader's workers of the last rank, or the rank if it has none."""
    rank, process = max(watched.ranks().items())
    descendants = ProcessTree().descendants(process)
    workers = [worker for worker in descendants if _process_name(worker) == LOADER_NAME]
    if not workers:
        os.kill(process, signal.SIGSTOP)
        return f"SIGSTOP of rank {rank} (without loader workers)"

    send(signal.SIGSTOP, workers)
    if len(workers) == 1:
        victims = "the worker"
    else:
        victims = f"all {len(workers)} workers"

    return f"SIGSTOP of {victims} of the loader of rank {rank}"


def _process_name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def tear_newest(watched: WatchedRun) -> str:
    """Cut the largest file of the newest checkpoint in half. Raise NotDrilled without one."""
    saved = [event for event in watched.events if isinstance(event, Checkpoint) and event.path]
    names = tuple(Path(event.path).name for event in saved)
    folder = RunPaths(watched.run.folder.path).checkpoints
    file = newest_file(folder, names)
    if file is None:
        raise NotDrilled(Verdict.SKIPPED, "it has saved no file that could be torn")

    size = file.stat().st_size
    os.truncate(file, size // 2)
    return f"{file.relative_to(folder)} cut from {size} to {size // 2} bytes"


def advice(case: Case, result: Result, plan: Plan) -> list[str]:
    """Return what to change, the most useful first; empty for a job that is ready."""
    spec = plan.spec
    is_own_program = spec.entrypoint is not None
    is_torn = case.after_stop is not None
    has_failed = result.verdict in (Verdict.NAMED, Verdict.UNNAMED)
    changes = []

    if result.differing:
        names = ", ".join(result.differing[:3])
        if len(result.differing) > 3:
            names += ", …"

        changes.append(f"the result differs from the undisturbed run ({names}): {SEED_AND_RESTORE}")

    if is_torn and (result.began_anew or (has_failed and is_own_program)):
        changes.append(KEEP_ONE_MORE)
    elif result.began_anew:
        changes.append(BEGINS_ANEW)

    has_limit = case.limit == "retries" or spec.launcher != "none"
    if case.limit and has_limit and not getattr(spec.limits, case.limit) and not has_failed:
        changes.append(f"limits.{case.limit} is 0: {case.with_limit}")

    if case is SIGTERM and result.runs[0].was_killed:
        changes.append(
            f"it did not end within the grace period ({grace_of(plan)}): end on SIGTERM, or save"
            " more often"
        )
    elif not result.saved_at_stop and is_own_program:
        changes.append(SAVE_AT_STOP)

    return changes


def grace_of(plan: Plan) -> str:
    """Return the grace period of a job and its origin."""
    seconds = plan.target.grace_seconds
    if plan.is_rehearsal:
        return f"{seconds:g} s, as in a job on {plan.target.declaration.label}"
    return f"{seconds:g} s, by stop_grace of this machine"


def short_hang(plan: Plan) -> list[str]:
    """Return the change of limits.hang for the drill of a stalled loader; none for 0, never."""
    seconds = min(plan.spec.limits.hang, HANG_SECONDS)
    if not seconds:
        return []

    return [f"limits.hang={seconds} s"]


RANK_KILLED = Case(
    name="rank-killed",
    action="SIGKILL of one rank",
    inject=kill_rank,
    kills=True,
    limit="restarts",
    with_limit="with 1 the ranks start again within seconds, on the machines that are there",
)
NODE_LOST = Case(
    name="node-lost",
    action="SIGKILL of all processes of one node, at once",
    inject=lose_node,
    kills=True,
    limit="retries",
    with_limit=(
        "with 1 SageMaker starts the job again by itself; elsewhere `cloudtrain rerun` does"
    ),
)
SIGTERM = Case(
    name="sigterm",
    action="a stop: SIGTERM, and SIGKILL when the grace period is over",
    inject=stop,
    kills=True,
)
DISK_FULL = Case(
    name="disk-full",
    action="the disk of the checkpoints is full",
    inject=fill_disk,
    needs_checkpoint=True,
    has_remedy=True,
)
CHECKPOINT_TORN = Case(
    name="checkpoint-torn",
    action=(
        "a stop, then the largest file of the newest checkpoint is cut in half, and the job run"
        " again"
    ),
    inject=stop,
    after_stop=tear_newest,
    checkpoints=2,
    needs_checkpoint=True,
    kills=True,
    has_remedy=True,
)
LOADER_STALLED = Case(
    name="loader-stalled",
    action="SIGSTOP of the loader's workers of one rank, or of the rank where it has none",
    inject=stall_loader,
    limit="hang",
    with_limit="nothing ends a job that waits; limits: {hang: 10 min} does",
)

CASES = (RANK_KILLED, NODE_LOST, SIGTERM, DISK_FULL, CHECKPOINT_TORN, LOADER_STALLED)
