"""The launcher: the first thing that runs on each node. Standard library only.

Reads where it is, looks up secrets, restores checkpoints, waits for its peers' names, starts torchrun as a child,
gathers what the ranks print, passes a stop on as SIGTERM, finds the first cause of a failure, and owns the exit code:
0 succeeded, 1 failed, 5 stopped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from cloudtrain_job import event_line
from cloudtrain_launcher import failure
from cloudtrain_launcher.contract import PAYLOAD_DIR, STREAM_KEY, Job, NodeContext, read_job, with_job_file
from cloudtrain_launcher.environment import job_environment
from cloudtrain_launcher.error_details import CrashOutput
from cloudtrain_launcher.events import (
    Cause,
    Checkpoint,
    Error,
    Event,
    NodeEnded,
    NodeStarted,
    RankEnded,
    RankFailed,
    RankStarted,
    Restarted,
    Warned,
)
from cloudtrain_launcher.host import set_parent_death_signal, visible_gpus
from cloudtrain_launcher.masking import masker
from cloudtrain_launcher.platforms import find_failure_file, find_node_context, wait_for_dns
from cloudtrain_launcher.restore import restore
from cloudtrain_launcher.stop import REQUESTED_REASONS, StopRequest
from cloudtrain_launcher.storage_sync import JOURNAL_NAME, StorageSync
from cloudtrain_launcher.stored_secrets import look_up
from cloudtrain_launcher.streams import Streams, write_line, write_text

Outcome = Literal["succeeded", "failed", "stopped"]
_RESULTS: tuple[Outcome, ...] = ("succeeded", "stopped")
"""How a rank may say that training ended."""

SUCCEEDED, FAILED, STOPPED = 0, 1, 5
NODE_RANK = "CLOUDTRAIN_NODE_RANK"
SUPERVISOR_PID = "CLOUDTRAIN_SUPERVISOR_PID"
JOIN_TIMEOUT_SECONDS = 900
"""How long nodes wait for each other: images are pulled at different speeds."""


def main() -> int:
    """Run this node's part of the job; the exit code says how it ended."""
    if SUPERVISOR_PID in os.environ:
        set_parent_death_signal(int(os.environ[SUPERVISOR_PID]), signal.SIGTERM)
    with ExitStack() as stack:
        try:
            context = find_node_context(os.environ)
            os.environ[NODE_RANK] = str(context.node_rank)
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cloudtrain-")))
            context = with_job_file(context, scratch)
            job = read_job(context.job_file)
        except (RuntimeError, OSError) as error:
            return _never_began(error)
        return Launcher(job, context, scratch).run()


_APART = (
    "the processes of this job never formed one torch.distributed group: unless something else joins them (Horovod, "
    "JAX), each trained a model of its own. "
    "Call torch.distributed.init_process_group() and wrap the model (DistributedDataParallel, fully_shard), or ask for "
    "one process; launch.require_group: true in the spec makes this a failure"
)


class Launcher:
    """One node's torchrun, from start to exit code."""

    def __init__(self, job: Job, context: NodeContext, scratch: Path) -> None:
        self.job, self.context, self.scratch = job, context, scratch
        self.errors: list[Error] = []
        self.deaths: list[RankFailed] = []
        self.attempt, self.attempt_began = 0, 0.0
        self.ranks: dict[int, int] = {}
        self.done: dict[int, float] = {}
        """Ranks of this attempt that have ended with 0, and when."""
        self.groups: list[int] = []
        """How many processes each of them was in one group with; 0: it never joined one."""
        self.words: dict[int, CrashOutput] = {}
        self.key = os.urandom(8).hex()
        self.stop = StopRequest(context.stop_file, job.stop_after_seconds, self._log, context.scheduled_events_url)
        self.forced = False
        self.storage_sync = StorageSync(context.synced_dirs, self._log, context.linked_dirs, scratch / JOURNAL_NAME)

    def run(self) -> int:
        """Everything, in order."""
        started = time.monotonic()
        self.stop.listen()
        _say(NodeStarted(pid=os.getpid(), host=os.uname().nodename, scratch=str(self.scratch)))
        try:
            self._check_world()
            self._check_gpus()
            self._prepare()
            code = self._run_torchrun()
        except (RuntimeError, TimeoutError, OSError) as error:
            self._add_error(_error_of(error))
            code = 1
        lost = self.storage_sync.finish()
        if lost:
            self._add_error(_error_of(OSError(f"what this node wrote is not all kept: {lost}")))
            code = 1
        code = self._conclude(code, time.monotonic() - started)
        self.stop.wait_for_preemption()
        return code

    def _check_world(self) -> None:
        """Nodes that do not know each other train as many models, and nobody notices: refuse it."""
        found, planned = self.context.nodes, self.job.nodes
        if found != planned:
            raise RuntimeError(
                f"the platform tells this node of {found} {'node' if found == 1 else 'nodes'} in all, the plan says "
                f"{planned}: they would not train one model together"
            )

    def _check_gpus(self) -> None:
        found = visible_gpus() if self.job.gpus else 0
        if found < self.job.gpus:
            raise RuntimeError(f"this node shows {found} GPUs, the plan says {self.job.gpus}")

    def _prepare(self) -> None:
        """Secrets, folders, an earlier run's checkpoints, and the names that nodes reach each other by."""
        context = self.context
        os.environ.update(look_up(self.job.secrets, os.environ, self.stop.is_requested))
        masker.add(os.environ.get(name, "") for name in (*self.job.secrets, *self.job.masked))
        for folder in (context.output_dir, context.model_dir, context.checkpoint_dir):
            Path(folder).mkdir(parents=True, exist_ok=True)
        self._restore(
            context.synced_dirs.get(context.checkpoint_dir, ""), link_large_files=True
        )  # by an earlier attempt at this job
        self.storage_sync.mark_synced()
        self._restore(context.resume_dir)
        if context.node_rank > 0:
            self.storage_sync.mark_synced()  # the first node keeps an earlier run's for all
        self.storage_sync.start()
        # The node's own name too: it is what its peers are told.
        for name in dict.fromkeys((context.master_addr, context.address or context.master_addr)):
            wait_for_dns(name, cancelled=self.stop.is_requested)

    def _restore(self, saved: str, *, link_large_files: bool = False) -> None:
        if Path(saved or os.devnull).is_dir():
            folder, node = Path(self.context.checkpoint_dir), self.context.node_rank
            restore(Path(saved), folder, node, self._log, self.stop.is_requested, link_large_files=link_large_files)

    def _run_torchrun(self) -> int:
        wakeup, woken = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        streams = Streams(self.scratch, self.job.processes, self._on_event, key=self.key, on_line=self._on_text)
        if self.stop.is_requested():
            return STOPPED
        env = {**job_environment(self.job, self.context, self.scratch, os.environ), STREAM_KEY: self.key}
        # torchrun makes a folder for logs that it is not asked to write: among ours, which go when we go.
        logs = f"--log-dir={self.scratch / 'torchrun'}"
        argv = [
            sys.executable,
            "-u",
            str(Path(__file__).with_name("agent.py")),
            logs,
            *torchrun_arguments(self.job, self.context),
        ]
        torchrun = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert torchrun.stdout is not None  # noqa: S101  (asked for above)
        streams.add_torchrun(torchrun.stdout.fileno())
        streams.add_wakeup(wakeup)
        grace = self.job.grace_seconds - min(2, self.job.grace_seconds / 5)
        passed_on = False
        while torchrun.poll() is None:
            if self.stop.is_requested() and not passed_on:  # once: a second SIGTERM would cut torchrun's own stop short
                passed_on = True
                torchrun.terminate()
            streams.pump(timeout=1.0)
            self._count_deaths(streams)
            if self.stop.why and time.monotonic() > self.stop.requested_monotonic + grace:
                self.forced = True
                torchrun.kill()  # its workers follow: each is tied to it
        streams.drain()
        self._count_deaths(streams)
        return torchrun.returncode

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Error):
            self.errors.append(event)
        elif isinstance(event, Checkpoint):
            self.storage_sync.sync_soon()
        elif isinstance(event, RankFailed):
            self.deaths.append(event)
        elif isinstance(event, RankEnded) and event.exitcode == 0:
            self.done[event.rank] = event.time
            self.groups.append(self.job.nodes * self.job.processes if event.group is None else event.group)
        elif isinstance(event, RankStarted):
            self.ranks[event.local_rank] = event.rank
            self.words.pop(event.local_rank, None)
            if event.attempt > self.attempt:
                self._restarted(event)

    def _restarted(self, event: RankStarted) -> None:
        """The first rank of a new attempt has begun."""
        cause = self._cause()
        self.attempt, self.attempt_began = event.attempt, event.time
        self.done.clear()
        self.groups.clear()
        is_ours = cause is not None and not cause.consequence
        why = failure.one_line(cause) if cause and is_ours else "another node asked for it"
        _say(Restarted(attempt=self.attempt, why=why))
        self._log(f"restart {self.attempt} of {self.job.restarts}: {why}")

    def _on_text(self, local_rank: int, line: str) -> None:
        if local_rank >= 0:
            self.words.setdefault(local_rank, CrashOutput()).feed(line)

    def _cause(self) -> Error | None:
        """The first cause so far. That a peer is gone is none, when it is known why it went."""
        cause = failure.root_cause(self.errors)
        return cause and (failure.early_exit(cause, self.done, self.context.node_rank) or cause)

    def _count_deaths(self, streams: Streams) -> None:
        """Turn deaths into errors, once all that the dead had to say has been read."""
        if self.deaths:
            streams.pump(timeout=0)
        for death in self.deaths:
            rank = self.ranks.get(death.local_rank, -1)
            known = any(error.rank == rank and error.attempt == self.attempt for error in self.errors)
            late = death.time < self.attempt_began  # of the attempt before, which has been told of
            if not known and not late and not self.stop.why:
                words = self.words.get(death.local_rank, CrashOutput())
                error = failure.exit_error(
                    rank, death.exitcode, death.time, finished=rank in self.done, reason=words.reason
                )
                seen = words.fields(Path.cwd(), PAYLOAD_DIR) if death.exitcode < 0 else {}
                self._add_error(error.replace(**seen))
        self.deaths.clear()

    def _add_error(self, error: Error) -> None:
        error = error.replace(node=self.context.node_rank, attempt=self.attempt)
        error = error.replace(**_masked(error))
        self.errors.append(error)
        _say(error)

    def _conclude(self, code: int, seconds: float) -> int:
        outcome, error = self._outcome(code)
        if outcome == "succeeded" and self._is_apart():
            _say(Warned(message=_APART))
            self._log(f"warning: {_APART}")
        end = NodeEnded(outcome=outcome, seconds=round(seconds, 3), error=_brief(error), forced=self.forced)
        if outcome == "stopped" and self.stop.why:
            end = end.replace(why=self.stop.why, stop_asked=self.stop.time)
        _say(end)
        if error is not None:
            _tell_failure(error, self.context.failure_file)
        else:
            self._log(f"{outcome} after {seconds:.1f} s")
        stopped = self.context.stopped_exit_code if self.stop.why in REQUESTED_REASONS else STOPPED
        return {"succeeded": SUCCEEDED, "stopped": stopped}.get(outcome, FAILED)

    def _outcome(self, code: int) -> tuple[Outcome, Error | None]:
        """How it ended: the first rank's word counts more than torchrun's exit code, which is 1 after every stop."""
        told = _read_result(self.scratch / "result.json")
        if code or told == "stopped":  # if the peers stopped before we were asked, ours is no failure
            self.stop.recheck()
        cause = self._cause()
        if told is not None and (code == 0 or self.stop.why):
            return told, None
        if code == 0:  # never after a SIGTERM that reached torchrun
            return "succeeded", None
        if self.stop.why and (
            cause is None
            or cause.consequence
            or cause.time >= self.stop.time
            or self.attempt < self.job.restarts  # it would have been restarted
        ):
            return "stopped", None
        if cause is None:
            message = f"torchrun exited with code {code} and no rank gave a reason; see the log"
            self._add_error(Error(rank=-1, time=time.time(), exception="exit", message=message))
            cause = self.errors[-1]
        return "failed", cause

    def _is_apart(self) -> bool:
        """Whether this node's ranks trained without the others: none was in a group of the whole world."""
        world = self.job.nodes * self.job.processes
        return world > 1 and bool(self.groups) and all(size < world for size in self.groups)

    def _log(self, text: str) -> None:
        _log(self.context.node_rank, text)


def torchrun_arguments(job: Job, context: NodeContext) -> list[str]:
    """torchrun's arguments: a static rendezvous keeps ranks in node order; restarts need the c10d one.

    After a restart, the static rendezvous hands the workers the dead workers' addresses.
    """
    arguments = [
        f"--nnodes={context.nodes}",
        f"--nproc-per-node={job.processes}",
        f"--max-restarts={job.restarts}",
        "--monitor-interval=0.1",
        f"--shutdown-timeout={max(5, job.grace_seconds - 5)}",
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
        # c10d orders the nodes by their addresses: given in node order they keep the platform's ranks.
        if context.address:
            arguments.append(f"--local-addr={context.address}")
    return [*arguments, str(Path(__file__).with_name("worker.py"))]


def _never_began(error: Exception) -> int:
    """The usual end of a node that does not know what to do: neither place nor job could be read."""
    if not os.environ.get(NODE_RANK, "").isdecimal():
        os.environ[NODE_RANK] = "0"
    told = _error_of(error).replace(node=int(os.environ[NODE_RANK]), attempt=0)
    told = told.replace(**_masked(told))
    _say(told)
    _say(NodeEnded(outcome="failed", seconds=0.0, error=_brief(told), forced=False))
    _tell_failure(told, find_failure_file(os.environ))
    return FAILED


def _tell_failure(error: Error, path: str) -> None:
    """The reason as the log's last line, and where the platform looks for it."""
    if path:
        try:
            failure.write_failure_file(path, error)
        except OSError as trouble:
            _log(error.node, f"cannot write {path}: {trouble.strerror}")
    _log(error.node, f"failed: {failure.one_line(error)}")


def _error_of(error: Exception) -> Error:
    """What went wrong on the node itself, as an error that no rank raised."""
    return Error(rank=-1, time=time.time(), exception=type(error).__name__, message=str(error))


def _log(node: int, text: str) -> None:
    write_text(f"[node {node}] {text}".encode("utf-8", "replace"))


def _brief(error: Error | None) -> Cause | None:
    """The root cause for `node_ended`: all but traceback and stack, which its own event carries."""
    return error and Cause(**error.without("traceback", "stack", "seq").fields())


def _read_result(path: Path) -> Outcome | None:
    """What the first rank has written of the end; None: nothing, or something else."""
    try:
        outcome = json.loads(path.read_text())["outcome"]
    except (OSError, ValueError, KeyError):
        return None
    return next((word for word in _RESULTS if word == outcome), None)


def _say(event: Event) -> None:
    write_line(event_line(event.type, **{"rank": -1, **_masked(event)}).rstrip(b"\n"))


def _masked(event: Event) -> dict[str, Any]:
    """The fields of an event, secrets masked."""
    return {name: masker.mask_json(value) for name, value in event.fields().items()}
