"""Errors on a terminal: what is wrong, the marked line of the file, and what to do.

Elsewhere an error is one line, `job.yaml:7:3: resources.gpu: …`, for editors and other tools.
"""

from __future__ import annotations

import os
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence

from cloudtrain.cli.terminal import label, one_line, printable
from cloudtrain.errors import CloudtrainError, Issue
from cloudtrain_launcher.packages.bounded_files import read_regular_text

_PLACE = re.compile(r"(?P<file>[^\n]+?):(?P<line>\d+)(?::(?P<column>\d+))?")
_MAX_BYTES = 1_000_000
MIN_WIDTH = 40


def error_lines(error: CloudtrainError, width: int) -> list[str]:
    """Return the lines of an error on a terminal of this width, with colours."""
    issues: Sequence[Issue] = getattr(error, "issues", ())
    width = max(MIN_WIDTH, width)

    if not issues:
        return [*_labelled("error:", error.message, width), *_hint(error.hint, width)]

    parts = [list(_issue(issue, width)) for issue in issues]
    return [line for number, part in enumerate(parts) for line in ([""] if number else []) + part]


def note_lines(text: str, width: int) -> list[str]:
    """Return the lines of a note below an error."""
    return _labelled("note:", text, max(MIN_WIDTH, width))


def _issue(issue: Issue, width: int) -> Iterator[str]:
    yield from _labelled(
        "error:", f"{issue.field}: {issue.message}" if issue.field else issue.message, width
    )
    if issue.origin:
        yield f"  at {one_line(issue.origin)}"
    if issue.path[:1] != ("secrets",):  # the line may hold one
        yield from _source(issue.origin, width)

    yield from _hint(issue.hint, width)


def _hint(hint: str | None, width: int) -> list[str]:
    return ["  " + line for line in _labelled("hint:", hint, width - 2)] if hint else []


def _labelled(word: str, text: str, width: int) -> list[str]:
    """Wrap a text at words behind its label.

    A word that is too long for a line, such as a path, stays whole.
    """
    lines = []
    for number, paragraph in enumerate(printable(text).splitlines() or [""]):
        first = f"{word} " if number == 0 else " " * 2
        lines += textwrap.wrap(
            first + paragraph,
            width,
            subsequent_indent=" " * 2,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )

    return [lines[0].replace(word, label(word), 1), *lines[1:]]


def _source(origin: str, width: int) -> list[str]:
    """Return the line of the file and a mark below the error; nothing if it cannot be read."""
    place = _PLACE.fullmatch(origin)
    text = _line_of(place["file"], int(place["line"])) if place else None
    if place is None or text is None:
        return []

    number = place["line"]
    column = int(place["column"] or 0) - 1
    room = width - len(number) - 7
    start = max(0, column - room + 20) if column > room - 20 else 0
    shown = one_line(text[start : start + room].replace("\t", " "))
    lines = [f"  {number} | {shown}".rstrip()]

    if 0 <= column < len(text):
        word = re.match(r"[\w.-]+", text[column:])
        length = min(len(word[0]) if word else 1, room - (column - start))
        before = _columns(one_line(text[start:column].replace("\t", " ")))
        lines.append(f"  {' ' * len(number)} | {' ' * before}{label('^' * max(1, length))}")

    return lines


def _line_of(file: str, number: int) -> str | None:
    """Return a line of a text file; None if the file or the line is missing."""
    if not os.path.isfile(file):  # noqa: PTH113  (false, not an error, for what no disk can hold)
        return None

    try:
        lines = read_regular_text(file, _MAX_BYTES).split("\n")
    except (OSError, ValueError):
        return None

    return (
        lines[number - 1].rstrip()
        if 0 < number <= len(lines) and lines[number - 1].strip()
        else None
    )


def _columns(text: str) -> int:
    """Return the width of a text on a terminal; ideographs take two columns."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)
