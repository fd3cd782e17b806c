"""Matches a pattern with many wildcards in time that is linear in the path: all ways are followed at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

STAR, DEEP, ANY = "[^/]*", "(?:.*/)?", ".*"
"""Within a folder; any number of whole folders; anything."""

FEW = 2
"""So many wildcards a regular expression takes well; with more it may go back and try again without end."""

Fits = Callable[[str], object]
"""Whether a whole path fits."""


def matcher(pieces: Sequence[str]) -> Fits:
    """For a pattern in pieces: wildcards, and regular expressions of one character each. re.error if one is none."""
    expression = re.compile("".join(pieces), re.DOTALL)
    if sum(piece in (STAR, DEEP, ANY) for piece in pieces) <= FEW:
        return expression.fullmatch
    steps = [piece if piece in (STAR, DEEP, ANY) else re.compile(piece, re.DOTALL) for piece in pieces]
    return lambda path: _fits(steps, path)


def _fits(steps: Sequence[str | re.Pattern[str]], path: str) -> bool:
    """`at` holds every step that may come next; `within` the `DEEP` ones that are in the middle of their folders."""
    at, within = _reach(steps, {0}), set[int]()
    for char in path:
        inside = {step for step in at if steps[step : step + 1] == [DEEP]} | within
        then = {step + 1 for step in inside if char == "/"}
        for step in at:
            wanted = steps[step] if step < len(steps) else ""
            if wanted == ANY or (wanted == STAR and char != "/"):
                then.add(step)
            elif isinstance(wanted, re.Pattern) and wanted.fullmatch(char):
                then.add(step + 1)
        at, within = _reach(steps, then), inside
        if not at and not within:
            return False
    return len(steps) in at


def _reach(steps: Sequence[str | re.Pattern[str]], found: set[int]) -> set[int]:
    """These, and what comes behind wildcards that stand for nothing."""
    todo = list(found)
    while todo:
        step = todo.pop()
        if step < len(steps) and isinstance(steps[step], str) and step + 1 not in found:
            found.add(step + 1)
            todo.append(step + 1)
    return found
