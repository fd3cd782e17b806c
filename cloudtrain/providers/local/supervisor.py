"""The supervisor of one local run: starts a launcher per node, keeps their words, and ends them all together.

Started with RUN_FOLDER ARCHIVE, in a session of its own. It outlives the client; when it is killed itself, its
launchers stop, and the next look at the run says so. A stop comes as a file in the run's folder, which reaches it in
any container and on any host; a folder that is removed ends the training.
"""

from __future__ import annotations

import errno
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudtrain.contracts.launch import Launch
from cloudtrain.errors import CloudtrainError
from cloudtrain.providers import get_provider
from cloudtrain.providers.emulation.base import Emulator
from cloudtrain.providers.emulation.plan import emulated_plan
from cloudtrain.providers.emulation.run_paths import RunPaths
from cloudtrain.providers.local import end_on_full_disk
from cloudtrain.providers.local.node import Node, stdout, stopped
from cloudtrain.providers.local.ports import free_port
from cloudtrain.providers.local.processes import STOPPED, SUPERVISOR_PID
from cloudtrain.providers.local.supervisor_status import (
    HEARTBEAT_SECONDS,
    RUN_DIR_VARIABLE,
    end_orphans,
    identity_of,
    write_heartbeat,
    write_identity,
)
from cloudtrain.runs.events import Ended, Event, NodeEnded, NodeStarted, RankEnded, Restarted
from cloudtrain.runs.failure import failed_process, first_cause
from cloudtrain.runs.files import FILE_MODE, OTHERS_MASK, lock_file, storing
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.index import index_run
from cloudtrain.runs.logs import format_timestamp, log_file, split_events

PEERS_SECONDS = 8
"""How long the other nodes may take to end after one has failed; most then sit in a collective without an end."""
SYNC_SECONDS = 1
"""Between two looks at what must be kept while the job runs, and at whether it is to go on at all."""
REMOVED_CHECKS = 3
"""So many looks in a row must miss the run's folder before it counts as removed."""


def emulator_of(run: RunFolder) -> Emulator[Launch]:
    """What executes a run's request on this machine: its provider knows."""
    plan = emulated_plan(run)
    provider: Any = get_provider(plan.provider)
    emulator: Emulator[Launch] = provider.emulator(RunPaths(run.path), run.document("request.json"), plan)
    return emulator


class Supervisor:
    """One run, from the launchers' start to the event that ends it."""

    def __init__(self, run: Path, archive: Path, asked: list[int], umask: int = -1) -> None:
        self.umask = umask
        """That of the person, for what the job itself writes; -1: as it is."""
        self.asked = asked
        """The stop signals that have come; only looked at where an event may be written."""
        self.folder = RunFolder(run)
        self.paths = RunPaths(run)
        self.place = run.stat()
        self.missed = 0
        self.archive = archive
        self.emulator = emulator_of(self.folder)
        self.nodes: list[Node] = []
        self.stop_reason = ""
        self.first_failed: Node | None = None
        self.left: dict[int, tuple[int, float]] = {}
        """Ranks that have ended with 0, their node and when."""
        self.lost_lines = 0
        self.kept = time.monotonic()
        self.signalled = float("inf")
        """Wall-clock time at which we first told the nodes to stop."""
        self.deadline: float | None = None
        """Monotonic time at which what still runs is killed."""

    def run(self) -> None:
        """Everything, in order; whatever happens, the run gets its end and nothing is left running."""
        started = time.monotonic()
        end_on_full_disk.reserve(self.paths.end_on_full_disk)
        try:
            try:
                launches = self._prepare()
                self._check_folder()
                if self.asked:
                    self.stop("stop was asked")
                else:
                    self._start(launches)
                    self._watch(started)
                ended = self._outcome()
            finally:
                self._clear()  # before the collecting: what is brought together must not change any more
            if self._folder_exists():
                with storing(self.paths.run):
                    self._log_notes(self.emulator.collect())
        except CloudtrainError as error:
            ended = {"state": "failed", "reason": error.message + (f" ({error.hint})" if error.hint else "")}
        except Exception:  # noqa: BLE001  (a bug of ours: the run must still end, the traceback is kept)
            traceback.print_exc()
            ended = {"state": "failed", "reason": f"the supervisor broke; see {self.paths.supervisor_log}"}
        if self.lost_lines:
            lost = f"{self.lost_lines} log lines are lost, the disk was full"
            ended["reason"] = "; ".join(part for part in (ended.get("reason"), lost) if part)
        for node in self.nodes:
            node.log.close()
            if node.scratch and self.emulator.nodes_on_host:
                shutil.rmtree(node.scratch, ignore_errors=True)
        if not self._folder_exists():
            self._remove_recreated_folder()
            return
        last = {"type": "ended", "time": time.time(), **ended}
        if self._append(last, durable=True):
            history = History(self.folder)
            history.read()
            index_run(history)
        else:
            end_on_full_disk.write(self.paths.end_on_full_disk, last)

    def stop(self, reason: str) -> None:
        """Ask every node to stop; the grace period begins."""
        if self.stop_reason:
            return
        self.stop_reason = reason
        self.deadline = time.monotonic() + self.emulator.grace_seconds
        self._append({"type": "stop_requested", "time": time.time(), "reason": reason})
        self._signal_all(signal.SIGTERM)

    def _prepare(self) -> Sequence[Launch]:
        for folder in (self.paths.output, self.paths.model, self.paths.checkpoints):
            folder.mkdir(exist_ok=True)
        return self.emulator.prepare(self.archive)

    def _start(self, launches: Sequence[Launch]) -> None:
        port = str(free_port())  # of this moment: a plan cannot know which one will be free
        inherited = {key: value for key, value in os.environ.items() if self.emulator.inherits(key)}
        for launch in launches:
            env = {
                **inherited,
                **launch.env,
                "CLOUDTRAIN_MASTER_PORT": port,
                **{name: os.environ[place.partition(":")[2]] for name, place in launch.secrets.items()},
                SUPERVISOR_PID: str(os.getpid()),
                RUN_DIR_VARIABLE: str(self.paths.run),
            }
            process = subprocess.Popen(
                launch.argv,
                cwd=launch.cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=self.umask,
            )
            log = log_file(self.paths.run, launch.node).open("ab", buffering=0)
            self.nodes.append(Node(rank=launch.node, process=process, log=log))

    def _watch(self, started: float) -> None:
        limit = self.emulator.max_runtime_seconds
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            while any(node.code is None for node in self.nodes):
                now = time.monotonic()
                if self.asked:
                    self.stop("stop was asked")
                if limit and now > started + limit and not self.stop_reason:
                    self.stop(f"max_runtime of {limit} s is over")
                if self.deadline is not None and now > self.deadline:
                    self._signal_all(signal.SIGKILL)
                for key, _ in selector.select(timeout=self._select_timeout(now, started, limit)):
                    if isinstance(key.data, Node):
                        if not self._read(key.data):
                            selector.unregister(key.fd)
                    else:
                        os.read(key.fd, 4096)
                self._collect()
                if time.monotonic() > self.kept + SYNC_SECONDS:
                    self._check_folder()
                    self._keep()

    def _register(self, selector: selectors.BaseSelector) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        selector.register(reader, selectors.EVENT_READ)
        for node in self.nodes:
            output = stdout(node)
            os.set_blocking(output, False)
            selector.register(output, selectors.EVENT_READ, node)

    def _select_timeout(self, now: float, started: float, limit: int | None) -> float:
        ends = [self.deadline] if self.deadline is not None else []
        if limit and not self.stop_reason:
            ends.append(started + limit)
        return max(0.05, min([SYNC_SECONDS, *(end - now for end in ends)]))

    def _collect(self) -> None:
        """Take leave of launchers that have ended; when one failed, the others are ended too."""
        for node in self.nodes:
            if node.code is None and node.process.poll() is not None:
                while self._read(node):
                    pass
                node.code = node.process.returncode
                if node.code != 0 and self.deadline is None:
                    self.first_failed = node
                    self.deadline = time.monotonic() + PEERS_SECONDS
                    self._signal_all(signal.SIGTERM)

    def _read(self, node: Node) -> bool:
        """Keep what a node has said; False when there is nothing more for now or for good."""
        try:
            chunk = os.read(stdout(node), 1 << 16)
        except BlockingIOError:
            return node.process.poll() is None
        *lines, node.rest = (node.rest + chunk).split(b"\n")
        if not chunk and node.rest:
            lines, node.rest = [node.rest], b""
        events, said = split_events(lines, node.rank)
        for event in events:
            match event:
                case NodeStarted():
                    node.scratch = event.scratch
                case RankEnded(exitcode=0):
                    self.left[event.rank] = (node.rank, event.time)
                case Restarted():
                    self.left.clear()
                case NodeEnded():
                    node.error, node.forced, node.stopped = event.error, event.forced, event.outcome == "stopped"
                    node.stop_asked, node.stopped_by = event.stop_asked, event.stopped_by
        if events:
            self._append(*events)
        # After the events: a reader that knows a line then knows of the error that it tells of.
        now = format_timestamp(time.time()).encode()
        if said:
            text = b"".join(now + b" " + line + b"\n" for line in said)
            try:
                written = node.log.write(text)
            except OSError:  # a full disk loses log lines, not the training
                written = 0
            self.lost_lines += text[written:].count(b"\n")
        return bool(chunk)

    def _outcome(self) -> dict[str, Any]:
        errors = [node.error for node in self.nodes if node.error]
        if self.nodes and all(node.code == 0 for node in self.nodes):
            left = next((node for node in self.nodes if node.stopped), None)
            if left is None:
                return {"state": "succeeded"}
            return {"state": "stopped", "reason": self.stop_reason or stopped(left)}
        first = self._stopped_from_outside()
        if first and not self.stop_reason and all(error.time > first.stop_asked for error in errors):
            return {"state": "stopped", "reason": stopped(first)}
        if errors:
            cause = first_cause(errors, self.left)
            reason = f"{failed_process(cause)} failed" if cause else ""
            return {"state": "failed", "reason": reason, "error": cause and cause.to_json()}
        if self.stop_reason:
            forced = any(node.forced or node.code == -signal.SIGKILL for node in self.nodes)
            how = " (by force, after the grace period)" if forced else ""
            return {"state": "stopped", "reason": self.stop_reason + how}
        node = self.first_failed
        if node is None or node.code is None:
            raise RuntimeError("no launcher failed, none was stopped, and yet not all succeeded")
        if node.code == STOPPED:
            return {"state": "stopped", "reason": stopped(node)}
        how = f"was killed by {signal.Signals(-node.code).name}" if node.code < 0 else f"exited with code {node.code}"
        return {"state": "failed", "reason": f"the launcher of node {node.rank} {how}; see its log"}

    def _check_folder(self) -> None:
        """What a file says, or a folder that is there no more: nobody may be able to signal us."""
        if self.paths.stop_file.exists() and not self.asked:
            self.asked.append(signal.SIGTERM)
        self.missed = 0 if self._folder_exists() else self.missed + 1
        if self._is_removed():
            self.stop("the run's folder was removed")

    def _folder_exists(self) -> bool:
        try:
            return os.path.samestat(self.paths.run.stat(), self.place)
        except OSError as error:  # a disk that fails just now has removed nothing
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

    def _is_removed(self) -> bool:
        return self.missed >= REMOVED_CHECKS

    def _remove_recreated_folder(self) -> None:
        """The folder was removed, so what the job made of it again in its last seconds goes too; a new run's stays."""
        if not (self.paths.run / "plan.json").exists():
            shutil.rmtree(self.paths.run, ignore_errors=True)

    def _stopped_from_outside(self) -> Node | None:
        """The node that was asked to stop first, and not by us: what its peers say afterwards is of its leaving."""
        asked = [node for node in self.nodes if node.stopped and 0 < node.stop_asked < self.signalled]
        return min(asked, key=lambda node: node.stop_asked, default=None)

    def _keep(self) -> None:
        """A disk that is full now may have room later; the training is not ended for it."""
        self.kept = time.monotonic()
        try:
            self.emulator.keep()
        except OSError as error:
            _note(f"checkpoints not kept: {error}")

    def _clear(self) -> None:
        """Nothing of the run goes on."""
        end_orphans(self.paths.run)
        try:
            self.emulator.clear()
        except CloudtrainError as error:
            _note(f"not all is removed: {error.message}")

    def _log_notes(self, said: list[str]) -> None:
        """A word of ours at the end of the first node's log."""
        if said and self.nodes:
            now = format_timestamp(time.time())
            self.nodes[0].log.write("".join(f"{now} [node 0] {line}\n" for line in said).encode())

    def _signal_all(self, signum: int) -> None:
        self.signalled = min(self.signalled, time.time())
        for node in self.nodes:
            if node.process.poll() is None:
                node.process.send_signal(signum)

    def _append(self, *events: Event | dict[str, Any], durable: bool = False) -> bool:
        if self._is_removed():  # nothing is begun anew where a folder was
            return True
        try:
            self.folder.append(*events, durable=durable)
        except CloudtrainError as error:
            _note(f"events lost: {error.message}")
            return False
        return True


def main(argv: list[str]) -> int:
    """Hold the run's lock for life and run it; 1 when another supervisor has it already, or it has been ended."""
    run, archive = Path(argv[0]), Path(argv[1])
    umask = os.umask(OTHERS_MASK)  # logs, sources, env values: nobody else reads what is written here
    lock = os.open(RunPaths(run).lock, os.O_RDWR | os.O_CREAT, FILE_MODE)
    other = identity_of(run)
    if not _take(lock) or (other is not None and other.is_alive()):  # a disk may have no locks
        return 1
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: asked.append(signum))
    # A handler that does nothing, rather than SIG_IGN, which the launchers would inherit.
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)
    write_identity(run)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    if RunFolder(run).last_event(Ended):  # whoever looked had given us up, so late have we come
        return 1
    threading.Thread(target=_heartbeat, args=(run,), daemon=True, name="heartbeat").start()
    Supervisor(run, archive, asked, umask).run()
    return 0


def _heartbeat(run: Path) -> None:
    """In a thread of its own, so that neither a slow disk nor a large source looks like death."""
    while True:
        time.sleep(HEARTBEAT_SECONDS)
        write_heartbeat(run)


def _take(lock: int, timeout_seconds: float = 2) -> bool:
    """Take the run's lock. Whoever looks whether we live holds it for a moment; another supervisor, for good."""
    deadline = time.monotonic() + timeout_seconds
    while not lock_file(lock, wait=False):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _note(text: str) -> None:
    """A line in the supervisor's own log, which may be on a disk that is full."""
    with suppress(OSError):
        print(f"{format_timestamp(time.time())} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
