"""Conversion of a notebook's cell to Python, without IPython's syntax. Standard library only.

The client reads cells with the same rules.
"""

from __future__ import annotations

import ast
import re
import warnings

INSTALLS = r"\s*[%!]*\s*(\S+\s+-m\s+|uv\s+)?(pip3?|conda|mamba)\s+install\b|\s*[%!]*\s*uv\s+add\b"
"""Line that installs packages, with or without IPython's mark."""
_RUNS_THE_REST = r"%%(time|capture)\b"
"""First line of a cell that is executed nevertheless."""
_TIMED = r"(\s*)%time\s+(?P<statement>\S.*)"
_HELP = r"\s*\?{1,2}\s*[\w.*%]+\s*|\s*%{0,2}[\w.*\[\]()'\"]+\?{1,2}\s*"
"""Line that requests help: `?print`, `model.fit??`."""


def plain_code(source: str) -> tuple[str, list[str]]:
    """Convert a cell to Python with as many lines; return it and the lines replaced by `pass`.

    Only lines that are not Python are replaced: a multi-line string may contain similar lines. A
    `%%` cell becomes empty.
    """
    lines = source.splitlines()
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and not re.match(_RUNS_THE_REST, first):
        return "\n" * len(lines), [first]

    left_out: list[str] = []

    while True:
        number = _error_line(lines)
        if number is None or not _is_for_ipython(lines[number]):
            break

        left_out += _leave_out(lines, number)

    if number is not None:  # the mistake is elsewhere, as after a quotation mark in such a line
        numbers = [index for index, line in enumerate(lines) if _is_for_ipython(line)]
        for index in numbers:
            left_out += _leave_out(lines, index)

    return "\n".join(lines) + "\n", left_out


def _error_line(lines: list[str]) -> int | None:
    """Return the index of the first line that Python rejects; None if it accepts all."""
    try:
        with warnings.catch_warnings():
            # The program itself warns of escapes in the user's strings.
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except SyntaxError as error:
        return min(max((error.lineno or 1) - 1, 0), len(lines) - 1)
    except (
        ValueError,
        RecursionError,
        MemoryError,
        OverflowError,
    ):  # raised again later
        return None

    return None


def _is_for_ipython(line: str) -> bool:
    return bool(
        line.lstrip().startswith(("%", "!"))
        or re.match(INSTALLS, line)
        or re.fullmatch(_HELP, line)
    )


def _leave_out(lines: list[str], index: int) -> list[str]:
    """Replace a line and return it; return nothing if a statement in it stays."""
    line = lines[index]
    timed = re.match(_TIMED, line)
    if timed:
        lines[index] = timed[1] + timed["statement"]
        return []

    lines[index] = line[: len(line) - len(line.lstrip())] + "pass"

    if re.match(_RUNS_THE_REST, line):
        return []

    return [line.strip()]
