"""Rule of a known failure: its signs in a log, cause, remedy, and advice about a restart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

Restart = Literal["retry", "never", "after a change"]
"""Advice about a restart.

`retry`: the same job may succeed; `never`: the work is done, or another job is needed; `after a
change`: the same job would fail again.
"""

SAGEMAKER_TRUST = "the role (aws.role) must trust sagemaker.amazonaws.com: look at its trust policy"

KILLED_FROM_OUTSIDE = (
    "the engine saw no process of this container killed for want of memory: somebody or something"
    " sent the signal (docker kill, docker stop, kill -9)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Known failure. The first of `RULES` that matches a line explains it."""

    name: str
    """Stable name in lower case with hyphens: `gpu-out-of-memory`."""
    patterns: tuple[str, ...] = ()
    """Regular expressions of lines that name this cause. Fast on hostile lines, too."""
    places: tuple[str, ...] = ()
    """Regular expressions of `Raised.described`: an exception and its place.

    They identify a failure by its package or function, if no pattern matches.
    """
    suggests: tuple[str, ...] = ()
    """Regular expressions of lines that may have another cause, too."""
    unless: str = ""
    """Regular expression that must not match the same line."""
    cause: str
    """Cause: one sentence without its full stop."""
    remedy: str
    """Remedy: one sentence."""
    remedies: tuple[tuple[str, str], ...] = ()
    """Remedies of special cases: regular expression of a line, and the remedy with its groups."""
    restart: Restart = "after a change"
    source: str
    """Address of documentation or a discussion."""
    is_consequence: bool = False
    """True if another process caused it: a root cause only for want of another."""
    is_symptom: bool = False
    """True if it shows how a process ended and not why, such as by SIGKILL."""

    def matches(self, text: str) -> bool:
        """Return True if a line, or a message of several lines, shows this failure."""
        if not _joined(self.patterns + self.suggests).search(text):
            return False
        return not (self.unless and _compiled(self.unless).search(text))

    def names_cause(self, text: str) -> bool:
        """Return True if this is the only possible cause of a matching line."""
        is_sure = not self.is_consequence and not self.is_symptom
        return is_sure and any(_compiled(pattern).search(text) for pattern in self.patterns)

    def knows_place(self, described: str) -> bool:
        """Return True if an exception is known by the place where it was raised."""
        return any(_compiled(place).search(described) for place in self.places)

    def remedy_for(self, text: str) -> str:
        """Return the remedy for the matching line."""
        return fitting(self.remedies, text) or self.remedy


def fitting(texts: tuple[tuple[str, str], ...], text: str) -> str:
    """Return the first text whose expression is found, with its groups; empty without a match."""
    for pattern, remedy in texts:
        if match := _compiled(pattern).search(text):
            return remedy.format(**match.groupdict())

    return ""


@cache
def _joined(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
