"""Patterns of one ignore file, as pathspec reads them, matched against one entry at a time."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_SHORT = {".": ".+", "(?P<ps_d>/)": ".+/"}
"""pathspec's short forms of `*` and `*/` -> expressions that match a whole path."""


class IgnoreFile:
    """Rules of one file. `base` is its folder, "" or "a/b/"; paths start where `base` does."""

    def __init__(self, lines: Sequence[str], *, base: str = "") -> None:
        self._base = base
        rules = [rule for line in lines if (rule := _read_rule(line)) is not None]
        self._rules = rules[::-1]  # the last one that matches decides
        self._brought_back = [
            _plain_parts(line.strip().removeprefix("!")) for line in lines if line.startswith("!")
        ]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def ignores(self, path: str, is_folder: bool) -> bool | None:
        """Return True if an entry is ignored, False if a `!` rule brings it back, else None."""
        relative = path[len(self._base) :] + "/" * is_folder
        for regex, ignores in self._rules:
            if regex.fullmatch(relative):
                return ignores
        return None

    def may_bring_back_below(self, folder: str) -> bool:
        """Return whether a `!` rule could match something inside this folder."""
        parts = folder[len(self._base) :].split("/")
        return any(
            all(part == plain for part, plain in zip(parts, plain_parts, strict=False))
            for plain_parts in self._brought_back
        )


def _read_rule(line: str) -> tuple[re.Pattern[str], bool] | None:
    """Return the expression of a line, and whether it ignores what it matches.

    Return None for a comment, and for a pattern that git would never match.
    """
    # git lets `a/**` match what is in a, pathspec also a itself.
    line = re.sub(r"/\*\*(/?)$", r"/**/*\1", line.removesuffix("\r"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # `[[]` is valid in git
            pattern = GitIgnoreSpecPattern(line)
            if pattern.include is None or pattern.regex is None:
                return None
            text = pattern.regex.pattern
            return re.compile(_SHORT.get(text, text), re.DOTALL), pattern.include
    except (ValueError, re.error):
        return None


def _plain_parts(pattern: str) -> list[str]:
    """Return the leading parts of a pattern that are plain names; none if it matches anywhere."""
    pattern = pattern.removesuffix("/")
    if "/" not in pattern:
        return []
    plain_parts = []
    for part in pattern.removeprefix("/").split("/"):
        if re.search(r"[*?\[\\]", part):
            break
        plain_parts.append(part)
    return plain_parts
