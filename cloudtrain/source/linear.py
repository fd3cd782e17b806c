"""Makes a translated ignore pattern match in linear time: what a star or `**/` has passed over is never tried again.

For a star it is enough to take what follows it at its first place: what follows up to the next star is as long as it
is, so a later place leaves less to those behind it. So all stars but a segment's last go into atomic groups, and all
`**/` but the last likewise.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\(\?:\.\+/\)\?|\(\?:/\.\+\)\?|\(\?:\(\?:/\)\|\$\)|.", re.DOTALL)
_DEEP = ("(?:.+/)?", "(?:/.+)?")
_END = "(?:(?:/)|$)"
_NAME = "[^/]"


def linear(text: str) -> str:
    """The same for whole paths of entries: relative, no slash at their end. `text`: as pathspec translates it."""
    groups: list[list[list[str]]] = [[[]]]
    """Between each `**` and the next the segments, each as a list of what one character matches, and of stars."""
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
        parts.append(f"(?:[^/]+/)*{names}" if number == len(others) else f"(?>(?:[^/]+/)*?{names}/)")
    return "".join(parts)


def _segment(pieces: list[str]) -> str:
    """What matches one name of a path."""
    chunks, at_least = [""], ""
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
