"""torchrun as a child process: arguments, the ranks' output, a stop. Standard library only.

Two kinds of jobs need no torchrun, and their process is the child itself: a command, and a program
of one rank without restarts. That rank has no peers to meet, and saves an import of torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cloudtrain_launcher.command import meet
from cloudtrain_launcher.contract import COMMAND, PYTHON, STREAM_KEY, Job, NodeContext
from cloudtrain_launcher.environment import job_environment, only_rank, only_rank_of_job
from cloudtrain_launcher.hang import HangWatch
from cloudtrain_launcher.rank_tracker import RankTracker
from cloudtrain_launcher.reporting import emit, log
from cloudtrain_launcher.stop import StopRequest
from cloudtrain_launcher.streams import Streams
from cloudtrain_wire.events import Event, RankEnded, RankFailed
from cloudtrain_wire.processes import kill_descendants, signal_group

JOIN_TIMEOUT_SECONDS = 900
"""Maximum wait for peers at the rendezvous: nodes pull the image at different speeds."""

NOT_STARTED = 143
"""Exit code after a stop before torchrun's start, as of a process ended by SIGTERM."""

_WORKER = str(Path(__file__).with_name("worker.py"))


class TorchrunExit(NamedTuple):
    """Outcome of torchrun."""

    code: int
    killed: bool = False
    """True if it was killed, because the ranks outlasted the grace period after a stop."""


def is_only_rank(job: Job) -> bool:
    """Return whether a program is the only rank of a job, and starts once.

    With several GPUs it may start ranks of its own, which get torchrun's settings for NCCL.
    """
    is_one = job.nodes * job.processes == 1 and job.restarts == 0 and job.gpus <= 1
    return is_one and job.kind != COMMAND


def run_torchrun(
    job: Job,
    context: NodeContext,
    scratch: Path,
    stop: StopRequest,
    ranks: RankTracker,
    on_event: Callable[[Event], None],
) -> TorchrunExit:
    """Run the job's processes to their end; send ranks' events to `on_event`, other output to the log.

    A stop sends one SIGTERM, and SIGKILL near the end of the job's grace period. Call it from the
    main thread, since it installs a handler for SIGCHLD. Raise OSError if a process or pipe cannot
    be created, or if not all nodes of a command come.
    """
    key = os.urandom(8).hex()
    streams = Streams(scratch, job.processes, on_event, key=key, on_text=ranks.on_text)
    streams.add_wakeup(_wakeup_on_signals())
    if job.kind == COMMAND:
        context = replace(context, hosts=meet(job, context, stop.is_requested))

    if stop.is_requested():
        return TorchrunExit(NOT_STARTED)

    torchrun = _start(job, context, scratch, {STREAM_KEY: key})
    assert torchrun.stdout is not None  # noqa: S101  (a pipe, see _start)
    streams.add_torchrun(torchrun.stdout.fileno())
    grace_seconds = job.grace_seconds - min(2, job.grace_seconds / 5)
    hang = HangWatch(job, ranks, scratch, lambda text: log(context.node_rank, text))
    terminated = killed = False

    while torchrun.poll() is None:
        # Only once: a second SIGTERM would interrupt torchrun's own stop.
        if stop.is_requested() and not terminated:
            terminated = True
            if is_only_rank(job):
                signal_group(torchrun.pid, signal.SIGTERM)  # its child processes too, as torchrun
            else:
                torchrun.terminate()

        streams.pump(timeout=hang.seconds_between_checks)
        _report_failures(ranks, streams, stop)
        if not stop.reason and not streams.at_prompt:
            hang.check(streams.last_output)

        if stop.reason and time.monotonic() > stop.requested_monotonic + grace_seconds:
            killed = True
            torchrun.kill()  # its ranks end with it: see set_parent_death_signal

    if job.kind == COMMAND and terminated:
        killed = not _end_group(torchrun.pid, streams, stop, grace_seconds)

    if killed or job.kind == COMMAND:  # before files are saved, which these may still change
        kill_descendants()

    streams.drain()
    code = torchrun.returncode
    if job.kind == COMMAND:
        _report_end(ranks, context.node_rank, code)
    elif is_only_rank(job):
        ranks.on_event(RankFailed(time=time.time(), local_rank=0, exitcode=code))

    if job.kind == COMMAND or is_only_rank(job):
        code = code or NOT_STARTED * terminated  # as torchrun

    _report_failures(ranks, streams, stop)

    return TorchrunExit(code, killed)


def _end_group(group: int, streams: Streams, stop: StopRequest, grace_seconds: float) -> bool:
    """End what a stopped command leaves behind, as a shell does; return whether it ended in time.

    Only now: programs that are still saving may need their child processes.
    """
    signum = int(signal.SIGTERM)
    while signal_group(group, signum):
        if time.monotonic() > stop.requested_monotonic + grace_seconds:
            return False

        signum = 0
        streams.pump(timeout=0.1)

    return True


def _report_end(ranks: RankTracker, rank: int, code: int) -> None:
    """Report the end of a command, which cannot do that itself."""
    if code:
        ranks.on_event(RankFailed(time=time.time(), local_rank=0, exitcode=code))
        return

    ended = RankEnded(rank=rank, time=time.time(), exitcode=0)
    ranks.on_event(ended)
    emit(ended)


def _report_failures(ranks: RankTracker, streams: Streams, stop: StopRequest) -> None:
    if ranks.failures:
        streams.pump(timeout=0)  # a dead rank's own report of its error comes first
        ranks.report_failures(stopping=bool(stop.reason))


def _start(
    job: Job, context: NodeContext, scratch: Path, variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    python = context.python or sys.executable
    if job.kind == COMMAND:
        program = [sys.executable, "-u", _WORKER]
        variables = {**variables, **only_rank(context.node_rank), PYTHON: python}
    elif is_only_rank(job):
        program = [os.environ.get("PYTHON_EXEC", python), "-u", _WORKER]
        variables = {**variables, **only_rank_of_job(context, os.environ)}
    else:
        agent = str(Path(__file__).with_name("agent.py"))
        # torchrun creates a folder for log files even if unused: put it into our scratch folder.
        log_dir = f"--log-dir={scratch / 'torchrun'}"
        program = [python, "-u", agent, log_dir, *torchrun_arguments(job, context)]

    env = {**job_environment(job, context, scratch, os.environ), **variables}

    return subprocess.Popen(
        program,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wakeup_on_signals() -> int:
    """Return a pipe's read end that becomes readable at a signal, SIGCHLD included."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    return read_end


def torchrun_arguments(job: Job, context: NodeContext) -> list[str]:
    """Return this node's command line of torchrun, without the program's arguments.

    Without restarts a static rendezvous keeps the ranks in node order. With restarts it must be
    c10d: a static one gives new workers the previous addresses.
    """
    arguments = [
        f"--nnodes={context.nodes}",
        f"--nproc-per-node={job.processes}",
        f"--max-restarts={job.restarts}",
        "--monitor-interval=0.1",
        # The launcher kills ranks that outlast the grace period, and reports that it did.
        f"--shutdown-timeout={job.grace_seconds + 5}",
    ]

    if job.restarts == 0:
        arguments += [
            f"--node-rank={context.node_rank}",
            f"--master-addr={context.master_addr}",
            f"--master-port={context.master_port}",
            f"--rdzv-conf=timeout={JOIN_TIMEOUT_SECONDS}",
        ]
    else:
        host = "true" if context.node_rank == 0 else "false"
        arguments += [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={context.master_addr}:{context.master_port}",
            f"--rdzv-id={job.run_id}",
            f"--rdzv-conf=is_host={host},join_timeout={JOIN_TIMEOUT_SECONDS}",
        ]
        # c10d sorts the nodes by these addresses: node order keeps the platform's ranks.
        if context.address:
            arguments.append(f"--local-addr={context.address}")

    return [*arguments, _WORKER]
