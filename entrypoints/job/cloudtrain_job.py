"""Functions for a training script in a job: events, metrics, result. Standard library only.

    from cloudtrain_job import log_metrics
    log_metrics(step=100, loss=0.25, val_accuracy=0.93)

An event is one line of standard output with a marker, so that it passes through every platform's
log unchanged: `::cloudtrain:: {"type": "metrics", "time": 1795213216.1, "node": 0, "rank": 0,
"seq": 17952…, …}`. (node, rank, seq) identifies an event: a reader that sees it twice counts it
once. Without a launcher, metrics and progress are printed for people.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

MARKER = "::cloudtrain:: "
LISTENER = "CLOUDTRAIN_STREAM_DIR"
"""Variable of a process whose output a launcher reads."""
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

_last_seq = 0
_seq_lock = threading.Lock()
_output_fd = 1
_key = ""

_Batch = TypeVar("_Batch")
_PHASES = {"evaluating": "evaluation", "saving": "saving"}
"""Activities whose time is reported separately."""


def emit(kind: str, /, **fields: Any) -> None:
    """Write an event as one line of output, in a single write of at most `MAX_LINE_BYTES`.

    Where no launcher listens, write what people want to read of it.

    Fields must be JSON values; the longest strings are shortened to fit. Raise ValueError if the
    line is still too long, TypeError for a value that is not JSON.
    """
    line = event_line(kind, **fields)
    if LISTENER not in os.environ and _output_fd == 1:
        line = _for_people(kind, fields)
    if kind in SIGNED_EVENTS and _key:
        line = signed_marker(_key).encode() + line[len(MARKER) :]
    # A program may have closed or replaced its output.
    with suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError):
        os.write(_output_fd, line)


def emit_event(event: Any, /) -> None:
    """Write an event of `cloudtrain_wire.events`, as `emit` does."""
    emit(event.type, **event.fields())


def set_output(descriptor: int, key: str = "") -> None:
    """Write events to another file descriptor than standard output, which a program may close.

    `key`: the secret by which the launcher recognises this process.
    """
    global _output_fd, _key
    _output_fd = descriptor
    _key = key


def _for_people(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return `step 100  loss 0.25` for metrics and progress; nothing for other events."""
    if kind not in ("metrics", "progress"):
        return b""

    words = []
    for name, value in {**fields, **fields.get("values", {})}.items():
        if isinstance(value, int):
            words.append(f"{name} {value}")
        elif isinstance(value, float):
            words.append(f"{name} {value:.6g}")

    return ("  ".join(words) + "\n").encode("utf-8", "replace")


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
        "rank": _rank(),
        "seq": _next_seq(),
        **fields,
    }
    line = _encode(event)
    while len(line) > MAX_LINE_BYTES:
        texts = [name for name, value in event.items() if isinstance(value, str)]
        longest = max(texts, key=lambda name: len(event[name]))
        if len(event[longest]) < 64:
            raise ValueError(
                f"event {kind!r} is {len(line)} bytes long; at most {MAX_LINE_BYTES} can be sent"
                " whole"
            )
        keep = max(32, len(event[longest]) - (len(line) - MAX_LINE_BYTES) - 8)
        event[longest] = "… " + event[longest][-keep:]
        line = _encode(event)
    return line


def _rank() -> int:
    """Return this process's rank: of a command that is no rank, its node's; -1 outside a job."""
    return int(os.environ.get("RANK") or os.environ.get("CLOUDTRAIN_NODE_RANK") or -1)


def _is_first() -> bool:
    """Return whether this is the first rank; of a command, the first process of its first node.

    Libraries that start ranks in a command may set `LOCAL_RANK` alone.
    """
    return _rank() <= 0 and os.environ.get("LOCAL_RANK", "0") == "0"


def log_metrics(step: int | None = None, epoch: int | None = None, **values: float) -> None:
    """Report named numbers on rank 0; do nothing on other ranks, which clouds would count twice.

    Values that exceed a line are sent as several events of the same step. NaN and infinity are sent
    as null. Raise ValueError for a name too long for a line, and ValueError or TypeError for a
    value that is not a number.
    """
    if not _is_first():
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
    if _is_first():
        numbers = {name: _whole_or_number(value) for name, value in values.items()}
        emit("progress", step=step, steps=steps, **numbers)


def log_schedule(
    evaluations: int, *, evaluation_samples: int | None = None, step_samples: int | None = None
) -> None:
    """Report the number of evaluations before the first step; do nothing on ranks other than 0.

    The remaining time then includes them before the first one. `evaluation_samples`, `step_samples`:
    samples of an evaluation and of a training step over all ranks, to estimate an evaluation's
    time.
    """
    samples = {"evaluation_samples": evaluation_samples, "step_samples": step_samples}
    if _is_first():
        known = {name: n for name, n in samples.items() if n is not None}
        emit("schedule", evaluations=evaluations, **known)


@contextmanager
def activity(name: str) -> Iterator[None]:
    """Report an activity during the block, such as `evaluating`; do nothing on ranks other than 0.

    With `timed`, `evaluating` and `saving` are separate from the program's other time, on all
    ranks.
    """
    is_first = _is_first()
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
    watch(ddp)
    end_step("data")
    try:
        for batch in batches:
            _timer.enter("compute")
            yield batch
            end_step("data")
    finally:
        _timer.enter("other")
        if _timer.steps and time.perf_counter() - _timer.reported >= 0.5:
            emit("step_times", **_timer.take())


def watch(ddp: Any) -> None:
    """Read how long this DistributedDataParallel waits for messages; None: unknown."""
    _timer.watch(ddp)


def waits_for_data() -> bool:
    """Return whether this process counts a wait for a batch."""
    return _timer.phase == "data"


def end_step(phase: str) -> None:
    """End the training step that computes, if there is one; report if due; start a phase."""
    if _timer.phase != "compute":
        _timer.enter(phase)
        return

    _timer.step_done(phase)
    if _timer.due():
        emit("step_times", **_timer.take())


def _run_delay() -> float | None:
    """Return the seconds in which this thread was ready but had no core; None if unknown."""
    with suppress(OSError, ValueError, IndexError):
        schedule = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        return int(schedule.read_bytes().split()[1]) / 1e9
    return None


class StepTimer:
    """Seconds by phase since the last report of this process; counted from the first step.

    `message_bytes`: of the gradients that a step exchanges. `run_delay`: seconds in which this
    thread was ready but had no core; None: unknown.
    """

    LOOK_SECONDS = 0.05
    """Minimum time between reads of DDP's measurements."""
    PHASES: tuple[str, ...] = ("data", "compute", "saving", "evaluation", "other")

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        run_delay: Callable[[], float | None] = _run_delay,
    ) -> None:
        self.phase = "other"
        self.steps = 0
        """Steps since the last report."""
        self.message_bytes = 0
        self._clock = clock
        self._run_delay = run_delay
        self._seconds = dict.fromkeys(self.PHASES, 0.0)
        self._began = self.reported = self._since = self._looked = 0.0
        self._total = self._looks = 0
        self._waited = 0.0
        self._unseen = 0
        """Steps since the last read of DDP's measurements."""
        self._logger: Any = None
        self._set_rate: Callable[[int], None] | None = None
        self._delayed: float | None = None

    def start(self) -> None:
        """Start at zero."""
        self._began = self.reported = self._since = self._clock()
        self._seconds = dict.fromkeys(self.PHASES, 0.0)
        self.steps = self._total = 0
        self._delayed = self._run_delay()

    def enter(self, phase: str) -> str:
        """Start another phase; return the ended one."""
        before = self.phase
        if self._began:
            time_now = self._clock()
            self._seconds[before] += time_now - self._since
            self._since = time_now
        elif phase == "data":
            self.start()
        self.phase = phase
        return before

    def watch(self, ddp: Any) -> None:
        """Read this model's communication waits; None: unknown.

        Torch measures a few: the first ten, then each hundredth (reducer_timer.hpp), on a CPU here
        one in `LOOK_SECONDS`.
        """
        self._logger = getattr(ddp, "logger", None)
        self._set_rate = None
        if self._logger is not None and getattr(ddp, "device_type", "") == "cpu":
            self._set_rate = ddp._set_ddp_runtime_logging_sample_rate
        if self._logger is not None:
            sent = [p for p in ddp.parameters() if p.requires_grad]
            self.message_bytes = sum(p.numel() * p.element_size() for p in sent)

    def step_done(self, phase: str = "other") -> None:
        """End a step, and start another phase."""
        self.enter(phase)
        self.steps += 1
        self._unseen += 1
        if self._logger is not None and self._since - self._looked >= self.LOOK_SECONDS:
            nanoseconds = self._logger._get_ddp_logging_data().ints_map
            waited = nanoseconds.get("backward_comm_time", 0)
            waited -= nanoseconds.get("backward_compute_comm_overlap_time", 0)
            self._waited += max(0, waited) / 1e9
            self._looks += 1
            self._looked = self._since
            if self._set_rate is not None:
                self._set_rate(self._unseen)

            self._unseen = 0

    def due(self) -> bool:
        """Return whether a report is due: at the first step, then after 0.5 s, later a minute."""
        pause = min(60.0, max(0.5, (self._since - self._began) / 60))
        return self._total == 0 or self._since - self.reported >= pause

    def split(self) -> dict[str, float]:
        """Return the seconds by phase since the last report."""
        seconds = dict(self._seconds)
        if self._looks:
            waited = min(seconds["compute"], self.steps * self._waited / self._looks)
            seconds["compute"] -= waited
            seconds["communication"] = seconds.get("communication", 0.0) + waited
        return seconds

    def take(self) -> dict[str, Any]:
        """Return the fields of an event about the time since the last report."""
        self.enter(self.phase)
        fields: dict[str, Any] = {
            "steps": self.steps,
            "step": self._total + self.steps,
            "wall": round(self._since - self.reported, 6),
        }
        if self._total < 2:
            fields["warm_up"] = True
        for name, value in self.split().items():
            fields[name] = round(value, 6)

        delayed = self._delayed
        self._delayed = self._run_delay()
        if delayed is not None and self._delayed is not None:
            fields["run_delay"] = round(max(0.0, self._delayed - delayed), 6)
        if self.message_bytes:
            fields["message_mb"] = round(self.message_bytes / 1e6, 3)
        self._seconds = dict.fromkeys(self.PHASES, 0.0)
        self._total += self.steps
        self.steps = self._looks = 0
        self._waited = 0.0
        self.reported = self._since
        return fields


_timer = StepTimer()


def _whole_or_number(value: Any) -> float:
    if isinstance(value, int):
        return value

    return _number(value)


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
    """Return a JSON value with None for every float that is not finite."""
    if isinstance(value, Mapping):
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
