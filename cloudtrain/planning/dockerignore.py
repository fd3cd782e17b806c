"""Rules of a .dockerignore, as docker reads them. Pure.

Unlike in git, a pattern starts at the context's top, and the last one that matches a path or a folder
above it decides: `!` brings back single files of an ignored folder.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

from cloudtrain.errors import SourceError

STAR = "[^/]*"
DEEP = "(?:.*/)?"
ANY = ".*"
"""Within a folder; any number of whole folders; anything."""

FEW = 2
"""Maximum wildcards before regex backtracking gets expensive."""

Fits = Callable[[str], object]
"""Returns whether a whole path matches."""

Pattern = Fits

Rule = tuple[bool, Pattern]
"""True for a rule that leaves out, False for one that brings back; and its pattern."""


def rules_of(text: str) -> list[Rule]:
    """Return the rules of an ignore file, in order. Raise SourceError for an invalid line."""
    rules: list[Rule] = []
    for raw in text.removeprefix("\ufeff").splitlines():
        line = raw.strip()
        if not line or raw.startswith("#"):
            continue
        leaves_out = not line.startswith("!")
        pattern = posixpath.normpath(line.removeprefix("!").strip()).lstrip("/")
        if pattern != ".":
            try:
                rules.append((leaves_out, pattern_of(pattern)))
            except re.error as error:
                hint = "a range in [] goes upwards: [a-z]"
                raise SourceError(
                    f"{line!r} in a .dockerignore is not a valid pattern: {error.msg}", hint=hint
                ) from None
    return rules


def pattern_of(text: str) -> Pattern:
    """Return the matcher of a whole path of the context. Raise re.error for an invalid pattern."""
    return matcher(_pieces(posixpath.normpath(text).lstrip("/")))


def matches_any(path: str, patterns: Sequence[Pattern]) -> bool:
    """Return whether a relative path or a folder above it matches one of the patterns."""
    return any(pattern(part) for part in _with_folders(path) for pattern in patterns)


def is_ignored(path: str, rules: Sequence[Rule]) -> bool:
    """Return whether a relative path is left out."""
    above = _with_folders(path)
    ignored = False
    for leaves_out, pattern in rules:
        if leaves_out != ignored and any(pattern(part) for part in above):
            ignored = leaves_out
    return ignored


def _with_folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def has_exceptions(rules: Sequence[Rule]) -> bool:
    """Return whether a rule may bring back files of an ignored folder."""
    return any(not leaves_out for leaves_out, _ in rules)


def _pieces(pattern: str) -> list[str]:
    """Translate a pattern of Go's `filepath.Match`, and `**` for any number of folders."""
    # Docker compares such a pattern with the end of the path alone.
    if re.fullmatch(r"\*\*[^*?\[\]\\/][^*?\[\]\\]*", pattern):
        return [ANY, *map(re.escape, pattern[2:])]
    out: list[str] = []
    at = 0
    while at < len(pattern):
        remainder = pattern[at:]
        if remainder.startswith("**/"):
            out = [*out, DEEP]
            at = at + 3
        elif remainder.startswith("**"):  # folders only, unless it is the end
            out = [*out, DEEP if len(remainder) > 2 else ANY]
            at = at + 2
        elif remainder[0] == "*":
            out = [*out, STAR]
            at = at + 1
        elif remainder[0] == "?":
            out = [*out, "[^/]"]
            at = at + 1
        elif remainder[0] == "[" and (group := re.match(r"\[(\^?)((?:\\.|[^\]\\])+)\]", remainder)):
            inside = re.sub(
                r"\\(.)|([\[&|~])", lambda char: re.escape(char[1] or char[2]), group[2]
            )
            out = [*out, f"[{group[1]}{inside}]"]
            at = at + len(group[0])
        elif remainder[0] == "\\" and len(remainder) > 1:
            out = [*out, re.escape(remainder[1])]
            at = at + 2
        else:
            out = [*out, re.escape(remainder[0])]
            at = at + 1
    return out


def matcher(pieces: Sequence[str]) -> Fits:
    """Return a matcher that takes time linear in the path, however many wildcards there are.

    `pieces`: wildcards, and regular expressions of one character each. Raise re.error if one is
    invalid.
    """
    expression = re.compile("".join(pieces), re.DOTALL)
    if sum(piece in (STAR, DEEP, ANY) for piece in pieces) <= FEW:
        return expression.fullmatch
    steps = [
        piece if piece in (STAR, DEEP, ANY) else re.compile(piece, re.DOTALL) for piece in pieces
    ]
    return lambda path: _fits(steps, path)


def _fits(steps: Sequence[str | re.Pattern[str]], path: str) -> bool:
    """Follow all possible matches at once.

    `at`: every step that may come next; `inner`: the `DEEP` steps in the middle of a folder.
    """
    at = _reach(steps, {0})
    inner = set[int]()
    for char in path:
        inside = {step for step in at if steps[step : step + 1] == [DEEP]} | inner
        after = {step + 1 for step in inside if char == "/"}
        for step in at:
            expected = steps[step] if step < len(steps) else ""
            if expected == ANY or (expected == STAR and char != "/"):
                after.add(step)
            elif isinstance(expected, re.Pattern) and expected.fullmatch(char):
                after.add(step + 1)
        at = _reach(steps, after)
        inner = inside
        if not at and not inner:
            return False
    return len(steps) in at


def _reach(steps: Sequence[str | re.Pattern[str]], reached: set[int]) -> set[int]:
    """Add the steps behind wildcards that match the empty text."""
    todo = list(reached)
    while todo:
        step = todo.pop()
        if step < len(steps) and isinstance(steps[step], str) and step + 1 not in reached:
            reached.add(step + 1)
            todo.append(step + 1)
    return reached
