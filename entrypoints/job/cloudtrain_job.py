"""What a training script can use inside a job: events, metrics and the result. Standard library
only.

    from cloudtrain_job import log_metrics
    log_metrics(step=100, loss=0.25, val_accuracy=0.93)

An event is one line of standard output with a marker, so that it passes through every platform's
log unchanged: `::cloudtrain:: {"type": "metrics", "time": 1795213216.1, "node": 0, "rank": 0,
"seq": 17952…, …}`. (node, rank, seq) identifies an event: a reader that sees it twice counts it
once.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

MARKER = "::cloudtrain:: "
MAX_LINE_BYTES = 4000
"""Below PIPE_BUF (4096 on Linux), up to which a write to a pipe is atomic (POSIX write(2))."""

SIGNED_EVENTS = ("rank_started", "rank_ended", "rank_failed", "error", "warning")
"""Events about the rank itself. The launcher accepts them only from the process that it started for
the rank: a line that looks like one and that a program prints, say the log of another job, is text.
"""

MAX_VALUES_BYTES = MAX_LINE_BYTES - 600
"""For the values of a metrics event, beside the fields that every event has."""
MAX_NAME_BYTES = MAX_VALUES_BYTES - 40
"""Of one value's name, as JSON writes it."""


class _Event(Protocol):
    """An event of the launcher's classes, which this module does not import: it can be used alone."""

    @property
    def type(self) -> str: ...

    def fields(self) -> dict[str, Any]: ...


_last_seq = 0
_seq_lock = threading.Lock()
_output_fd = 1
_key = ""


def emit(kind: str, /, **fields: Any) -> None:
    """Write an event as one line of output, in a single write of at most `MAX_LINE_BYTES`.

    Fields must be JSON values; the longest strings are shortened to fit. ValueError if the line is
    still too long; TypeError for a value that JSON cannot hold.
    """
    line = event_line(kind, **fields)
    if kind in SIGNED_EVENTS and _key:
        line = signed_marker(_key).encode() + line[len(MARKER) :]
    with suppress(
        AttributeError, OSError, ValueError
    ):  # a program may have closed or replaced its output
        sys.stdout.flush()
    with suppress(OSError):
        os.write(_output_fd, line)


def emit_event(event: _Event, /) -> None:
    """Write an event of `cloudtrain_launcher.events`, as `emit` does."""
    emit(event.type, **event.fields())


def set_output(descriptor: int, key: str = "") -> None:
    """Write events to a file descriptor other than standard output, which a program may close.

    `key`: the secret by which the launcher recognises this process.
    """
    global _output_fd, _key
    _output_fd = descriptor
    _key = key


def signed_marker(key: str) -> str:
    """The marker of `SIGNED_EVENTS` from a process that has the key; all other events begin with
    `MARKER`.
    """
    return f"{MARKER.rstrip(': ')}:{key}:: "


def event_line(kind: str, /, **fields: Any) -> bytes:
    """The line of an event with its newline, at most `MAX_LINE_BYTES` long; ValueError if it cannot
    be made to fit.

    The longest strings are shortened first, from their beginning.
    """
    event: dict[str, Any] = {
        "type": kind,
        "time": round(time.time(), 3),
        "node": int(os.environ.get("CLOUDTRAIN_NODE_RANK", "0")),
        "rank": int(os.environ.get("RANK", "-1")),
        "seq": _next_seq(),
        **fields,
    }
    line = _encode(event)
    while len(line) > MAX_LINE_BYTES:
        longest = max(
            (k for k in event if isinstance(event[k], str)),
            key=lambda k: len(event[k]),
            default=None,
        )
        if longest is None or len(event[longest]) < 64:
            raise ValueError(
                f"event {kind!r} is {len(line)} bytes long; at most {MAX_LINE_BYTES} can be sent"
                " whole"
            )
        keep = max(32, len(event[longest]) - (len(line) - MAX_LINE_BYTES) - 8)
        event[longest] = "… " + event[longest][-keep:]
        line = _encode(event)
    return line


def log_metrics(step: int | None = None, epoch: int | None = None, **values: float) -> None:
    """Report named numbers; does nothing on ranks other than 0, since the clouds would count them
    twice.

    Values that one line cannot hold are sent as several events of the same step. NaN and infinity
    are sent as null. Raises ValueError for a name too long for a line, and ValueError or TypeError
    for a value that is not a number.
    """
    if int(os.environ.get("RANK", "0")) != 0:
        return
    numbers = {name: _number(value) for name, value in values.items()}
    for name in numbers:
        if len(json.dumps(name)) > MAX_NAME_BYTES:
            raise ValueError(
                f"log_metrics: a name of {len(name)} characters is too long: {name[:40]!r}…"
            )
    for part in _split_values(numbers):
        emit("metrics", step=step, epoch=epoch, values=part)


def log_progress(step: int, steps: int | None = None, **values: float) -> None:
    """Report how far training has got, at most a few times a second; does nothing on ranks other
    than 0.

    `steps`: how many there are in all, by which the time that is left is told. `values`: `epoch`
    and `epochs`, `loss`, `samples_per_s`.
    """
    if int(os.environ.get("RANK", "0")) == 0:
        emit(
            "progress",
            step=step,
            steps=steps,
            **{name: _whole_or_number(value) for name, value in values.items()},
        )


def log_schedule(
    evaluations: int, *, evaluation_samples: int | None = None, step_samples: int | None = None
) -> None:
    """Report, before the first step, how many evaluations there will be in all; does nothing on
    ranks other than 0.

    A forecast then counts them before it has seen one. `evaluation_samples`, `step_samples`: how
    many samples an evaluation and a training step have over all ranks, by which it tells about how
    long an evaluation takes.
    """
    samples = {"evaluation_samples": evaluation_samples, "step_samples": step_samples}
    if int(os.environ.get("RANK", "0")) == 0:
        emit(
            "schedule",
            evaluations=evaluations,
            **{name: n for name, n in samples.items() if n is not None},
        )


@contextmanager
def activity(name: str) -> Iterator[None]:
    """Say what the job is doing while the block runs, such as `evaluating`; ranks other than 0 send
    nothing.

    Of a program that uses `timed`, `evaluating` and `saving` are told apart from its other time, on
    all ranks.
    """
    is_first = int(os.environ.get("RANK", "0")) == 0
    if is_first:
        emit("activity", activity=name)
    before = _timer.enter(_PHASES.get(name, _timer.phase))
    try:
        yield
    finally:
        _timer.enter(before)
        if is_first:
            emit("activity", activity="")


def timed(batches: Iterable[_Batch], ddp: Any = None) -> Iterator[_Batch]:
    """The same batches, one for each training step; each rank reports how long it waits for them,
    and works on them.

        for batch in timed(loader):
            ...

    `ddp`: the model, if it is a DistributedDataParallel, which knows how long it waits for messages
    of other ranks. On a GPU these are the times of the host, which waits where the GPU is behind.
    """
    _timer.watch(ddp)
    _timer.enter("data")
    try:
        for batch in batches:
            _timer.enter("compute")
            yield batch
            _timer.step_done()
            _timer.enter("data")
    finally:
        _timer.enter("other")
        _timer.report_if_due(0.5)


_Batch = TypeVar("_Batch")
_PHASES = {"evaluating": "evaluation", "saving": "saving"}
"""Activities whose time is told apart."""


class _StepTimer:
    """Seconds by phase since the last report of this process; before the first step nothing counts."""

    LOOK_SECONDS = 0.005
    """Shortest time between two looks at what DDP has measured."""

    def __init__(self) -> None:
        self.phase = "other"
        self._since = 0.0
        self._seconds = dict[str, float]()
        self._began = self._reported = self._looked = 0.0
        self._steps = self._total = self._looks = 0
        self._waited = 0.0
        self._logger = None
        self._message_bytes = 0
        self._delayed: float | None = None

    def enter(self, phase: str) -> str:
        """Another phase begins; returns the one that has ended."""
        now = time.perf_counter()
        before = self.phase
        if self._began:
            self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        elif phase == "data":
            self._began = now
            self._reported = now
            self._delayed = _run_delay()
        self.phase = phase
        self._since = now
        return before

    def watch(self, ddp: Any) -> None:
        """Read how long this model waits for messages; None: that is not known."""
        self._logger = getattr(ddp, "logger", None)
        if self._logger is not None and getattr(ddp, "device_type", "") == "cpu":
            ddp._set_ddp_runtime_logging_sample_rate(1)
        if self._logger is not None:
            sent = (each for each in ddp.parameters() if each.requires_grad)
            self._message_bytes = sum(each.numel() * each.element_size() for each in sent)

    def step_done(self) -> None:
        """A step has ended; reports the first one, and then from time to time."""
        self.enter("other")
        self._steps += 1
        if self._logger is not None and self._since - self._looked >= self.LOOK_SECONDS:
            found = self._logger._get_ddp_logging_data().ints_map
            waited = found.get("backward_comm_time", 0) - found.get(
                "backward_compute_comm_overlap_time", 0
            )
            self._waited = self._waited + max(0, waited) / 1e9
            self._looks = self._looks + 1
            self._looked = self._since
        self.report_if_due(
            0.0 if self._total == 0 else min(60.0, max(0.5, (self._since - self._began) / 60))
        )

    def report_if_due(self, pause: float) -> None:
        """Report, if there were steps, and the last report is so many seconds ago."""
        if not self._steps or self._since - self._reported < pause:
            return
        seconds = {
            name: self._seconds.get(name, 0.0)
            for name in ("data", "compute", "saving", "evaluation", "other")
        }
        if self._looks:
            waited = min(seconds["compute"], self._steps * self._waited / self._looks)
            seconds |= {"compute": seconds["compute"] - waited, "communication": waited}
        marks = {"warm_up": True} if self._total < 2 else {}
        self._total += self._steps
        fields: dict[str, Any] = {
            "steps": self._steps,
            "step": self._total,
            "wall": round(self._since - self._reported, 6),
            **marks,
        }
        delayed = self._delayed
        self._delayed = _run_delay()
        if delayed is not None and self._delayed is not None:
            fields["run_delay"] = round(self._delayed - delayed, 6)
        if self._message_bytes:
            fields["message_mb"] = round(self._message_bytes / 1e6, 3)
        emit("step_times", **fields, **{name: round(value, 6) for name, value in seconds.items()})
        self._seconds = {}
        self._steps = 0
        self._waited = 0.0
        self._looks = 0
        self._reported = self._since


def _run_delay() -> float | None:
    """Seconds in which this thread could have run and had no core; None where the system does not
    tell.
    """
    with suppress(OSError, ValueError, IndexError):
        return (
            int(
                Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
                .read_bytes()
                .split()[1]
            )
            / 1e9
        )
    return None


_timer = _StepTimer()


def _whole_or_number(value: Any) -> float:
    return value if isinstance(value, int) else _number(value)


def _number(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def to_json(value: Any, **options: Any) -> str:
    """JSON text as RFC 8259 defines it: NaN and infinity become null. `options`: those of
    `json.dumps`.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_replace_non_finite(value), allow_nan=False, **options)


def write_result(outcome: str, **fields: Any) -> None:
    """Tell the node's launcher how training ended: "succeeded" or "stopped". Call it on all ranks.

    Each node's first rank writes the file for its node: a node whose ranks stopped because other
    nodes were asked to has not succeeded. torchrun exits with 1 after every SIGTERM, however well
    its workers ended; the launcher reads this file instead. Does nothing outside a job.
    """
    path = os.environ.get("CLOUDTRAIN_RESULT_FILE")
    if path and int(os.environ.get("LOCAL_RANK", "0")) == 0:
        temporary = Path(path + ".tmp")
        temporary.write_text(to_json({"outcome": outcome, **fields}))
        temporary.replace(path)


def _encode(event: dict[str, Any]) -> bytes:
    return (MARKER + to_json(event, ensure_ascii=False, separators=(",", ":")) + "\n").encode(
        "utf-8", "replace"
    )


def _replace_non_finite(value: Any) -> Any:
    """The value with None in place of every float that is not finite."""
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _split_values(numbers: dict[str, float]) -> Iterator[dict[str, float]]:
    """The numbers in their order, in parts that each fit into one line."""
    part: dict[str, float] = {}
    left = MAX_VALUES_BYTES
    for name, number in numbers.items():
        need = len(json.dumps({name: number}))
        if part and need > left:
            yield part
            part = {}
            left = MAX_VALUES_BYTES
        part[name] = number
        left -= need
    yield part


def _next_seq() -> int:
    """A number that always increases, also across restarts of the process: the clock in
    nanoseconds, or one more.
    """
    global _last_seq
    with _seq_lock:  # threads emit events, too
        _last_seq = max(_last_seq + 1, time.time_ns())
        return _last_seq
