"""Functions for a training script in a job: events, metrics, result. Standard library only.

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
"""Maximum for an atomic write to a pipe: below PIPE_BUF, 4096 on Linux (POSIX write(2))."""

SIGNED_EVENTS = ("rank_started", "rank_ended", "rank_failed", "error", "warning")
"""Events about the rank itself, accepted only from the process that the launcher started for it.

A similar line from a program, say another job's log, is text.
"""

MAX_VALUES_BYTES = MAX_LINE_BYTES - 600
"""Space for the values of a metrics event, beside the common fields."""
MAX_NAME_BYTES = MAX_VALUES_BYTES - 40
"""Maximum length of a value's name in JSON."""


class _Event(Protocol):
    """Interface of the launcher's event classes, without an import: this module works alone."""

    @property
    def type(self) -> str: ...

    def fields(self) -> dict[str, Any]: ...


_last_seq = 0
_seq_lock = threading.Lock()
_output_fd = 1
_key = ""


def emit(kind: str, /, **fields: Any) -> None:
    """Write an event as one line of output, in a single write of at most `MAX_LINE_BYTES`.

    Fields must be JSON values; the longest strings are shortened to fit. Raise ValueError if the
    line is still too long, TypeError for a value that is not JSON.
    """
    line = event_line(kind, **fields)
    if kind in SIGNED_EVENTS and _key:
        line = signed_marker(_key).encode() + line[len(MARKER) :]
    # A program may have closed or replaced its output.
    with suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError):
        os.write(_output_fd, line)


def emit_event(event: _Event, /) -> None:
    """Write an event of `cloudtrain_launcher.events`, as `emit` does."""
    emit(event.type, **event.fields())


def set_output(descriptor: int, key: str = "") -> None:
    """Write events to another file descriptor than standard output, which a program may close.

    `key`: the secret by which the launcher recognises this process.
    """
    global _output_fd, _key
    _output_fd = descriptor
    _key = key


def signed_marker(key: str) -> str:
    """Return the marker: with the key for `SIGNED_EVENTS`, if there is one, else `MARKER`."""
    return f"{MARKER.rstrip(': ')}:{key}:: "


def event_line(kind: str, /, **fields: Any) -> bytes:
    """Return the event's line, at most `MAX_LINE_BYTES` long. Raise ValueError if too long.

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
    """Report named numbers on rank 0; do nothing on other ranks, which clouds would count twice.

    Values that exceed a line are sent as several events of the same step. NaN and infinity are sent
    as null. Raise ValueError for a name too long for a line, and ValueError or TypeError for a
    value that is not a number.
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
    """Report progress of training, at most a few times a second; do nothing on ranks other than 0.

    `steps`: the total number, for the remaining time. `values`: `epoch` and `epochs`, `loss`,
    `samples_per_s`.
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
    """Report the number of evaluations before the first step; do nothing on ranks other than 0.

    A forecast then includes them before the first one. `evaluation_samples`, `step_samples`:
    samples of an evaluation and of a training step over all ranks, to estimate an evaluation's
    time.
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
    """Report an activity during the block, such as `evaluating`; do nothing on ranks other than 0.

    With `timed`, `evaluating` and `saving` are separate from the program's other time, on all
    ranks.
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
"""Activities whose time is reported separately."""


class _StepTimer:
    """Seconds by phase since the last report of this process; counted from the first step."""

    LOOK_SECONDS = 0.005
    """Minimum time between reads of DDP's measurements."""

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
        """Start another phase; return the ended one."""
        time_now = time.perf_counter()
        before = self.phase
        if self._began:
            self._seconds[before] = self._seconds.get(before, 0.0) + time_now - self._since
        elif phase == "data":
            self._began = time_now
            self._reported = time_now
            self._delayed = _run_delay()
        self.phase = phase
        self._since = time_now
        return before

    def watch(self, ddp: Any) -> None:
        """Read this model's communication waits; None: unknown."""
        self._logger = getattr(ddp, "logger", None)
        if self._logger is not None and getattr(ddp, "device_type", "") == "cpu":
            ddp._set_ddp_runtime_logging_sample_rate(1)
        if self._logger is not None:
            sent = (parameter for parameter in ddp.parameters() if parameter.requires_grad)
            self._message_bytes = sum(
                parameter.numel() * parameter.element_size() for parameter in sent
            )

    def step_done(self) -> None:
        """End a step; report the first one, and later ones from time to time."""
        self.enter("other")
        self._steps += 1
        if self._logger is not None and self._since - self._looked >= self.LOOK_SECONDS:
            statistics = self._logger._get_ddp_logging_data().ints_map
            waited = statistics.get("backward_comm_time", 0) - statistics.get(
                "backward_compute_comm_overlap_time", 0
            )
            self._waited = self._waited + max(0, waited) / 1e9
            self._looks = self._looks + 1
            self._looked = self._since
        self.report_if_due(
            0.0 if self._total == 0 else min(60.0, max(0.5, (self._since - self._began) / 60))
        )

    def report_if_due(self, pause: float) -> None:
        """Report if there were steps and the last report is that many seconds old."""
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
    """Return the seconds in which this thread was ready but had no core; None if unknown."""
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
    """Return JSON as in RFC 8259: NaN and infinity become null. `options`: for `json.dumps`."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_replace_non_finite(value), allow_nan=False, **options)


def write_result(outcome: str, **fields: Any) -> None:
    """Report training's outcome, "succeeded" or "stopped", to the launcher. Call it on all ranks.

    Each node's first rank writes its node's file: a node whose ranks stopped on another node's
    request has not succeeded. torchrun exits with 1 after every SIGTERM, so the launcher reads this
    file instead. Do nothing outside a job.
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
    """Return the value with None for every float that is not finite."""
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _split_values(numbers: dict[str, float]) -> Iterator[dict[str, float]]:
    """Yield the numbers in order, in parts that each fit into one line."""
    part: dict[str, float] = {}
    free_bytes = MAX_VALUES_BYTES
    for name, number in numbers.items():
        need = len(json.dumps({name: number}))
        if part and need > free_bytes:
            yield part
            part = {}
            free_bytes = MAX_VALUES_BYTES
        part[name] = number
        free_bytes -= need
    yield part


def _next_seq() -> int:
    """Return a number that always increases, across restarts too: the clock in ns, or one more."""
    global _last_seq
    with _seq_lock:  # threads emit events, too
        _last_seq = max(_last_seq + 1, time.time_ns())
        return _last_seq
