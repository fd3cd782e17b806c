"""What comes out of a container, line by line, and what is to be said of its end that its launcher could not say."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from cloudtrain.errors import CloudtrainError
from cloudtrain.providers.docker.container import LOG_BYTES, ContainerSpec
from cloudtrain.runs.events import NodeEnded, parse
from cloudtrain.runs.failure_hints import ENGINE_STOPPED, KILLED_FROM_OUTSIDE
from cloudtrain.runs.logs import EVENT_MARK
from cloudtrain.units import format_size

LONGEST = 64 * 1024
"""Bytes after which an unfinished line is passed on as it is."""

_LOG_OVERHEAD = 48
"""Bytes at most that the engine writes down beside each line: its time, its source, two lengths."""

_NODE_ENDED_FIELDS = ("outcome", "seconds", "error", "forced", "why", "stop_asked")

KILLED, TERMINATED = 128 + signal.SIGKILL, 128 + signal.SIGTERM


class ContainerOutput:
    """One node's output: whole lines of its container, and at the end ours."""

    def __init__(self, node: int, out: int) -> None:
        self.node, self._out = node, out
        self._rest = [b"", b""]
        self._passed = [0, 0]
        """Bytes of each stream that have been passed on."""
        self._repeated = [0, 0]
        """Bytes that come once more, of those."""
        self._held: list[bytes | None] = [None, None]
        """What comes after them, until it is clear whether it begins with the unfinished line once more."""
        self._lines = 0
        self.engine_lost = False
        """Whether the engine was away for a time."""
        self.node_ended: dict[str, Any] | None = None
        """The launcher's own last word."""
        self._last = b""
        """The last line that is no event: where no launcher ever came to speak, it says why."""

    def forward(self, *streams: bytes) -> bool:
        """Pass on the lines that are whole now, of standard output and standard error; False if nobody reads them."""
        heard = True
        for number, whole in enumerate(streams):
            piece = self._new(number, whole)
            *lines, rest = (self._rest[number] + piece).split(b"\n")
            if len(rest) > LONGEST:
                lines, rest = [*lines, rest], b""
            self._passed[number] += len(self._rest[number]) + len(piece) - len(rest)
            self._rest[number] = rest
            heard = self._pass_on(lines) and heard
        return heard

    def flush(self) -> None:
        """Pass on what has no newline."""
        self._rest = [rest + (held or b"") for rest, held in zip(self._rest, self._held, strict=True)]
        self._pass_on([rest for rest in self._rest if rest])
        self._rest, self._held = [b"", b""], [None, None]

    def replay(self) -> bool:
        """From now on everything comes once more, from the first byte: what was passed on already is left out.

        False where so much was said that the engine may not have kept its beginning: then nothing is left out.
        """
        if sum(self._passed) + _LOG_OVERHEAD * self._lines > LOG_BYTES:
            return False
        self._repeated, self._held = list(self._passed), [b"" if rest else None for rest in self._rest]
        return True

    @property
    def heard(self) -> int:
        """Bytes that have been passed on."""
        return sum(self._passed)

    def log(self, text: str) -> None:
        """A line of ours in the node's log."""
        self._log(text)

    def _new(self, number: int, piece: bytes) -> bytes:
        """What of a piece has not been heard before.

        The unfinished line comes once more, too, unless the engine was killed before it had written it down.
        """
        repeated = min(len(piece), self._repeated[number])
        self._repeated[number] -= repeated
        piece, held, rest = piece[repeated:], self._held[number], self._rest[number]
        if held is None or not piece:
            return piece
        held += piece
        if len(held) < len(rest) and rest.startswith(held):
            self._held[number] = held
            return b""
        self._held[number] = None
        return held.removeprefix(rest)

    def report_failure(self, error: CloudtrainError | None) -> int:
        """The container could not be started, or not be watched to its end; the exit code."""
        message = error.message if error else "its container was lost"
        self._fail(type(error).__name__ if error else "lost", message, hint=error.hint if error else None)
        return 1

    def finish(self, code: int, out_of_memory: bool, spec: ContainerSpec, asked: bool, forced: bool) -> int:
        """Add to the launcher's words what only the engine knows; the exit code."""
        why = _memory(spec) if out_of_memory else ""
        if why:
            self._log(f"the kernel killed a process of this container: {why}")
        error = self.node_ended.get("error") if self.node_ended else None
        if isinstance(error, dict) and (_is_sigkill(error) or (why and _is_dataloader_worker(error))):
            self._write_event("node_ended", **{**(self.node_ended or {}), "error": _with_memory_cause(error, why)})
        elif self.node_ended is None and asked:
            self._write_event("node_ended", outcome="stopped", error=None, forced=forced)
        elif self.node_ended is None:
            message = _exit_message(code, self._last.decode("utf-8", "replace").strip()[:200])
            hint = KILLED_FROM_OUTSIDE if code == KILLED and not why else None
            if self.engine_lost and code in (KILLED, TERMINATED):
                message, hint = "the Docker engine was stopped, and ended its container", ENGINE_STOPPED
            self._fail("SIGKILL" if code == KILLED else "exit", f"{message} ({why})" if why else message, hint)
            return code or 1
        elif self.node_ended.get("outcome") == "stopped" and not asked:
            by = "the Docker engine was stopped" if self.engine_lost else "by docker stop, or by a signal from outside"
            self._write_event("node_ended", **{**self.node_ended, "stopped_by": by})
        return code

    def _fail(self, exception: str, message: str, hint: str | None = None) -> None:
        error = {"rank": -1, "node": self.node, "time": round(time.time(), 3), "exception": exception}
        error |= {"message": message, "attempt": 0, **({"hint": hint} if hint else {})}
        self._write_event("error", **error)
        self._write_event("node_ended", outcome="failed", error=error, forced=False)
        self._log(f"failed: {message}")

    def _pass_on(self, lines: list[bytes]) -> bool:
        self._lines += len(lines)
        for line in lines:
            if line.startswith(EVENT_MARK) and b'"node_ended"' in line:
                self._note(line[len(EVENT_MARK) :])
            elif line:
                self._last = line
        return self._write(b"".join(line + b"\n" for line in lines))

    def _note(self, text: bytes) -> None:
        event = parse(text)
        if isinstance(event, NodeEnded):
            self.node_ended = {name: value for name, value in event.to_json().items() if name in _NODE_ENDED_FIELDS}

    def _write_event(self, kind: str, **fields: Any) -> None:
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


def _with_memory_cause(error: dict[str, Any], why: str) -> dict[str, Any]:
    """The launcher's account of a kill, with what the engine knows about the memory."""
    message = str(error["message"]).removesuffix(" (out of host memory?)")
    if why:
        return {**error, "message": f"{message} ({why})"}
    return {"hint": KILLED_FROM_OUTSIDE, **error, "message": message}


def _is_sigkill(error: dict[str, Any]) -> bool:
    """Whether an error comes of a process that was killed: a rank, or a worker of its DataLoader."""
    text = f"{error.get('exception')}: {error.get('message')}"
    return "SIGKILL" in text or "signal: Killed" in text


def _is_dataloader_worker(error: dict[str, Any]) -> bool:
    return "DataLoader worker" in str(error.get("message"))


def _exit_message(code: int, last: str) -> str:
    if code == 0:
        return "its container ended well, but the launcher never spoke: the image's python3 is none"
    if code - 128 in list(signal.Signals):
        return f"its container was killed by {signal.Signals(code - 128).name}"
    return f"its container exited with code {code}" + (f": {last}" if last else " and said nothing")
