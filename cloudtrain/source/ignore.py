"""One ignore file: its patterns, translated by pathspec, matched against one entry at a time during
the walk.

git decides about a folder first and never looks into an ignored one, so a pattern has to match the
entry itself, not one of its parents. pathspec's own matcher answers for whole paths and does not
distinguish the two.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

Translate = Callable[[str], str | None]
"""A pattern that starts with "/" -> regular expression (text); None if git would never match it."""

# What git knows and pathspec does not: POSIX classes, and (in `_rule`) that `***` is `**`.
_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "xdigit": "0-9A-Fa-f",
    "space": " \t-\r",
}


_TOKEN = re.compile(
    r"\\.|\[\^?\]?[^\]]*\]|\(\?:\.\+/\)\?|\(\?:/\.\+\)\?|\(\?:\(\?:/\)\|\$\)|.", re.DOTALL
)
_DEEP = ("(?:.+/)?", "(?:/.+)?")
_END = "(?:(?:/)|$)"
_NAME = "[^/]"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    regex: str
    """Compiled when it is needed: most rules match nothing, and compiling is what takes time."""
    by_name: bool
    """Matched against the name in any folder; else against the path from the ignore file's folder.
    """
    folders_only: bool
    ignores: bool
    reach: tuple[str, ...]
    """The leading parts of the pattern that are plain names."""


class IgnoreFile:
    """The rules of one file. `base` is its folder, "" or "a/b/"; paths and base start at the same
    folder.
    """

    __slots__ = ("_any_name", "_any_path", "_cut", "_rules")

    def __init__(self, lines: Iterable[str], translate: Translate, *, base: str = "") -> None:
        self._cut = len(base)
        # The last rule that matches decides, so the last one is tried first.
        self._rules = [rule for line in lines if (rule := _rule(line, translate))][::-1]
        self._any_name = _any(rule for rule in self._rules if rule.by_name)
        self._any_path = _any(rule for rule in self._rules if not rule.by_name)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def ignores(self, path: str, name: str, folder: bool) -> bool | None:
        """True: ignored. False: brought back by a `!` rule. None: no rule of this file matches."""
        relative = path[self._cut :]
        by_name = self._any_name is not None and self._any_name(name)
        by_path = self._any_path is not None and self._any_path(relative)
        if by_name or by_path:
            for rule in self._rules:
                text = name if rule.by_name else relative
                if (folder or not rule.folders_only) and _compile(rule.regex).fullmatch(text):
                    return rule.ignores
        return None

    def may_bring_back_below(self, folder: str) -> bool:
        """Whether a `!` rule could match something inside this folder."""
        parts = folder[self._cut :].split("/")
        return any(
            rule.by_name or all(a == b for a, b in zip(parts, rule.reach, strict=False))
            for rule in self._rules
            if not rule.ignores
        )


class Patterns:
    """Translates patterns by pathspec; `known` are earlier translations, which save importing it."""

    def __init__(self, known: dict[str, str | None]) -> None:
        self.known = known
        self.used: dict[str, str | None] = {}

    def translate(self, pattern: str) -> str | None:
        """See `Translate`."""
        if pattern not in self.used:
            self.used[pattern] = (
                self.known[pattern] if pattern in self.known else _translate(pattern)
            )
        return self.used[pattern]


def _translate(pattern: str) -> str | None:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    try:
        # git lets `a/**` match what is in a, pathspec also a itself, where a `!a/keep` would come
        # too late.
        text, _ = GitIgnoreSpecPattern.pattern_to_regex(
            pattern + "/*" if pattern.endswith("/**") else pattern
        )
        if text is None or text == ".":
            return text and ".+"
        # Group names must go, for `_any` to join the rules.
        text = _linear(re.sub(r"\?P<\w+>", "?:", text).removeprefix("^"))
        _compile(text)
    except (ValueError, re.error):
        return None
    return text


def _linear(text: str) -> str:
    """An expression that matches whole paths (relative, no slash at their end) in linear time.

    `text`: as pathspec translates it, where a star may go back and try again. What a star or `**/`
    has passed over is never tried again: for a star it is enough to take what follows it at its
    first place, since a later place leaves less to the stars behind it. So all stars but a
    segment's last go into atomic groups, and all `**/` but the last.
    """
    groups: list[list[list[str]]] = [[[]]]
    """Between each `**` and the next the segments, each as a list of what one character matches,
    and of stars.
    """
    pieces = _TOKEN.findall(text)
    for before, piece in zip(["", *pieces], pieces, strict=False):
        if piece in _DEEP:
            groups.append([[]])
        elif piece == "/":
            if before != _DEEP[1]:  # `a/**/b` is an `a`, then `(?:/.+)?`, then a slash
                groups[-1].append([])
        elif piece != _END:
            groups[-1][-1].append(_without_slash(piece))
    first, *others = groups
    if not others:
        return "/".join(_segment(segment) for segment in first)
    if pieces[0] == _DEEP[0]:
        first = []
    parts = [f"{_segment(segment)}/" for segment in first]
    for number, group in enumerate(others, 1):
        names = "/".join(_segment(segment) for segment in group)
        parts.append(
            f"(?:[^/]+/)*{names}" if number == len(others) else f"(?>(?:[^/]+/)*?{names}/)"
        )
    return "".join(parts)


def _segment(pieces: list[str]) -> str:
    """What matches one name of a path."""
    chunks = [""]
    at_least = ""
    for piece in pieces:
        if piece in "*+":  # behind `[^/]`: a star of the pattern, which a whole name makes a plus
            chunks[-1] = chunks[-1].removesuffix(_NAME)
            at_least = _NAME if piece == "+" else at_least
            chunks.append("")
        else:
            chunks[-1] += piece
    first, *others = chunks
    if not others:
        return first
    middle = "".join(f"(?>[^/]*?{chunk})" for chunk in others[:-1] if chunk)
    return f"{first}{middle}{at_least}[^/]*{others[-1]}"


def _without_slash(piece: str) -> str:
    """A negated class never matches a slash in git."""
    if piece == _NAME or not piece.startswith("[^"):
        return piece
    return f"[^]/{piece[3:]}" if piece.startswith("[^]") else f"[^/{piece[2:]}"


def _rule(line: str, translate: Translate) -> _Rule | None:
    line = line.removesuffix("\r")
    text = line.rstrip(" ")
    if (len(text) - len(text.rstrip("\\"))) % 2:
        text = line[: len(text) + 1]
    if text.startswith("#"):
        return None
    ignores = not text.startswith("!")
    text = text.removeprefix("!")
    folders_only = text.endswith("/")
    text = text.removesuffix("/")
    if "[:" in text:
        for name, members in _CLASSES.items():
            text = text.replace(f"[:{name}:]", members)
    if "***" in text:
        text = re.sub(r"\*{3,}", "**", text)
    regex = translate("/" + text.removeprefix("/")) if text else None
    if regex is None:
        return None
    reach = []
    for part in text.removeprefix("/").split("/"):
        if re.search(r"[*?\[\\]", part):
            break
        reach.append(part)
    return _Rule(
        regex=regex,
        by_name="/" not in text,
        folders_only=folders_only,
        ignores=ignores,
        reach=tuple(reach),
    )


def _any(rules: Iterable[_Rule]) -> Callable[[str], object] | None:
    """One search for whether any of the rules may match: most entries match none of them."""
    text = "|".join(f"(?:{rule.regex})" for rule in rules)
    return _compile(text).fullmatch if text else None


@cache
def _compile(text: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        # `[[]` is fine in git, and Python warns of what it may mean one day.
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(text, re.DOTALL)
