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
from cloudtrain_launcher.contract import PAYLOAD, STREAM_KEY, Job, Place, read_job, with_job_file
from cloudtrain_launcher.environment import job_environment
from cloudtrain_launcher.error_details import LastWords
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
from cloudtrain_launcher.host import die_with, visible_gpus
from cloudtrain_launcher.masking import masks
from cloudtrain_launcher.platforms import find_failure_file, find_place, wait_for_name
from cloudtrain_launcher.restore import restore
from cloudtrain_launcher.stop import ASKED, StopRequest
from cloudtrain_launcher.storage_sync import JOURNAL, Keeper
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
        die_with(int(os.environ[SUPERVISOR_PID]), signal.SIGTERM)
    with ExitStack() as stack:
        try:
            place = find_place(os.environ)
            os.environ[NODE_RANK] = str(place.node_rank)
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cloudtrain-")))
            place = with_job_file(place, scratch)
            job = read_job(place.job_file)
        except (RuntimeError, OSError) as error:
            return _never_began(error)
        return Launcher(job, place, scratch).run()


_APART = (
    "the processes of this job never formed one torch.distributed group: unless something else joins them (Horovod, "
    "JAX), each trained a model of its own. "
    "Call torch.distributed.init_process_group() and wrap the model (DistributedDataParallel, fully_shard), or ask for "
    "one process; launch.require_group: true in the spec makes this a failure"
)


class Launcher:
    """One node's torchrun, from start to exit code."""

    def __init__(self, job: Job, place: Place, scratch: Path) -> None:
        self.job, self.place, self.scratch = job, place, scratch
        self.errors: list[Error] = []
        self.deaths: list[RankFailed] = []
        self.attempt, self.attempt_began = 0, 0.0
        self.ranks: dict[int, int] = {}
        self.done: dict[int, float] = {}
        """Ranks of this attempt that have ended with 0, and when."""
        self.groups: list[int] = []
        """How many processes each of them was in one group with; 0: it never joined one."""
        self.words: dict[int, LastWords] = {}
        self.key = os.urandom(8).hex()
        self.stop = StopRequest(place.stop_file, job.stop_after_seconds, self._log, place.events)
        self.forced = False
        self.keeper = Keeper(place.kept, self._log, place.shown, scratch / JOURNAL)

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
        lost = self.keeper.finish()
        if lost:
            self._add_error(_error_of(OSError(f"what this node wrote is not all kept: {lost}")))
            code = 1
        code = self._conclude(code, time.monotonic() - started)
        self.stop.await_the_end()
        return code

    def _check_world(self) -> None:
        """Nodes that do not know each other train as many models, and nobody notices: refuse it."""
        found, planned = self.place.nodes, self.job.nodes
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
        place = self.place
        os.environ.update(look_up(self.job.secrets, os.environ, self.stop.asked))
        masks.add(os.environ.get(name, "") for name in (*self.job.secrets, *self.job.masked))
        for folder in (place.output_dir, place.model_dir, place.checkpoint_dir):
            Path(folder).mkdir(parents=True, exist_ok=True)
        self._restore(place.kept.get(place.checkpoint_dir, ""), leads=True)  # by an earlier attempt at this job
        self.keeper.know()
        self._restore(place.resume_dir)
        if place.node_rank > 0:
            self.keeper.know()  # the first node keeps an earlier run's for all
        self.keeper.begin()
        # The node's own name too: it is what its peers are told.
        for name in dict.fromkeys((place.master_addr, place.address or place.master_addr)):
            wait_for_name(name, until=self.stop.asked)

    def _restore(self, saved: str, *, leads: bool = False) -> None:
        if Path(saved or os.devnull).is_dir():
            folder, node = Path(self.place.checkpoint_dir), self.place.node_rank
            restore(Path(saved), folder, node, self._log, self.stop.asked, leads=leads)

    def _run_torchrun(self) -> int:
        wakeup, woken = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        streams = Streams(self.scratch, self.job.processes, self._on_event, key=self.key, on_text=self._on_text)
        if self.stop.asked():
            return STOPPED
        env = {**job_environment(self.job, self.place, self.scratch, os.environ), STREAM_KEY: self.key}
        # torchrun makes a folder for logs that it is not asked to write: among ours, which go when we go.
        logs = f"--log-dir={self.scratch / 'torchrun'}"
        argv = [
            sys.executable,
            "-u",
            str(Path(__file__).with_name("agent.py")),
            logs,
            *torchrun_arguments(self.job, self.place),
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
            if self.stop.asked() and not passed_on:  # once: a second SIGTERM would cut torchrun's own stop short
                passed_on = True
                torchrun.terminate()
            streams.pump(timeout=1.0)
            self._count_deaths(streams)
            if self.stop.why and time.monotonic() > self.stop.since + grace:
                self.forced = True
                torchrun.kill()  # its workers follow: each is tied to it
        streams.drain()
        self._count_deaths(streams)
        return torchrun.returncode

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Error):
            self.errors.append(event)
        elif isinstance(event, Checkpoint):
            self.keeper.hurry()
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
            self.words.setdefault(local_rank, LastWords()).hear(line)

    def _cause(self) -> Error | None:
        """The first cause so far. That a peer is gone is none, when it is known why it went."""
        cause = failure.root_cause(self.errors)
        return cause and (failure.left_early(cause, self.done, self.place.node_rank) or cause)

    def _count_deaths(self, streams: Streams) -> None:
        """Turn deaths into errors, once all that the dead had to say has been read."""
        if self.deaths:
            streams.pump(timeout=0)
        for death in self.deaths:
            rank = self.ranks.get(death.local_rank, -1)
            known = any(error.rank == rank and error.attempt == self.attempt for error in self.errors)
            late = death.time < self.attempt_began  # of the attempt before, which has been told of
            if not known and not late and not self.stop.why:
                words = self.words.get(death.local_rank, LastWords())
                error = failure.death(rank, death.exitcode, death.time, done=rank in self.done, why=words.why)
                seen = words.fields(Path.cwd(), PAYLOAD) if death.exitcode < 0 else {}
                self._add_error(error.but(**seen))
        self.deaths.clear()

    def _add_error(self, error: Error) -> None:
        error = error.but(node=self.place.node_rank, attempt=self.attempt)
        error = error.but(**_masked(error))
        self.errors.append(error)
        _say(error)

    def _conclude(self, code: int, seconds: float) -> int:
        outcome, error = self._outcome(code)
        if outcome == "succeeded" and self._is_apart():
            _say(Warned(message=_APART))
            self._log(f"warning: {_APART}")
        end = NodeEnded(outcome=outcome, seconds=round(seconds, 3), error=_brief(error), forced=self.forced)
        if outcome == "stopped" and self.stop.why:
            end = end.but(why=self.stop.why, stop_asked=self.stop.time)
        _say(end)
        if error is not None:
            _tell_failure(error, self.place.failure_file)
        else:
            self._log(f"{outcome} after {seconds:.1f} s")
        stopped = self.place.stopped_code if self.stop.why in ASKED else STOPPED
        return {"succeeded": SUCCEEDED, "stopped": stopped}.get(outcome, FAILED)

    def _outcome(self, code: int) -> tuple[Outcome, Error | None]:
        """How it ended: the first rank's word counts more than torchrun's exit code, which is 1 after every stop."""
        told = _read_result(self.scratch / "result.json")
        if code or told == "stopped":  # if the peers stopped before we were asked, ours is no failure
            self.stop.asked_after_all()
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
        _log(self.place.node_rank, text)


def torchrun_arguments(job: Job, place: Place) -> list[str]:
    """torchrun's arguments: a static rendezvous keeps ranks in node order; restarts need the c10d one.

    After a restart, the static rendezvous hands the workers the dead workers' addresses.
    """
    arguments = [
        f"--nnodes={place.nodes}",
        f"--nproc-per-node={job.processes}",
        f"--max-restarts={job.restarts}",
        "--monitor-interval=0.1",
        f"--shutdown-timeout={max(5, job.grace_seconds - 5)}",
    ]
    if job.restarts == 0:
        arguments += [
            f"--node-rank={place.node_rank}",
            f"--master-addr={place.master_addr}",
            f"--master-port={place.master_port}",
            f"--rdzv-conf=timeout={JOIN_TIMEOUT_SECONDS}",
        ]
    else:
        host = "true" if place.node_rank == 0 else "false"
        arguments += [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={place.master_addr}:{place.master_port}",
            f"--rdzv-id={job.run_id}",
            f"--rdzv-conf=is_host={host},join_timeout={JOIN_TIMEOUT_SECONDS}",
        ]
        # c10d orders the nodes by their addresses: given in node order they keep the platform's ranks.
        if place.address:
            arguments.append(f"--local-addr={place.address}")
    return [*arguments, str(Path(__file__).with_name("worker.py"))]


def _never_began(error: Exception) -> int:
    """The usual end of a node that does not know what to do: neither place nor job could be read."""
    if not os.environ.get(NODE_RANK, "").isdecimal():
        os.environ[NODE_RANK] = "0"
    told = _error_of(error).but(node=int(os.environ[NODE_RANK]), attempt=0)
    told = told.but(**_masked(told))
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
    return {name: masks.hide_in(value) for name, value in event.fields().items()}
