"""State of this node's ranks: attempt, finished ranks, first failure. Standard library only."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cloudtrain_launcher import failure
from cloudtrain_launcher.contract import PAYLOAD_DIR, Job
from cloudtrain_launcher.error_details import CrashOutput
from cloudtrain_launcher.library_metrics import library_metrics, may_have_metrics
from cloudtrain_launcher.reporting import emit, log, mask_error
from cloudtrain_wire import causes
from cloudtrain_wire.events import (
    RESTART_ELSEWHERE,
    Error,
    Event,
    Metrics,
    RankEnded,
    RankFailed,
    RankStarted,
    Restarted,
    Warned,
)
from cloudtrain_wire.host_memory import OutOfMemoryKills
from cloudtrain_wire.processes import process_state

_ENDED = ("", "Z", "X")
"""States of a process that is gone or dead (proc(5))."""

LAST_TEXTS = 16
"""Number of texts of a rank's last output that are searched if it crashes."""

TEXT_CHARS = 1 << 16
"""Minimum length of these texts, but for the last one."""

MAX_LINE_CHARS = 2000
"""Maximum characters of a line to search."""

POSITIONS = ("step", "epoch")
"""Metrics that give the position of the other values."""


class RankTracker:
    """State of one node's ranks, from their events and output lines.

    `on_metrics` is called with the first rank's metrics, printed ones included.
    """

    def __init__(
        self, job: Job, node: int, on_metrics: Callable[[Metrics], None] = lambda _: None
    ) -> None:
        self._job = job
        self._node = node
        self._on_metrics = on_metrics
        self.errors: list[Error] = []
        """All errors of this node so far, over all attempts."""
        self.failures: list[RankFailed] = []
        """Processes that ended by themselves, until `report_failures` turns them into errors."""
        self.attempt = 0
        """Number of restarts of the ranks by torchrun."""
        self.finished: dict[int, float] = {}
        """Rank of this attempt that exited with code 0 -> Unix timestamp."""
        self._attempt_started = 0.0
        self._memory_kills = OutOfMemoryKills()
        self._ranks: dict[int, int] = {}
        """Local rank -> rank."""
        self._pids: dict[int, int] = {}
        """Local rank -> process id."""
        self._group_sizes: list[int] = []
        """Finished rank -> size of its torch.distributed group; 0: it used none."""
        self._last_output: dict[int, deque[str]] = {}
        """Local rank -> the end of what it has printed."""
        self._printed_metrics = PrintedMetrics(job.metrics, self._on_printed)

    def on_event(self, event: Event) -> None:
        """Process an event of a rank or of torchrun."""
        self._memory_kills.refresh()
        if isinstance(event, Error):
            self.errors.append(event)
        elif isinstance(event, RankFailed):
            self.failures.append(event)
        elif isinstance(event, RankEnded) and event.exitcode == 0:
            self.finished[event.rank] = event.time
            self._group_sizes.append(self._world_size if event.group is None else event.group)
        elif isinstance(event, RankStarted):
            self._ranks[event.local_rank] = event.rank
            self._pids[event.local_rank] = event.pid or 0
            self._last_output.pop(event.local_rank, None)
            if event.attempt > self.attempt:
                self._start_attempt(event)
        elif isinstance(event, Metrics) and event.rank == 0:
            self._on_metrics(event)

    def on_text(self, local_rank: int, text: str) -> None:
        """Process lines printed by a rank; ignore torchrun's own, of local rank -1."""
        self._memory_kills.refresh()
        if local_rank >= 0:
            texts = self._last_output.setdefault(local_rank, deque([""], LAST_TEXTS))
            if len(texts[-1]) < TEXT_CHARS:
                texts[-1] += f"\n{text}"
            else:
                texts.append(text)

        if self._ranks.get(local_rank) == 0:
            self._printed_metrics.on_text(text)

    def running(self) -> dict[int, int]:
        """Return local rank -> process id of started ranks whose process runs."""
        running = {}
        for local, pid in self._pids.items():
            if self._ranks[local] not in self.finished and process_state(pid) not in _ENDED:
                running[local] = pid

        return running

    def ended(self) -> list[int]:
        """Return the started ranks whose process has ended."""
        running = self.running()
        return [rank for local, rank in self._ranks.items() if local not in running]

    def rank_of(self, local_rank: int) -> int:
        """Return the rank of a local rank; -1 if it has not started."""
        return self._ranks.get(local_rank, -1)

    def report_failures(self, *, stopping: bool) -> None:
        """Turn failed processes into errors. Call it after reading all of their output.

        A rank that reported its own exception already has an error. During a stop a dead rank is
        not an error.
        """
        for failed in self.failures:
            rank = self.rank_of(failed.local_rank)
            errors = [error for error in self.errors if error.attempt == self.attempt]
            if failed.time < self._attempt_started:  # of an earlier attempt
                continue

            if failed.exitcode == 0:
                # os._exit(0) does not report the end of the rank, which precedes these errors
                first_error = min((error.time for error in errors), default=failed.time)
                self.finished.setdefault(rank, min(failed.time, first_error))
            elif not stopping and not any(error.rank == rank for error in errors):
                self.add_error(self._error_of(failed, rank))

        self.failures.clear()

    def add_error(self, error: Error) -> Error:
        """Record and emit an error of this node, with secrets masked; return it as recorded."""
        error = mask_error(error.replace(node=self._node, attempt=self.attempt))
        self.errors.append(error)
        emit(error)

        return error

    def first_cause(self) -> Error | None:
        """Return the first cause of the failure so far; None without errors."""
        finished = {rank: (self._node, when) for rank, when in self.finished.items()}
        return causes.first_cause(self.errors, finished)

    def trained_separately(self) -> bool:
        """Return whether the finished ranks were never together in one torch.distributed group."""
        return (
            self._world_size > 1
            and bool(self._group_sizes)
            and max(self._group_sizes) < self._world_size
        )

    def _on_printed(self, event: Event) -> None:
        emit(event)
        if isinstance(event, Metrics):
            self._on_metrics(event)

    @property
    def _world_size(self) -> int:
        return self._job.nodes * self._job.processes

    def _error_of(self, failed: RankFailed, rank: int) -> Error:
        output = CrashOutput()
        for text in self._last_output.get(failed.local_rank, ()):
            output.feed(text)

        finished = rank in self.finished
        short = self._memory_kills.any()
        reason = output.reason
        if failed.exitcode in failure.NOT_STARTED:
            reason = output.shell_reason

        error = failure.exit_error(
            rank,
            failed.exitcode,
            failed.time,
            finished=finished,
            reason=reason,
            memory_was_short=short,
        )

        if failed.exitcode < 0:
            return output.add_stack(error, Path.cwd(), PAYLOAD_DIR)

        return error

    def _start_attempt(self, event: RankStarted) -> None:
        """The first rank of a new attempt has started."""
        cause = self.first_cause()
        self.attempt = event.attempt
        self._attempt_started = event.time
        self.finished.clear()
        self._group_sizes.clear()
        is_of_this_node = cause is not None and not cause.consequence
        if cause and is_of_this_node:
            why = causes.one_line(cause)
        else:
            why = RESTART_ELSEWHERE

        emit(Restarted(attempt=self.attempt, why=why))
        log(self._node, f"restart {self.attempt} of {self._job.restarts}: {why}")


class PrintedMetrics:
    """Finder of numbers: by the job's expressions, or else in the lines of known libraries.

    `report` is called for each event. The client has rejected expressions with unlimited run time.
    """

    def __init__(self, expressions: Mapping[str, str], report: Callable[[Event], None]) -> None:
        self._report = report
        self._expressions: dict[str, re.Pattern[str]] = {}
        self._position: dict[str, float] = {}

        for name, text in expressions.items():
            try:
                self._expressions[name] = re.compile(text)
            except re.error as error:
                why = f"the expression is not valid in the Python of this job: {error}"
                report(Warned(message=f"metrics.{name}: {why}"))

    def on_text(self, text: str) -> None:
        """Search lines of the first rank for metrics."""
        if self._expressions or may_have_metrics(text):
            for line in text.split("\n"):
                self._on_line(line)

    def _on_line(self, line: str) -> None:
        values: dict[str, float] = {}

        for name, text in self._texts(line):
            value = _number(text)
            if value is not None:
                values[name] = value

        for name in POSITIONS:
            if name in values:
                self._position[name] = values.pop(name)

        if values:
            self._report(Metrics(rank=0, values=values).replace(**self._position))

    def _texts(self, line: str) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each number in a line."""
        if not self._expressions:
            yield from library_metrics(line[:MAX_LINE_CHARS]).items()

        for name, expression in self._expressions.items():
            match = expression.search(line, 0, MAX_LINE_CHARS)
            if match:
                yield name, match[1]


def _number(text: str | None) -> float | None:
    """Return the number in a text, such as `0.93.` at a sentence's end; None if not finite."""
    try:
        value = float((text or "").strip().rstrip("."))
    except ValueError:
        return None

    if not math.isfinite(value):
        return None

    if value.is_integer() and abs(value) < 2**53:
        return int(value)

    return value
