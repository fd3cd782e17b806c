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

_MIN_LITERAL = 3
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|[()|?*+.^$]|[^\\]", re.DOTALL)


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
        for needed, pattern in _tests_of(self.patterns):
            for literal in needed:
                if literal in text:
                    break
            else:
                if needed:
                    continue
            if _compiled(pattern).search(text):
                return not (self.unless and _compiled(self.unless).search(text))
        return False

    def knows_place(self, described: str) -> bool:
        """Return True if an exception is known by the place where it was raised."""
        return any(_compiled(place).search(described) for place in self.places)

    def remedy_for(self, text: str) -> str:
        """Return the remedy for the matching line."""
        return self.remedy if isinstance(self.remedy, str) else self.remedy(text)


@cache
def _tests_of(patterns: tuple[str, ...]) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return the patterns with their literals: searching these first is much faster."""
    return tuple((needed_literals(pattern), pattern) for pattern in patterns)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def needed_literals(pattern: str) -> tuple[str, ...]:
    """Return literals such that every match contains one; empty if unknown.

     They are the longest plain text of each alternative, outside of groups. The flag (?i) leaves
    none.
    """
    if re.search(r"\(\?[a-zA-Z-]*i[a-zA-Z-]*[:)]", pattern):
        return ()
    literals = tuple(max(_pieces(branch), key=len, default="") for branch in _alternatives(pattern))
    return literals if all(len(piece) >= _MIN_LITERAL for piece in literals) else ()


def _alternatives(pattern: str) -> list[list[str]]:
    """Return the parts of each alternative at the top level; a group is an empty part."""
    branches: list[list[str]] = [[]]
    depth = 0
    for part in _PART.findall(pattern):
        if part == "(":
            depth += 1
            branches[-1].append("")
        elif part == ")":
            depth -= 1
        elif depth:
            continue
        elif part == "|":
            branches.append([])
        else:
            branches[-1].append(part)
    return branches


def _pieces(parts: list[str]) -> list[str]:
    """Return runs of plain characters; an optional or repeated character ends a run."""
    pieces = [""]
    for part in parts:
        if part in ("?", "*") or part.startswith("{"):
            pieces[-1] = pieces[-1][:-1]
            pieces.append("")
        elif len(part) == 1 and part not in ".^$+":
            pieces[-1] += part
        elif len(part) == 2 and part[0] == "\\" and not part[1].isalnum():
            pieces[-1] += part[1]
        else:
            pieces.append("")
    return pieces
