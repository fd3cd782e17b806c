"""Output for users: times, tables, sparklines, colours, JSON, and errors on a terminal."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.terminal import (
    STATE_COLOURS,
    coloured,
    label,
    labelled,
    one_line,
    printable,
    write,
    write_log,
)
from cloudtrain.cli.terminal import print_json as print_json
from cloudtrain.units import format_duration, format_number
from cloudtrain_wire.bounded_files import read_regular_text

if TYPE_CHECKING:
    from cloudtrain.errors import CloudtrainError, Issue
    from cloudtrain.runs.logs import LogBlock, LogLine

MAX_WAITING_BLOCKS = 100
"""Blocks of a log that are printed at once, at most."""

MAX_NAME = 40
"""Maximum characters of a metric's name beside its curve."""
UNITS = (("d", 86_400), ("h", 3600), ("min", 60))
"""Units of an age, with their seconds."""
_BARS = "▁▂▃▄▅▆▇█"

_PLACE = re.compile(r"(?P<file>[^\n]+?):(?P<line>\d+)(?::(?P<column>\d+))?")
_MAX_SOURCE_BYTES = 1_000_000
MIN_WIDTH = 40


def print_message(text: str = "") -> None:
    """Print a message for people on stderr; stdout is for data."""
    write(labelled(text), err=True, wraps=True)


def print_output(text: str = "") -> None:
    """Print the output of a command on stdout, line for line."""
    write(text)


def print_prose(text: str) -> None:
    """Print sentences and labelled rows on stdout; a terminal breaks long lines at words."""
    write(text, wraps=True)


class LogPrinter:
    """Printer of log lines on stdout, many at once. At the end of `with` all are printed.

    `names_source`: with its rank or node in front.
    """

    def __init__(self, *, as_json: bool, names_source: bool) -> None:
        self._as_json = as_json
        self._names_source = names_source
        self._waiting: list[tuple[str, str]] = []

    def __enter__(self) -> LogPrinter:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def print(self, block: LogBlock, *, trial: int | None = None) -> None:
        """Print lines, perhaps later. `trial`: with the number of the trial in front."""
        if self._as_json:
            for line in block.lines():
                print_json(_line_as_json(line, trial), indent=None)

            return

        source = ""
        if trial is not None:
            source = f"[trial {trial}] "
        if self._names_source:
            source += f"[{block.source or f'node {block.node}'}] "

        self._waiting.append((source, block.text))
        if len(self._waiting) >= MAX_WAITING_BLOCKS:
            self.flush()

    def flush(self) -> None:
        """Print the lines that wait."""
        waiting = self._waiting
        self._waiting = []
        write_log(waiting)


def _line_as_json(line: LogLine, trial: int | None) -> dict[str, Any]:
    document: dict[str, Any] = {} if trial is None else {"trial": trial}
    return document | {
        "time": line.time,
        "node": line.node,
        "rank": line.rank,
        "source": line.source,
        "kind": line.kind or "output",
        "text": line.text,
    }


def colour_state(state: str) -> str:
    """Return a state, in its colour if colours are shown."""
    if state in STATE_COLOURS and coloured(sys.stdout):
        return click.style(state, fg=STATE_COLOURS[state])

    return state


def command(*words: str) -> str:
    """Return a command line to type next, quoted for a shell, with the --data-dir of this one."""
    line = [_program(), *words]
    context = click.get_current_context(silent=True)
    folder = context.find_root().obj if context else None
    if folder:
        line[1:1] = ["--data-dir", folder]

    return shlex.join(line)


def _program() -> str:
    """Return `cloudtrain` if it is on the PATH, else how it was called."""
    from shutil import which

    called = sys.argv[0]
    if which("cloudtrain") or not called.endswith("cloudtrain"):
        return "cloudtrain"

    return called


def abbreviate_home(path: str | Path) -> str:
    """Return a path with the home folder as `~`."""
    text = str(path)
    home = str(Path.home())
    if not text.startswith(home + os.sep):
        return text

    return "~" + text[len(home) :]


def table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    """Return columns as wide as their widest cell."""
    return table_of_columns(zip(header, *rows, strict=True))


def table_of_columns(columns: Iterable[Sequence[str]]) -> str:
    """Return columns, each with its title first, as wide as their widest cell."""
    cells = []
    formats = []
    for column in columns:
        # Nearly every column needs no escapes: it is looked at once, not cell by cell.
        text = "".join(column)
        if text.isascii() and text.isprintable() and one_line(text) == text:
            cells.append(column)
            formats.append(f"%-{max(map(len, column))}s")
        else:
            cells.append(_padded(column))
            formats.append("%s")

    row = "  ".join(formats)
    return "\n".join([(row % each).rstrip() for each in zip(*cells, strict=True)])


def _padded(column: Sequence[str]) -> list[str]:
    """Return the cells of a column, escaped, and as wide as the widest one."""
    cells = [one_line(cell) for cell in column]
    width = max(map(text_width, cells))
    return [cell + " " * (width - text_width(cell)) for cell in cells]


def text_width(text: str) -> int:
    """Return the columns of a text on a terminal; ideographs take two."""
    if "\x1b" in text:
        shown = click.unstyle(text)
    else:
        shown = text

    if shown.isascii():
        return len(shown)

    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in shown)
    return len(shown) + wide


def count(number: int, word: str) -> str:
    """Return `1 node`, `2 processes`."""
    if number == 1:
        return f"{number} {word}"

    ending = "es" if word.endswith("s") else "s"
    return f"{number} {word}{ending}"


def format_age(seconds: float, timestamp: float) -> str:
    """Return `3 min ago`, in the largest unit. Both are Unix timestamps."""
    age = max(0.0, timestamp - seconds)
    for unit, length in UNITS:
        count = round(age) // length
        if count:
            return f"{count} {unit} ago"

    return f"{format_duration(age)} ago"


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Return values as a line of at most `width` blocks: `▇▅▃▂▁`.

    It is empty without finite values.
    """
    points = [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
    if len(points) > width:
        points = [points[round(i * (len(points) - 1) / (width - 1))] for i in range(width)]
    if not points:
        return ""

    low = min(points) / 2
    span = max(points) / 2 - low  # halves: 1e308 and -1e308 lie too far apart
    if not span:
        return _BARS[0] * len(points)

    return "".join(_BARS[round((value / 2 - low) / span * 7)] for value in points)


def short_name(name: str) -> str:
    """Return the name of a metric on one line, cut with an ellipsis."""
    return shortened(one_line(name), MAX_NAME)


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` characters, cut with an ellipsis."""
    if len(text) <= width:
        return text

    return text[: width - 1] + "…"


def learning_curves(curves: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a line per metric, at most six: first value, sparkline, last value."""
    rows = []
    for name, values in list(curves.items())[:6]:
        if len(values) > 1:
            rows.append(
                (
                    short_name(name),
                    format_number(values[0]),
                    sparkline(values),
                    format_number(values[-1]),
                )
            )

    width = max((len(row[0]) for row in rows), default=0)
    return [f"{name:<{width}}  {first:>6} {line} {last}" for name, first, line, last in rows]


# Errors on a terminal: what is wrong, the marked line of the file, and what to do. Elsewhere an error
# is one line, `job.yaml:7:3: resources.gpu: …`, for editors and other tools.


def error_lines(error: CloudtrainError, width: int) -> list[str]:
    """Return the lines of an error on a terminal of this width, with colours."""
    issues: Sequence[Issue] = getattr(error, "issues", ())
    width = max(MIN_WIDTH, width)

    if not issues:
        return _labelled("error:", error.message, width) + _hint(error.hint, width)

    lines: list[str] = []
    for issue in issues:
        if lines:
            lines.append("")

        lines += _issue(issue, width)

    return lines


def note_lines(text: str, width: int) -> list[str]:
    """Return the lines of a note below an error."""
    return _labelled("note:", text, max(MIN_WIDTH, width))


def _issue(issue: Issue, width: int) -> Iterator[str]:
    message = issue.message
    if issue.field:
        message = f"{issue.field}: {message}"

    yield from _labelled("error:", message, width)
    if issue.origin:
        yield f"  at {one_line(issue.origin)}"
    if issue.path[:1] != ("secrets",):  # the line may hold one
        yield from _source(issue.origin, width)

    yield from _hint(issue.hint, width)


def _hint(hint: str | None, width: int) -> list[str]:
    if not hint:
        return []

    return ["  " + line for line in _labelled("hint:", hint, width - 2)]


def _labelled(word: str, text: str, width: int) -> list[str]:
    """Wrap a text at words behind its label.

    A word that is too long for a line, such as a path, stays whole.
    """
    import textwrap  # slow to import

    lines = []
    for number, paragraph in enumerate(printable(text).splitlines() or [""]):
        if number == 0:
            first = f"{word} "
        else:
            first = " " * 2

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
    if place is None:
        return []

    text = _line_of(place["file"], int(place["line"]))
    if text is None:
        return []

    number = place["line"]
    column = int(place["column"] or 0) - 1
    room = width - len(number) - 7
    if column > room - 20:
        start = max(0, column - room + 20)
    else:
        start = 0

    shown = one_line(text[start : start + room].replace("\t", " "))
    lines = [f"  {number} | {shown}".rstrip()]

    if 0 <= column < len(text):
        word = re.match(r"[\w.-]+", text[column:])
        length = min(len(word[0]) if word else 1, room - (column - start))
        before = text_width(one_line(text[start:column].replace("\t", " ")))
        lines.append(f"  {' ' * len(number)} | {' ' * before}{label('^' * max(1, length))}")

    return lines


def _line_of(file: str, number: int) -> str | None:
    """Return a line of a text file; None if the file or the line is missing."""
    if not os.path.isfile(file):  # noqa: PTH113  (false, not an error, for what no disk can hold)
        return None

    try:
        lines = read_regular_text(file, _MAX_SOURCE_BYTES).split("\n")
    except (OSError, ValueError):
        return None

    if 0 < number <= len(lines) and lines[number - 1].strip():
        return lines[number - 1].rstrip()

    return None
