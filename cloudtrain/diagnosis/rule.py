"""Rule of a known failure: its signs in a log, cause, remedy, and advice about a restart."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

Restart = Literal["retry", "never", "after a change"]
"""Advice about a restart.

`retry`: the same job may succeed; `never`: the work is done, or another job is needed; `after a
change`: the same job would fail again.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Known failure. The first of `RULES` that matches a line explains it."""

    name: str
    """Stable name in lower case with hyphens: `gpu-out-of-memory`."""
    patterns: tuple[str, ...]
    """Regular expressions; at least one must match a line. Fast on hostile lines, too."""
    places: tuple[str, ...] = ()
    """Regular expressions of `Raised.described`: an exception and its place.

    They identify a failure by its package or function, if no pattern matches.
    """
    unless: str = ""
    """Regular expression that must not match the same line."""
    cause: str
    """Cause: one sentence without its full stop."""
    remedy: str | Callable[[str], str]
    """Remedy: one sentence, or a function of the matching line."""
    restart: Restart = "after a change"
    source: str
    """Address of documentation or a discussion."""
    is_consequence: bool = False
    """True if another process caused it: a root cause only if nothing else is known."""
    is_symptom: bool = False
    """True if it shows how a process ended and not why, such as by SIGKILL."""

    def matches(self, text: str) -> bool:
        """Return True if a line, or a message of several lines, shows this failure."""
        if not _joined(self.patterns).search(text):
            return False
        return not (self.unless and _compiled(self.unless).search(text))

    def knows_place(self, described: str) -> bool:
        """Return True if an exception is known by the place where it was raised."""
        return any(_compiled(place).search(described) for place in self.places)

    def remedy_for(self, text: str) -> str:
        """Return the remedy for the matching line."""
        return self.remedy if isinstance(self.remedy, str) else self.remedy(text)


@cache
def _joined(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
