"""Supervisor of one local run: start a launcher per node, record output, end them together.

Started with RUN_FOLDER ARCHIVE in a new session, so that it outlives the client, unless lifeline.py
ties them. If it is killed, its launchers stop, and the next observation of the run reports it. A
stop is requested by a file in the run's folder, which works across containers and hosts; removing
the folder ends the training.
"""

from __future__ import annotations

import errno
import os
import selectors
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudtrain.errors import CloudtrainError
from cloudtrain.planning.launch import Launch
from cloudtrain.providers import get_provider
from cloudtrain.providers.local.node import Node, run_outcome, start_node
from cloudtrain.providers.local.processes import (
    RUN_DIR_VARIABLE,
    SUPERVISOR_PID,
    end_orphans,
    identity_of,
    keep_heartbeat,
    read_lifeline,
    take_lock,
    write_identity,
)
from cloudtrain.providers.rehearsal.base import Emulator, emulated_plan
from cloudtrain.runs.files import OTHERS_MASK, storing
from cloudtrain.runs.folder import PLAN, RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.logs import format_timestamp, log_file
from cloudtrain.runs.paths import RunPaths
from cloudtrain.runs.summary import index_run
from cloudtrain.units import format_duration
from cloudtrain_wire.events import Ended, Event, RankEnded, Restarted, StopRequested
from cloudtrain_wire.ports import free_port
from cloudtrain_wire.process_identity import ProcessIdentity

PEERS_SECONDS = 8
"""Seconds for other nodes to end after one has failed; most of them hang in a collective."""

SYNC_SECONDS = 1
"""Pause between two copies of checkpoints, and two checks of the stop file and the folder."""

RESERVED_BYTES = 1 << 14
"""Space for the last event, which a job's full disk must not prevent."""

SELECT_SECONDS = 0.5
"""Maximum wait for output of the nodes; deadlines are checked as often."""

REMOVED_CHECKS = 3
"""Number of checks in a row without the folder until it counts as removed."""


class SupervisedFolder(RunFolder):
    """The folder that exists when this is created."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._stat = path.stat()
        self._missed_checks = 0

    def exists(self) -> bool:
        """Return True if the same folder still exists."""
        try:
            return os.path.samestat(self.path.stat(), self._stat)
        except OSError as error:  # a temporary failure of the disk has removed nothing
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

    def is_found_removed(self) -> bool:
        """Look for the folder; return True if it counts as removed now."""
        if self.exists():
            self._missed_checks = 0
        else:
            self._missed_checks += 1

        return self._is_removed

    def remove_what_was_recreated(self) -> None:
        """Remove what the job wrote after its folder was removed, unless it is a new run's."""
        if not (self.path / PLAN).exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def record(self, *events: Event, durable: bool = False) -> bool:
        """Store events; return False if the disk refuses them. `durable`: flush them to disk."""
        if self._is_removed:  # the folder must not be created again
            return True
        try:
            self.append(*events, durable=durable)
        except CloudtrainError as error:
            log(f"events lost: {error.message}")
            return False

        return True

    @property
    def _is_removed(self) -> bool:
        return self._missed_checks >= REMOVED_CHECKS


class Supervisor:
    """One run, from the start of its launchers to the event that ends it."""

    def __init__(
        self,
        run: Path,
        archive: Path,
        stop_signals: list[int],
        umask: int = -1,
        ends_with: ProcessIdentity | None = None,
    ) -> None:
        self.umask = umask
        """The user's umask, for files of the job itself; -1: this process's."""
        self.stop_signals = stop_signals
        """Signals, added by the handler; read only where an event may be written."""
        self.ends_with = ends_with
        """Process whose end also ends the run; None: the run outlives everything."""
        self.folder = SupervisedFolder(run)
        self.paths = RunPaths(run)
        self.archive = archive
        self.emulator = emulator_of(self.folder)
        self.nodes: list[Node] = []
        self.stop_reason = ""
        self.first_failed: Node | None = None
        self.finished_ranks: dict[int, tuple[int, float]] = {}
        """Rank that ended with 0 -> its node and the Unix timestamp."""
        self.synced_at = time.monotonic()
        self.signalled_at = float("inf")
        """Unix timestamp of the first signal to the nodes."""
        self.deadline: float | None = None
        """Monotonic time of the kill of remaining nodes."""

    def run(self) -> None:
        """Run everything. In any case write the last event and end all processes."""
        started = time.monotonic()
        with suppress(OSError):
            self.paths.reserve.write_bytes(b"\0" * RESERVED_BYTES)
        try:
            ended = self._run_nodes(started)
        except CloudtrainError as error:
            reason = error.message
            if error.hint:
                reason += f" ({error.hint})"
            ended = Ended(state="failed", reason=reason)
        except Exception:  # noqa: BLE001  (a bug of ours: the run must still end, the traceback is kept)
            traceback.print_exc()
            ended = Ended(
                state="failed", reason=f"the supervisor broke; see {self.paths.supervisor_log}"
            )

        lost_lines = sum(node.lost_lines for node in self.nodes)
        if lost_lines:
            lost = f"log lines lost: {lost_lines} (the disk was full)"
            reason = f"{ended.reason}; {lost}" if ended.reason else lost
            ended = ended.replace(reason=reason)
        for node in self.nodes:
            node.log.close()
            if node.scratch_folder and self.emulator.nodes_on_host:
                shutil.rmtree(node.scratch_folder, ignore_errors=True)
        if not self.folder.exists():
            self.folder.remove_what_was_recreated()
            return

        ended = ended.replace(time=time.time())
        self.paths.reserve.unlink(missing_ok=True)
        if self.folder.record(ended, durable=True):
            index_run(self.folder, History(self.folder).read())

    def stop(self, reason: str) -> None:
        """Ask every node to stop; the grace period begins."""
        if self.stop_reason:
            return
        self.stop_reason = reason
        self.deadline = time.monotonic() + self.emulator.grace_seconds
        self.folder.record(StopRequested(time=time.time(), reason=reason))
        self._signal_all(signal.SIGTERM)

    def _run_nodes(self, started: float) -> Ended:
        try:
            for folder in (self.paths.output, self.paths.model, self.paths.checkpoints):
                folder.mkdir(exist_ok=True)
            launches = self.emulator.prepare(self.archive)
            self._check_folder()
            if self.stop_signals or self.stop_reason:
                self.stop("stop requested")
            else:
                self._start(launches)
                self._watch(started)
            ended = run_outcome(
                self.nodes,
                stop_reason=self.stop_reason,
                signalled_at=self.signalled_at,
                first_failed=self.first_failed,
                finished_ranks=self.finished_ranks,
            )
        finally:
            self._clean_up()  # before collecting: the artifacts must be final
        if self.folder.exists():
            with storing(self.paths.run):
                self._log_notes(self.emulator.collect())

        return ended

    def _start(self, launches: Sequence[Launch]) -> None:
        port = str(free_port())  # chosen now: a plan cannot know a free one
        inherited = {key: value for key, value in os.environ.items() if self.emulator.inherits(key)}
        for launch in launches:
            env = dict(inherited)
            env.update(launch.env)
            env["CLOUDTRAIN_MASTER_PORT"] = port
            for name, location in launch.secrets.items():
                env[name] = os.environ[location.partition(":")[2]]

            env[SUPERVISOR_PID] = str(os.getpid())
            env[RUN_DIR_VARIABLE] = str(self.paths.run)
            file = log_file(self.paths.run, launch.node).open("ab", buffering=0)
            self.nodes.append(start_node(launch, env, file, umask=self.umask))

    def _watch(self, started: float) -> None:
        """Read the nodes' output until all have ended; stop them if necessary."""
        limit = self.emulator.max_runtime_seconds
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            while any(node.exit_code is None for node in self.nodes):
                time_now = time.monotonic()
                if self.stop_signals:
                    self.stop("stop requested")
                if limit and time_now > started + limit and not self.stop_reason:
                    allowed = f"the time limit of {format_duration(limit)} is over"
                    self.stop(f"{allowed} (limits.max_runtime, or what limits.max_cost pays for)")
                if self.deadline is not None and time_now > self.deadline:
                    self._signal_all(signal.SIGKILL)
                for key, _ in selector.select(timeout=SELECT_SECONDS):
                    if isinstance(key.data, Node):
                        if not key.data.read(self.record):
                            selector.unregister(key.fd)
                    else:
                        os.read(key.fd, 4096)
                self._reap_launchers()
                if time.monotonic() > self.synced_at + SYNC_SECONDS:
                    self._check_folder()
                    self.sync()

    def _register(self, selector: selectors.BaseSelector) -> None:
        """Wake up for the nodes' output and, through a pipe, for signals."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        selector.register(reader, selectors.EVENT_READ)

        for node in self.nodes:
            os.set_blocking(node.output, False)
            selector.register(node.output, selectors.EVENT_READ, node)

    def _reap_launchers(self) -> None:
        """Collect ended launchers; after the first failure, ask the others to end."""
        for node in self.nodes:
            if node.exit_code is None and node.process.poll() is not None:
                while node.read(self.record):
                    pass
                node.exit_code = node.process.returncode
                if node.exit_code != 0 and self.deadline is None:
                    self.first_failed = node
                    self.deadline = time.monotonic() + PEERS_SECONDS
                    self._signal_all(signal.SIGTERM)

    def record(self, events: Sequence[Event]) -> None:
        """Store events of a node, and remember which ranks have finished."""
        for event in events:
            if isinstance(event, RankEnded) and event.exitcode == 0:
                self.finished_ranks[event.rank] = (event.node, event.time)
            elif isinstance(event, Restarted):
                self.finished_ranks.clear()
        self.folder.record(*events)

    def _check_folder(self) -> None:
        """Look for the stop file and for the folder itself: signals may not reach us."""
        if self.paths.stop_file.exists() and not self.stop_signals:
            self.stop_signals.append(signal.SIGTERM)
        if (
            self.ends_with is not None
            and self.ends_with.is_alive() is False
            and not self.stop_signals
        ):
            self.stop("the process that has started it is gone")
        if self.folder.is_found_removed():
            self.stop("the run's folder was removed")

    def sync(self) -> None:
        """Copy new checkpoints. A full disk does not end the training: it may have space later."""
        self.synced_at = time.monotonic()
        try:
            self.emulator.sync()
        except OSError as error:
            log(f"checkpoints not kept: {error}")

    def _clean_up(self) -> None:
        """End everything that the run has started."""
        end_orphans(self.paths.run)
        try:
            self.emulator.clean_up()
        except CloudtrainError as error:
            log(f"not all is removed: {error.message}")

    def _log_notes(self, notes: list[str]) -> None:
        """Add notes to the end of the first node's log."""
        if notes and self.nodes:
            time_now = format_timestamp(time.time())
            text = "".join(f"{time_now} [node 0] {line}\n" for line in notes)
            self.nodes[0].log.write(text.encode("utf-8", "replace"))

    def _signal_all(self, signum: int) -> None:
        self.signalled_at = min(self.signalled_at, time.time())
        for node in self.nodes:
            if node.process.poll() is None:
                node.process.send_signal(signum)


def log(text: str) -> None:
    """Write a line to the supervisor's own log, which may be on a full disk."""
    with suppress(OSError):
        print(f"{format_timestamp(time.time())} {text}", file=sys.stderr, flush=True)


def emulator_of(run: RunFolder) -> Emulator[Launch]:
    """Return the emulator of a run's request, from its provider."""
    plan = emulated_plan(run)
    provider: Any = get_provider(plan.provider)
    emulator: Emulator[Launch] = provider.emulator(
        RunPaths(run.path),
        run.document("request.json"),
        plan,
    )
    return emulator


def main(argv: list[str]) -> int:
    """Supervise a run while holding its lock.

    Return 1 if another supervisor has it, or an observer has given the run up.
    """
    run = Path(argv[0])
    archive = Path(argv[1])
    # other users may not read logs, sources and values of secrets
    umask = os.umask(OTHERS_MASK)
    previous = identity_of(run)
    lock = take_lock(run)
    if lock is None or (previous is not None and previous.is_alive()):
        return 1

    stop_signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: stop_signals.append(signum))

    # A handler that does nothing, rather than SIG_IGN, which the launchers would inherit.
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)

    write_identity(run)
    os.pwrite(lock.file, str(os.getpid()).encode(), 0)
    if RunFolder(run).last_event(Ended):  # too late: an observer has given the run up
        return 1

    threading.Thread(
        target=keep_heartbeat,
        args=(run,),
        daemon=True,
        name="heartbeat",
    ).start()
    Supervisor(run, archive, stop_signals, umask, read_lifeline(argv[2:])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
