"""Rules of a .dockerignore."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cloudtrain.errors import SourceError
from cloudtrain.source.linear_patterns import linear

if TYPE_CHECKING:
    from pathspec import PathSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern


def read_rules(text: str) -> PathSpec[GitIgnoreSpecPattern]:
    """Return the rules of an ignore file. Raise SourceError for an invalid line."""
    lines = text.removeprefix("\ufeff").splitlines()
    return patterns_of(line.strip() for line in lines if not line.startswith("#"))


def patterns_of(lines: Iterable[str]) -> PathSpec[GitIgnoreSpecPattern]:
    """Return the patterns of these lines. Raise SourceError for an invalid one."""
    from pathspec import PathSpec  # slow to import

    return PathSpec(_patterns(lines))


def _patterns(lines: Iterable[str]) -> Iterator[GitIgnoreSpecPattern]:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    for line in lines:
        sign = "!" if line.startswith("!") else ""
        pattern = line.removeprefix(sign).strip()
        # Docker compares such a pattern with the end of the path.
        pattern = re.sub(r"^\*\*(?=[^/*])", "**/*", pattern)
        pattern = posixpath.normpath(pattern).lstrip("/")

        if pattern == ".":
            continue

        try:
            slow = GitIgnoreSpecPattern(f"{sign}/{pattern}")
            if slow.regex is None:  # matches nothing
                yield slow
            else:
                yield GitIgnoreSpecPattern(re.compile(linear(slow.regex.pattern)), slow.include)
        except (ValueError, re.error) as error:
            hint = "a range in [] goes upwards: [a-z]"
            raise SourceError(
                f"{line!r} in a .dockerignore is not a valid pattern: {error}", hint=hint
            ) from None


def has_exceptions(rules: PathSpec[GitIgnoreSpecPattern]) -> bool:
    """Return whether a rule may bring back files of an ignored folder."""
    return any(pattern.include is False for pattern in rules.patterns)
