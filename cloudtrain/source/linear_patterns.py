"""Expressions of ignore patterns that match in linear time.

pathspec writes `*` as `[^/]*` and `**` as `.+`. Several of them in one pattern try every way to share
a path among them: seven stars take hours for one long name. The first place where the text between
two of them matches is as good as any later one, so each is decided once, in an atomic group.
"""

from __future__ import annotations

import re

_ANY_CHARACTER = "[^/]"
_STAR = f"{_ANY_CHARACTER}*"
_ANYTHING_BETWEEN = "(?:/.+)?/"
_SHAPE = re.compile(
    r"(?P<start>\^\(\?:\.\+/\)\?|\^)"
    r"(?P<blocks>.*?)"
    r"(?P<end>\(\?:\(\?P<ps_d>/\)\|\$\)|\(\?P<ps_d>/\)|(?<!\[\^)/|)",
    re.DOTALL,
)
"""pathspec's expression: a possible text before, the pattern itself, and a possible text after."""

_SLASH = r"(?<!\[\^)/"
"""A slash between two names, unlike the slash of `[^/]`."""

_TOKEN = re.compile(r"\\.|\[\^?\]?[^\]]*\]", re.DOTALL)
"""An escaped character, or a class."""


def linear(expression: str) -> str:
    """Return an expression of pathspec so that it matches the same paths in linear time."""
    shape = _SHAPE.fullmatch(expression)
    if shape is None:  # the short form of `*` or `**`
        return expression

    *leading, last = map(_linear_names, shape["blocks"].split(_ANYTHING_BETWEEN))
    if not leading:
        return f"{shape['start']}{last}{shape['end']}"

    start = "^(?>"
    if shape["start"] != "^":
        start += "(?:.+?/)??"

    between = "(?=/))(?>(?:/.+?)??/"
    return f"{start}{between.join(leading)}(?=/)){_ANYTHING_BETWEEN}{last}{shape['end']}"


def _linear_names(names: str) -> str:
    return "/".join(map(_linear_name, re.split(_SLASH, names)))


def _linear_name(name: str) -> str:
    """Return the expression of one name, between two slashes; a class matches none, as in git."""
    first, *parts = _TOKEN.sub(_without_slash, name).split(_STAR)
    if len(parts) < 2:
        return _STAR.join((first, *parts))

    between = "".join(f"(?>{_STAR}?{part})" for part in parts[:-1] if part)
    return f"{first}{between}{_STAR}{parts[-1]}"


def _without_slash(token: re.Match[str]) -> str:
    if token[0].startswith("\\") or token[0] == _ANY_CHARACTER:
        return token[0]

    return f"(?!/){token[0]}"
