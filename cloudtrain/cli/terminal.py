"""The one place from which anything is printed: what a terminal would obey, or reorder, is made visible first.

Much of what is shown was written by others: log lines, metric names, exceptions, file names, a spec from a repository.
Control characters, the second set of them (C1), line separators, and marks that turn the direction of text are shown as
escapes such as `\\x1b` and `\\u202e`, wherever the output goes: a pipe may lead to a terminal as well.

Colours (SGR sequences) of a program's log lines stay, where our own colours are shown: they can dress nothing but that
very line, as it is reset at its end, and training programs often show their progress with them. Everywhere else they
are escaped, so that only we can colour a plan or a verdict; where no colours are shown they are left out.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from cloudtrain.units import format_size

STATE_COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "stopped": "yellow",
    "running": "cyan",
    "stopping": "yellow",
}
_OURS = re.compile(f"(\x1b\\[3[0-7]m(?:{'|'.join(STATE_COLOURS)})\x1b\\[0m)")
"""All the colours that we print ourselves: a state in its own."""

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, C1 among them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction: marks, embeddings, overrides, isolates
    "\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"  # line ends, and invisible characters
    "\U000e0000-\U000e007f\ud800-\udfff]"  # tags; halves of characters
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_RESET = "\x1b[0m"


def printable(text: str) -> str:
    """The text with all that a terminal would obey as escapes; lines, tabs and our own painted states stay."""
    return "".join(part if at % 2 else _UNSAFE.sub(_escaped, part) for at, part in enumerate(_OURS.split(text)))


def one_line(text: str) -> str:
    """The same, line ends too: for a cell or a row, below which others' words must not begin a line of their own."""
    return printable(text.replace("\n", "\\n"))


def indented(text: str, by: int) -> str:
    """A text of several lines, all but the first indented, so that none can be taken for a line of ours."""
    return printable(text).replace("\n", "\n" + " " * by)


def log_text(text: str, *, colours: bool) -> str:
    """A line of a program's log; of what it has overwritten itself, as progress bars do, the last is shown."""
    text = text.rstrip("\r")
    parts = _COLOUR.split(text[text.rfind("\r") + 1 :])
    marks = _COLOUR.findall(text[text.rfind("\r") + 1 :])
    if not colours or not marks:
        return "".join(map(one_line, parts))
    return "".join(one_line(part) + mark for part, mark in zip(parts, [*marks, _RESET], strict=True))


def write(text: str = "", *, err: bool = False) -> None:
    """Print a text of ours, in which there may be words of others."""
    click.echo(printable(text), err=err, color=coloured(sys.stderr if err else sys.stdout))


def write_log(mark: str, text: str, *, err: bool = False) -> None:
    """Print a line of a program's log behind a mark of ours."""
    colours = coloured(sys.stderr if err else sys.stdout)
    click.echo(one_line(mark) + log_text(text, colours=colours), err=err, color=colours)


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """JSON on stdout and nothing else; what is unsafe is escaped in JSON's own way, so that its value stays.

    It is YAML too, as which some clouds' tools read it.
    """
    click.echo(_UNSAFE.sub(_escaped_in_json, json.dumps(value, indent=indent, ensure_ascii=False)))


def bar(done: float, total: float, width: int = 16) -> str:
    """`━━━━────`: how much of something is done, in so many characters."""
    filled = round(width * min(1.0, done / total))
    return "━" * filled + "─" * (width - filled)


def redraw(text: str) -> None:
    """Draw over the line that stands on the terminal's stderr; an empty text takes it away."""
    sys.stderr.write("\r\x1b[K" + (f"  {one_line(text)}" if text else ""))
    sys.stderr.flush()


def progress_bar(label: str, *, bytes_: bool = False) -> Callable[[int, int], None]:
    """A callback that draws a bar on stderr when there is much to do; silent for small jobs and without a terminal.

    It is called with how many files, or bytes, are done, and of how many.
    """
    started = time.monotonic()
    shown = False

    def draw(done: int, total: int) -> None:
        nonlocal shown
        if not sys.stderr.isatty() or not total or (time.monotonic() - started < 0.5 and not shown):
            return
        shown = True
        amount = f"{format_size(done)} of {format_size(total)}" if bytes_ else f"{done}/{total} files"
        redraw("" if done >= total else f"{label} {bar(done, total, 24)} {amount}")

    return draw


def coloured(stream: Any) -> bool:
    """Whether colours are shown there."""
    return (
        stream is not None
        and bool(stream.isatty())
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped_in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
