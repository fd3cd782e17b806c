"""Errors on a terminal: what is wrong, the marked line of the file, and what to do.

Elsewhere an error is one line, `job.yaml:7:3: resources.gpu: …`, for editors and other tools.
"""

from __future__ import annotations

import os
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.cli.terminal import label, one_line, printable, write
from cloudtrain.errors import CloudtrainError, Issue, SpecError
from cloudtrain_launcher.packages.bounded_files import read_regular_text

if TYPE_CHECKING:
    from cloudtrain.runs.state import RunState
    from cloudtrain.submission.run import Run

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


_PLACE_IN_FILE = re.compile(
    r"(?P<file>[^:\n]+):(?P<line>\d+)(?::(?P<col>\d+))?: (?P<text>.*)", re.DOTALL
)


def annotate_error(error: CloudtrainError) -> None:
    """Write an annotation per mistake in a spec, or one for any other error."""
    texts = (
        [issue.render() for issue in error.issues]
        if isinstance(error, SpecError)
        else [error.render()]
    )
    annotate("error", texts)


def annotate_failure(run: Run, state: RunState) -> None:
    """Annotate the line of the program that failed, if the job did."""
    if not _on_github():
        return

    from cloudtrain.runs.record import RunRecord
    from cloudtrain.runs.state import explain

    cause = state.error
    if state.state == "failed" and cause and cause.file and cause.line:
        root = RunRecord(run.folder).source_root
        annotate("error", [f"{Path(root) / cause.file}:{cause.line}: {explain(state)}"])


def annotate(level: str, texts: Iterable[str]) -> None:
    """Write texts that may begin with a place, `job.yaml:7:3: …`. `level`: error or warning."""
    if not _on_github():
        return

    for text in texts:
        match = _PLACE_IN_FILE.match(text)
        fields = match.groupdict() if match and Path(match["file"]).is_file() else {"text": text}
        message = fields.pop("text")

        if "file" in fields:
            fields["file"] = _in_repository(fields["file"])

        properties = ",".join(
            f"{name}={_escaped(value, ':,')}" for name, value in fields.items() if value
        )
        write(f"::{level}{' ' + properties if properties else ''}::{_escaped(message)}", err=True)


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _in_repository(file: str) -> str:
    """Return the path from the top of the repository, as GitHub names it."""
    path = Path(file).resolve()
    top = Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve()
    return path.relative_to(top).as_posix() if path.is_relative_to(top) else file


def _escaped(text: str, more: str = "") -> str:
    """Escape by the rules of actions/toolkit, packages/core/src/command.ts."""
    for sign in ("%", "\r", "\n", *more):
        text = text.replace(sign, f"%{ord(sign):02X}")

    return text
