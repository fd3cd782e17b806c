"""Metrics in the first rank's output, found by the expressions of job.yaml. Standard library only.

The client has rejected expressions with unlimited run time. An expression that still takes too long
on a line is disabled, so that the job does not hang.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cloudtrain_launcher.events import Event, Metrics, Warned

MAX_LINE_CHARS = 2000
"""Maximum characters of a line to search."""

MAX_CPU_SECONDS = 0.2
"""Time limit for one expression on one line."""

POSITIONS = ("step", "epoch")
"""Metrics that give the position of the other values."""


class PrintedMetrics:
    """Finder of numbers, for the main thread. `report` is called for each event."""

    def __init__(self, expressions: Mapping[str, str], report: Callable[[Event], None]) -> None:
        self._report = report
        self._expressions: dict[str, re.Pattern[str]] = {}
        self._position: dict[str, float] = {}
        for name, text in expressions.items():
            try:
                self._expressions[name] = re.compile(text)
            except re.error as error:
                self._give_up(name, f"is not valid in the Python of this job: {error}")

    def on_line(self, line: str) -> None:
        """Search a line of the first rank for metrics."""
        values: dict[str, float] = {}
        for name, expression in list(self._expressions.items()):
            try:
                with _cpu_limit():
                    match = expression.search(line, 0, MAX_LINE_CHARS)
            except TimeoutError:
                self._give_up(name, f"took more than {MAX_CPU_SECONDS:g} s on one line")
                continue
            value = _number(match[1] if match else None)
            if value is not None:
                values[name] = value
        for name in POSITIONS:
            if name in values:
                self._position[name] = values.pop(name)
        if values:
            self._report(Metrics(rank=0, values=values).replace(**self._position))

    def _give_up(self, name: str, why: str) -> None:
        self._expressions.pop(name, None)
        self._report(
            Warned(
                message=f"metrics.{name}: the expression {why}; the search for this metric is disabled"
            )
        )


def _number(text: str | None) -> float | None:
    """Return the number in a text, such as `0.93.` at a sentence's end; None if not finite."""
    try:
        value = float((text or "").strip().rstrip("."))
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


@contextmanager
def _cpu_limit() -> Iterator[None]:
    """Raise TimeoutError in the block after `MAX_CPU_SECONDS` of CPU time; `re` allows signals."""
    is_limited = True

    def interrupt(*_: Any) -> None:
        if is_limited:
            raise TimeoutError

    try:
        before = signal.signal(signal.SIGVTALRM, interrupt)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_SECONDS)
        yield
    finally:
        is_limited = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
