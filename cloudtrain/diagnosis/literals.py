"""Texts of which a line must hold one if a regular expression is to match it: they refuse most
lines quickly.
"""

from __future__ import annotations

import re

_MIN_LENGTH = 3
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|[()|?*+.^$]|[^\\]", re.DOTALL)


def needed_literals(pattern: str) -> tuple[str, ...]:
    """Texts such that whatever the pattern matches holds one of them; none where that cannot be
    said.

    Each alternative gives its longest piece of plain text outside of groups. What is not understood
    makes it give up, never err: flags such as (?i) leave nothing plain.
    """
    if re.search(r"\(\?[a-zA-Z-]*i[a-zA-Z-]*[:)]", pattern):
        return ()
    found = tuple(max(_pieces(branch), key=len, default="") for branch in _alternatives(pattern))
    return found if all(len(piece) >= _MIN_LENGTH for piece in found) else ()


def _alternatives(pattern: str) -> list[list[str]]:
    """The alternatives at the top level, each as its parts; what is in groups is left out, as a
    part that is empty.
    """
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
    """Runs of plain characters; one that may be absent or repeated ends a run."""
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
