"""The supervisor of one local run: starts a launcher per node, keeps their words, and ends them all together.

`python -m cloudtrain.local.supervisor RUN_FOLDER ARCHIVE`, in a session of its own. It outlives the client; when it
is killed itself, its launchers stop, and the next look at the run says so.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cloudtrain.errors import CloudtrainError
from cloudtrain.local.children import STOPPED, SUPERVISOR_PID
from cloudtrain.local.folders import RunPaths
from cloudtrain.local.liveness import MARK, end_leftovers
from cloudtrain.local.ports import free_port
from cloudtrain.local.stage import Launches
from cloudtrain.local.stages import stage_of
from cloudtrain.runs.index import remember
from cloudtrain.runs.logs import log_file, split_events, stamp
from cloudtrain.runs.state import first_cause, who
from cloudtrain.runs.store import RunFolder, storing

PEERS_SECONDS = 8
"""How long the other nodes may take to end after one has failed; most then sit in a collective without an end."""
KEEPING_SECONDS = 1
"""Between two looks at what must be kept while the job runs."""


@dataclass(kw_only=True)
class Node:
    """One launcher and what it has said."""

    rank: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    rest: bytes = b""
    code: int | None = None
    error: dict[str, Any] | None = field(default=None)
    """The root cause by its launcher's own account."""
    stopped: bool = False
    """Whether its launcher says so; where its exit code would end the job for its peers, it leaves with 0."""
    forced: bool = False
    """Whether its launcher had to kill what did not end within the grace period."""
    scratch: str = ""
    """Its launcher's temporary folder, which one that was killed leaves behind."""


class Supervisor:
    """One run, from the launchers' start to the event that ends it."""

    def __init__(self, run: Path, archive: Path, asked: list[int]) -> None:
        self.asked = asked
        """The stop signals that have come; only looked at where an event may be written."""
        self.folder = RunFolder(run)
        self.paths = RunPaths(run)
        self.archive = archive
        self.stage = stage_of(self.folder)
        self.nodes: list[Node] = []
        self.stop_reason = ""
        self.first_failed: Node | None = None
        self.lost_lines = 0
        self.kept = time.monotonic()
        self.deadline: float | None = None
        """Monotonic time at which what still runs is killed."""

    def run(self) -> None:
        """Everything, in order; whatever happens, the run gets its end and nothing is left running."""
        started = time.monotonic()
        try:
            try:
                launches = self._prepare()
                if self.asked:
                    self.stop("stop was asked")
                else:
                    self._start(launches)
                    self._watch(started)
                ended = self._verdict()
            finally:
                self._clear()  # before the collecting: what is brought together must not change any more
            with storing(self.paths.run):
                self._remark(self.stage.collect())
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
            if node.scratch and self.stage.nodes_are_here:
                shutil.rmtree(node.scratch, ignore_errors=True)
        self._append({"type": "ended", "time": time.time(), **ended}, durable=True)
        remember(self.folder)

    def stop(self, reason: str) -> None:
        """Ask every node to stop; the grace period begins."""
        if self.stop_reason:
            return
        self.stop_reason = reason
        self.deadline = time.monotonic() + self.stage.grace_seconds
        self._append({"type": "stop_requested", "time": time.time(), "reason": reason})
        self._signal_all(signal.SIGTERM)

    def _prepare(self) -> Launches:
        for folder in (self.paths.output, self.paths.model, self.paths.checkpoints):
            folder.mkdir(exist_ok=True)
        return self.stage.prepare(self.archive)

    def _start(self, launches: Launches) -> None:
        port = str(free_port())  # of this moment: a plan cannot know which one will be free
        inherited = {key: value for key, value in os.environ.items() if self.stage.inherits(key)}
        for launch in launches:
            env = {
                **inherited,
                **launch["env"],
                "CLOUDTRAIN_MASTER_PORT": port,
                **{name: os.environ[place.partition(":")[2]] for name, place in launch["secrets"].items()},
                SUPERVISOR_PID: str(os.getpid()),
                MARK: str(self.paths.run),
            }
            process = subprocess.Popen(
                launch["argv"],
                cwd=launch["cwd"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            log = log_file(self.paths.run, launch["node"]).open("ab", buffering=0)
            self.nodes.append(Node(rank=launch["node"], process=process, log=log))

    def _watch(self, started: float) -> None:
        limit = self.stage.max_runtime_seconds
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
                for key, _ in selector.select(timeout=self._patience(now, started, limit)):
                    if isinstance(key.data, Node):
                        if not self._read(key.data):
                            selector.unregister(key.fd)
                    else:
                        os.read(key.fd, 4096)
                self._collect()
                if time.monotonic() > self.kept + KEEPING_SECONDS:
                    self._keep()

    def _register(self, selector: selectors.BaseSelector) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        selector.register(reader, selectors.EVENT_READ)
        for node in self.nodes:
            stdout = _stdout(node)
            os.set_blocking(stdout, False)
            selector.register(stdout, selectors.EVENT_READ, node)

    def _patience(self, now: float, started: float, limit: int | None) -> float:
        ends = [self.deadline] if self.deadline is not None else []
        if limit and not self.stop_reason:
            ends.append(started + limit)
        return max(0.05, min([end - now for end in ends], default=KEEPING_SECONDS))

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
            chunk = os.read(_stdout(node), 1 << 16)
        except BlockingIOError:
            return node.process.poll() is None
        *lines, node.rest = (node.rest + chunk).split(b"\n")
        if not chunk and node.rest:
            lines, node.rest = [node.rest], b""
        events, said = split_events(lines, node.rank)
        for event in events:
            if event["type"] == "node_started":
                node.scratch = event["scratch"]
            elif event["type"] == "node_ended":
                node.error, node.forced = event.get("error"), bool(event.get("forced"))
                node.stopped = event.get("outcome") == "stopped"
        if events:
            self._append(*events)
        # After the events: a reader that knows a line then knows of the error that it tells of.
        now = stamp(time.time()).encode()
        if said:
            text = b"".join(now + b" " + line + b"\n" for line in said)
            try:
                written = node.log.write(text)
            except OSError:  # a full disk loses log lines, not the training
                written = 0
            self.lost_lines += text[written:].count(b"\n")
        return bool(chunk)

    def _verdict(self) -> dict[str, Any]:
        errors = [node.error for node in self.nodes if node.error]
        if self.nodes and all(node.code == 0 for node in self.nodes):
            left = next((node for node in self.nodes if node.stopped), None)
            if left is None:
                return {"state": "succeeded"}
            return {"state": "stopped", "reason": self.stop_reason or f"node {left.rank} was told to stop"}
        if errors:
            error = first_cause(errors)
            return {"state": "failed", "reason": f"{who(error)} failed" if error else "", "error": error}
        if self.stop_reason:
            forced = any(node.forced or node.code == -signal.SIGKILL for node in self.nodes)
            how = " (by force, after the grace period)" if forced else ""
            return {"state": "stopped", "reason": self.stop_reason + how}
        node = self.first_failed
        if node is None or node.code is None:
            raise RuntimeError("no launcher failed, none was stopped, and yet not all succeeded")
        if node.code == STOPPED:
            return {"state": "stopped", "reason": f"node {node.rank} was told to stop"}
        how = f"was killed by {signal.Signals(-node.code).name}" if node.code < 0 else f"exited with code {node.code}"
        return {"state": "failed", "reason": f"the launcher of node {node.rank} {how}; see its log"}

    def _keep(self) -> None:
        """A disk that is full now may have room later; the training is not ended for it."""
        self.kept = time.monotonic()
        try:
            self.stage.keep()
        except OSError as error:
            print(f"{stamp(time.time())} checkpoints not kept: {error}", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        """Nothing of the run goes on."""
        end_leftovers(self.paths.run)
        try:
            self.stage.clear()
        except CloudtrainError as error:
            print(f"{stamp(time.time())} not all is removed: {error.message}", file=sys.stderr, flush=True)

    def _remark(self, said: list[str]) -> None:
        """A word of ours at the end of the first node's log."""
        if said and self.nodes:
            now = stamp(time.time())
            self.nodes[0].log.write("".join(f"{now} [node 0] {line}\n" for line in said).encode())

    def _signal_all(self, signum: int) -> None:
        for node in self.nodes:
            if node.process.poll() is None:
                node.process.send_signal(signum)

    def _append(self, *events: dict[str, Any], durable: bool = False) -> None:
        try:
            self.folder.append(*events, durable=durable)
        except CloudtrainError as error:
            print(f"{stamp(time.time())} events lost: {error.message}", file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    """Hold the run's lock for life and run it; 1 when another supervisor has it already."""
    run, archive = Path(argv[0]), Path(argv[1])
    lock = os.open(RunPaths(run).lock, os.O_RDWR | os.O_CREAT, 0o644)
    if not _take(lock):
        return 1
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: asked.append(signum))
    # A handler that does nothing, rather than SIG_IGN, which the launchers would inherit.
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, lambda *_: None)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    if RunPaths(run).stop_mark.exists():
        asked.append(signal.SIGTERM)  # asked for before there was anybody to signal
    Supervisor(run, archive, asked).run()
    return 0


def _take(lock: int, patience_seconds: float = 2) -> bool:
    """Take the run's lock. Whoever looks whether we live holds it for a moment; another supervisor, for good."""
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(0.01)


def _stdout(node: Node) -> int:
    if node.process.stdout is None:
        raise RuntimeError("a launcher was started without a pipe")
    return node.process.stdout.fileno()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
