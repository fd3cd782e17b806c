r"""The regular expressions of AWS's service models, which are Java's, for Python's `re`.

What the two languages read differently: `\p{…}`, `\d \w \s` and `.` over Unicode, `\z`, `\x{…}`, surrogate pairs, and
inside of a class a bare `[` or a `-` beside `\w`. What Python cannot express, or the model's author got wrong, is None.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache
from itertools import groupby

_ASCII = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r"\s",
}
"""Java's POSIX classes, which hold ASCII only."""

_CATEGORY = re.compile("L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfson]?")

_TOKEN = re.compile(
    r"\\(?P<negated>[pP])(?:\{(?P<name>\w+)\}|(?P<letter>[A-Z]))"
    r"|\\u(?P<high>[dD][89abAB][\da-fA-F]{2})\\u(?P<low>[dD][c-fC-F][\da-fA-F]{2})"
    r"|\\x\{(?P<code>[\da-fA-F]+)\}"
    r"|\\(?P<end>[zZ])"
    r"|(?P<escape>\\.)"
    r"|(?P<plain>.)",
    re.DOTALL,
)
_SEVERAL = re.compile(r"\\[wdsWDSpP]")
"""An escape that stands for several characters, so that no range can begin or end with it."""
_NONE, _ANY = r"(?!)", r"[\s\S]"


@cache
def compiled(pattern: str, ascii_only: bool) -> re.Pattern[str] | None:
    """The pattern for `fullmatch`, or None where Python cannot say it.

    `ascii_only` promises texts of ASCII alone: it saves looking up the category of each of Unicode's characters.
    """
    try:
        # Java's \d, \w, \s and (?i) are ASCII's, whatever the text.
        return re.compile(_translated(pattern, 0x7F if ascii_only else sys.maxunicode), re.ASCII)
    except (re.error, ValueError, RecursionError, OverflowError):
        return None


def _translated(pattern: str, last: int) -> str:
    """The pattern in Python's words, for texts up to the code point `last`; ValueError if there are none."""
    out: list[str] = []
    opened = -1  # index in `out` of the class that is open
    before = ""
    # Java's dot stops at more ends of lines than Python's.
    dot = "." if re.search(r"\(\?[a-z]*s", pattern) else r"[^\n\r\x85\u2028\u2029]"
    for token in _TOKEN.finditer(pattern):
        inside = opened >= 0
        if token["negated"]:
            members = _members(token["name"] or token["letter"], last, wanted=token["negated"] == "p")
            out.append(members if inside else f"[{members}]" if members else _NONE)
        elif token["high"]:
            high, low = int(token["high"], 16), int(token["low"], 16)
            out.append(f"\\U{0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00:08x}")
        elif token["code"]:
            out.append(f"\\U{int(token['code'], 16):08x}")
        elif token["end"] and not inside:
            out.append(r"\Z")
        elif token["plain"] is None:
            out.append(token[0])
        elif not inside:
            if token[0] == "[":
                opened = len(out)
            out.append(dot if token[0] == "." else token[0])
        elif token[0] == "]" and out[opened + 1 :] not in ([], ["^"]):
            members = "".join(out[opened + 1 :])
            out[opened:] = [_NONE if not members else _ANY if members == "^" else f"[{members}]"]
            opened = -1
        elif token[0] == "&" and pattern.startswith("&&", token.start()):
            raise ValueError("an intersection of classes")
        elif token[0] == "-" and (_SEVERAL.match(before) or _SEVERAL.match(pattern, token.end())):
            out.append(r"\-")
        else:
            out.append("\\" + token[0] if token[0] in "[]&|~" else token[0])
        before = token[0]
    return "".join(out)


def _members(name: str, last: int, *, wanted: bool) -> str:
    """The ranges of `\\p{name}`, or of `\\P{name}` when not wanted. ValueError for a name that is unknown here."""
    if name in _ASCII:
        if wanted:
            return _ASCII[name]
        inside = re.compile(f"[{_ASCII[name]}]", re.ASCII)
        others = [_escaped(code) for code in range(0x80) if not inside.match(chr(code))]
        return "".join(others) + (_range(0x80, last) if last >= 0x80 else "")
    if not _CATEGORY.fullmatch(name):
        raise ValueError(f"unknown class {name}")
    return "".join(_range(*run) for *run, category in _runs(last) if category.startswith(name) == wanted)


@cache
def _runs(last: int) -> tuple[tuple[int, int, str], ...]:
    """Neighbours of one general category: first, last, category. All of Unicode takes a tenth of a second."""
    runs, start = [], 0
    for category, run in groupby(map(unicodedata.category, map(chr, range(last + 1)))):
        end = start + sum(1 for _ in run)
        runs.append((start, end - 1, category))
        start = end
    return tuple(runs)


def _range(start: int, end: int) -> str:
    return f"{_escaped(start)}-{_escaped(end)}" if start < end else _escaped(start)


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"
