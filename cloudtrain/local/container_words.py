"""What comes out of a container, line by line, and what is to be said of its end that its launcher could not say."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from cloudtrain.contracts.container import ContainerSpec
from cloudtrain.errors import CloudtrainError
from cloudtrain.quantities import format_size
from cloudtrain.runs.logs import EVENT_MARK

LONGEST = 64 * 1024
"""Bytes after which an unfinished line is passed on as it is."""

KILLED = 128 + signal.SIGKILL


class NodeWords:
    """One node's output: whole lines of its container, and at the end ours."""

    def __init__(self, node: int, out: int) -> None:
        self.node, self._out = node, out
        self._rest = [b"", b""]
        self.told: dict[str, Any] | None = None
        """The launcher's own last word."""
        self._last = b""
        """The last line that is no event: where no launcher ever came to speak, it says why."""

    def hear(self, *streams: bytes) -> bool:
        """Pass on the lines that are whole now, of standard output and standard error; False if nobody reads them."""
        heard = True
        for number, piece in enumerate(streams):
            *lines, rest = (self._rest[number] + piece).split(b"\n")
            if len(rest) > LONGEST:
                lines, rest = [*lines, rest], b""
            self._rest[number] = rest
            heard = self._pass_on(lines) and heard
        return heard

    def flush(self) -> None:
        """Pass on what has no newline."""
        self._pass_on([rest for rest in self._rest if rest])
        self._rest = [b"", b""]

    def trouble(self, error: CloudtrainError | None) -> int:
        """The container could not be started, or not be watched to its end; the exit code."""
        message = error.message if error else "its container was lost"
        self._fail(type(error).__name__ if error else "lost", message, hint=error.hint if error else None)
        return 1

    def conclude(self, code: int, out_of_memory: bool, spec: ContainerSpec, asked: bool, forced: bool) -> int:
        """Add to the launcher's words what only the engine knows; the exit code."""
        why = _memory(spec) if out_of_memory else ""
        if why:
            self._log(f"the kernel killed a process of this container: {why}")
        error = self.told.get("error") if self.told else None
        if isinstance(error, dict) and why and _by_a_kill(error):
            message = str(error["message"]).removesuffix(" (out of host memory?)")
            self._say("node_ended", **{**(self.told or {}), "error": {**error, "message": f"{message} ({why})"}})
        elif self.told is None and asked:
            self._say("node_ended", outcome="stopped", error=None, forced=forced)
        elif self.told is None:
            message = _left(code, self._last.decode("utf-8", "replace").strip()[:200])
            self._fail("SIGKILL" if code == KILLED else "exit", f"{message} ({why})" if why else message)
            return code or 1
        return code

    def _fail(self, exception: str, message: str, hint: str | None = None) -> None:
        error = {"rank": -1, "node": self.node, "time": round(time.time(), 3), "exception": exception}
        error |= {"message": message, "attempt": 0, **({"hint": hint} if hint else {})}
        self._say("error", **error)
        self._say("node_ended", outcome="failed", error=error, forced=False)
        self._log(f"failed: {message}")

    def _pass_on(self, lines: list[bytes]) -> bool:
        for line in lines:
            if line.startswith(EVENT_MARK) and b'"node_ended"' in line:
                self._note(line[len(EVENT_MARK) :])
            elif line:
                self._last = line
        return self._write(b"".join(line + b"\n" for line in lines))

    def _note(self, text: bytes) -> None:
        try:
            event = json.loads(text)
        except ValueError:
            return
        if isinstance(event, dict) and event.get("type") == "node_ended":
            self.told = {key: event[key] for key in ("outcome", "seconds", "error", "forced", "why") if key in event}

    def _say(self, kind: str, **fields: Any) -> None:
        origin = {"node": self.node, "rank": -1, "seq": time.time_ns()}
        event = {"type": kind, "time": round(time.time(), 3), **origin, **fields}
        self._write(EVENT_MARK + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def _log(self, text: str) -> None:
        self._write(f"[node {self.node}] {text}\n".encode("utf-8", "replace"))

    def _write(self, text: bytes) -> bool:
        data = memoryview(text)
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError:
            return False
        return True


def _memory(spec: ContainerSpec) -> str:
    if spec.memory_bytes is None:
        return "out of host memory"
    return f"out of host memory: its container reached the limit of {format_size(spec.memory_bytes)}"


def _by_a_kill(error: dict[str, Any]) -> bool:
    """Whether an error may come of a process that the kernel has killed: a rank, or a worker of its DataLoader."""
    text = f"{error.get('exception')}: {error.get('message')}"
    return "SIGKILL" in text or "signal: Killed" in text or "DataLoader worker" in text


def _left(code: int, last: str) -> str:
    if code == 0:
        return "its container ended well, but the launcher never spoke: the image's python3 is none"
    if code - 128 in list(signal.Signals):
        return f"its container was killed by {signal.Signals(code - 128).name}"
    return f"its container exited with code {code}" + (f": {last}" if last else " and said nothing")
