"""The state of a job, as Slurm and the run's folder tell it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl

from cloudtrain.providers import plugin

ENDED = {
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "cancelled by scancel",
    "COMPLETED": "completed",
    "DEADLINE": "removed at its deadline, limits.max_wait",
    "FAILED": "failed",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "out of the memory that it asked for",
    "PREEMPTED": "preempted",
    "REVOKED": "revoked",
    "TIMEOUT": "ended by Slurm at its time limit",
}
"""State of a job whose processes have all ended -> its description. COMPLETING is a state before them."""

STOPPED = ("CANCELLED", "DEADLINE", "TIMEOUT")
"""States of a job that was ended, and has not failed."""

STOPPED_CODE = "5"
"""Exit code of a script whose launchers have stopped."""

FOR_EVER = "waiting does not change that"

REASONS = {
    "BeginTime": "waits for its time, as after a requeue",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": f"the job that it waits for has failed; {FOR_EVER}",
    "JobHeldAdmin": "held by an administrator",
    "JobHeldUser": "held; scontrol release frees it",
    "PartitionConfig": f"asks for more than its partition has; {FOR_EVER}",
    "PartitionDown": "its partition is down",
    "PartitionNodeLimit": f"asks for more nodes than its partition gives a job; {FOR_EVER}",
    "PartitionTimeLimit": f"longer than its partition allows; {FOR_EVER}",
    "Priority": "other jobs are before it",
    "Resources": "waits for free nodes",
}
"""Descriptions of Slurm's reasons for waiting."""

LOOK_SECONDS = 60.0
"""Seconds after which a silent controller counts as no answer."""

ROW = "%i|%T|%D|%k|%Z|%r"
"""Columns of squeue: id, state, nodes, comment, folder, reason."""

COLUMNS = "JobIDRaw,State,NNodes,Comment,WorkDir,ExitCode"
"""The same columns of sacct, with the exit code as the reason."""

NO_ACCOUNTING = "accounting storage is disabled"
"""Complaint of sacct on a cluster without slurmdbd."""

DAY = 86400.0


class SlurmJob(NamedTuple):
    """A job that the controller or the accounting knows."""

    number: str
    state: str
    """State in one word."""
    nodes: str
    tags: dict[str, str]
    """Our tags of the run, which its comment holds."""
    folder: Path
    reason: str

    @property
    def phase(self) -> str:
        """Description of the state, with Slurm's reason for it."""
        phase = ENDED.get(self.state, self.state.lower())
        if self.state in ("PENDING", "FAILED") and self.reason not in ("None", "NonZeroExitCode"):
            phase += f": {REASONS.get(self.reason, self.reason)}"

        return phase


def slurm_jobs(name: str = "") -> Iterator[SlurmJob]:
    """Yield this user's jobs that the controller still knows, oldest first."""
    argv = ["squeue", "--noheader", "--me", "--states=all", "--sort=i", "-o", ROW]
    if name:
        argv += ["-n", name]

    return _jobs(argv)


def _jobs(argv: list[str]) -> Iterator[SlurmJob]:
    for row in plugin.program_output(argv, seconds=LOOK_SECONDS).decode().splitlines():
        if row.count("|") < ROW.count("|"):  # somebody's own comment has line breaks
            continue
        number, state, nodes, comment, folder, reason = row.split("|", 5)
        tags = plugin.own_tags(dict(parse_qsl(comment)))
        yield SlurmJob(number, state.split()[0], nodes, tags, Path(folder), reason)


def jobs_of_run(run_id: str, folder: Path) -> list[SlurmJob]:
    """Return the run's jobs: their name and their folder identify them."""
    return [job for job in slurm_jobs(run_id) if job.folder == folder]


def accounted_jobs(run_id: str, folder: Path) -> list[SlurmJob]:
    """Return the run's ended jobs of the cluster's accounting; none without accounting.

    A run whose script was never written is skipped, so that a first submit needs no
    accounting that answers.
    """
    try:
        sent = (folder / "job.sbatch").stat().st_mtime
        days = int((time.time() - sent) // DAY) + 2
        since = f"--starttime=now-{days}days"
        argv = ["sacct", "-nPX", since, f"--name={run_id}", f"--format={COLUMNS}"]
        jobs = [job._replace(reason=f"exit code {job.reason}") for job in _jobs(argv)]
    except (OSError, plugin.UsageError):  # not sent, or no sacct
        return []
    except plugin.CloudError as error:
        if NO_ACCOUNTING in error.what:
            return []
        raise

    # A job that the controller has lost counts as running for ever.
    return [job for job in jobs if job.folder == folder and job.state in ENDED]


def job_status(run_id: str, folder: Path) -> plugin.JobStatus | None:
    """Return the state of the run's job; None if there is none.

    The job that has taken the folder trains; others end at once.
    """
    owner = owner_of(folder)
    for look in (jobs_of_run, accounted_jobs):
        for job in look(run_id, folder):
            if owner in ("", job.number):
                return _status(job, folder)

    return _forgotten(owner, folder)


def owner_of(folder: Path) -> str:
    """Return the id of the job that has taken the folder; empty before."""
    try:
        return str((folder / "owner").readlink())
    except OSError:
        return ""


def _status(job: SlurmJob, folder: Path) -> plugin.JobStatus:
    phase = job.phase + _restarts(folder)
    if job.state not in ENDED:
        return plugin.JobStatus(phase=phase, has_ended=False)

    # The script knows its own end; a controller that was killed before it saved that says NODE_FAIL.
    code = _text(folder / "exit")
    if job.state == "COMPLETED" or code == "0":
        return _ended(phase, folder)
    if job.state in ("FAILED", "NODE_FAIL") and code == STOPPED_CODE:
        return _ended("stopped", folder, "stopped")
    if job.state in STOPPED:
        return _ended(phase, folder, "stopped")

    return _ended(phase + _last_words(folder), folder, "failed")


def _forgotten(owner: str, folder: Path) -> plugin.JobStatus | None:
    """Return the end of a job that the controller has forgotten (MinJobAge)."""
    if not owner:
        return None

    code = _text(folder / "exit")
    if code == STOPPED_CODE:
        return _ended("stopped", folder, "stopped")

    phase = f"exit code {code}"
    if not code:
        phase = "Slurm has lost this job, and its script was killed before it noted an exit code"

    return _ended(phase + _last_words(folder), folder)


def _restarts(folder: Path) -> str:
    """Return how often Slurm has started the job again; empty for never."""
    try:
        number = (folder / "checkpoints").readlink().name.rpartition("-")[2]
    except OSError:
        return ""

    return f", restarted {number} x" if number != "0" else ""


def _last_words(folder: Path) -> str:
    """Return the last line of the script's own log, which says what failed in it."""
    lines = _text(folder / "batch.log").splitlines()
    return f": {lines[-1]}" if lines else ""


def _ended(
    phase: str, folder: Path, outcome: Literal["", "stopped", "failed"] = ""
) -> plugin.JobStatus:
    """Return the state of an ended job, and delete its secrets if its script was killed."""
    (folder / "secrets").unlink(missing_ok=True)
    used = _text(folder / "used")
    return plugin.JobStatus(
        phase=phase, has_ended=True, outcome=outcome, seconds=int(used) if used else None
    )


def _text(file: Path) -> str:
    """Return what a file of the script holds; empty without the file."""
    try:
        return plugin.read_regular_text(file, errors="replace").strip()
    except OSError:
        return ""
