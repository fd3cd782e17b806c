"""What a .dockerignore leaves out of a build, by the rules that docker itself has for it. Pure.

Unlike git's: a pattern counts from the context's top, and the last one that fits a path or a folder
above it decides, so that `!` brings back single files of an ignored folder.
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
"""So many wildcards a regular expression takes well; with more it may go back and try again without
end.
"""

Fits = Callable[[str], object]
"""Whether a whole path fits."""

Pattern = Fits

Rule = tuple[bool, Pattern]
"""Whether it leaves out (or brings back), and what it fits."""


def rules_of(text: str) -> list[Rule]:
    """The rules of an ignore file, in order. SourceError for a line that docker would refuse as
    well.
    """
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
    """What a path of the context fits as a whole; re.error for what is not a valid pattern."""
    return matcher(_pieces(posixpath.normpath(text).lstrip("/")))


def matches_any(path: str, patterns: Sequence[Pattern]) -> bool:
    """Whether a path, relative and with slashes, or a folder above it fits one of them."""
    return any(pattern(each) for each in _with_folders(path) for pattern in patterns)


def is_ignored(path: str, rules: Sequence[Rule]) -> bool:
    """Whether a path, relative and with slashes, is left out."""
    above = _with_folders(path)
    ignored = False
    for leaves_out, pattern in rules:
        if leaves_out != ignored and any(pattern(each) for each in above):
            ignored = leaves_out
    return ignored


def _with_folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def has_exceptions(rules: Sequence[Rule]) -> bool:
    """Whether files of an ignored folder may be wanted all the same."""
    return any(not leaves_out for leaves_out, _ in rules)


def _pieces(pattern: str) -> list[str]:
    """Go's `filepath.Match`, and `**` for any number of folders."""
    if re.fullmatch(
        r"\*\*[^*?\[\]\\/][^*?\[\]\\]*", pattern
    ):  # docker looks at the end of the path alone
        return [ANY, *map(re.escape, pattern[2:])]
    out: list[str] = []
    at = 0
    while at < len(pattern):
        rest = pattern[at:]
        if rest.startswith("**/"):
            out = [*out, DEEP]
            at = at + 3
        elif rest.startswith("**"):  # folders only, unless it is the end
            out = [*out, DEEP if len(rest) > 2 else ANY]
            at = at + 2
        elif rest[0] == "*":
            out = [*out, STAR]
            at = at + 1
        elif rest[0] == "?":
            out = [*out, "[^/]"]
            at = at + 1
        elif rest[0] == "[" and (group := re.match(r"\[(\^?)((?:\\.|[^\]\\])+)\]", rest)):
            inside = re.sub(
                r"\\(.)|([\[&|~])", lambda char: re.escape(char[1] or char[2]), group[2]
            )
            out = [*out, f"[{group[1]}{inside}]"]
            at = at + len(group[0])
        elif rest[0] == "\\" and len(rest) > 1:
            out = [*out, re.escape(rest[1])]
            at = at + 2
        else:
            out = [*out, re.escape(rest[0])]
            at = at + 1
    return out


def matcher(pieces: Sequence[str]) -> Fits:
    """Matches a pattern with many wildcards in time that is linear in the path: all ways are
    followed at once.

    `pieces`: wildcards, and regular expressions of one character each; re.error if one is not
    valid.
    """
    expression = re.compile("".join(pieces), re.DOTALL)
    if sum(piece in (STAR, DEEP, ANY) for piece in pieces) <= FEW:
        return expression.fullmatch
    steps = [
        piece if piece in (STAR, DEEP, ANY) else re.compile(piece, re.DOTALL) for piece in pieces
    ]
    return lambda path: _fits(steps, path)


def _fits(steps: Sequence[str | re.Pattern[str]], path: str) -> bool:
    """`at` holds every step that may come next; `within` the `DEEP` ones that are in the middle of
    their folders.
    """
    at = _reach(steps, {0})
    within = set[int]()
    for char in path:
        inside = {step for step in at if steps[step : step + 1] == [DEEP]} | within
        then = {step + 1 for step in inside if char == "/"}
        for step in at:
            wanted = steps[step] if step < len(steps) else ""
            if wanted == ANY or (wanted == STAR and char != "/"):
                then.add(step)
            elif isinstance(wanted, re.Pattern) and wanted.fullmatch(char):
                then.add(step + 1)
        at = _reach(steps, then)
        within = inside
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
