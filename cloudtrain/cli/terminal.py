"""All output, with characters escaped that control the terminal or reorder text.

Much of the output is untrusted: log lines, metric names, exceptions, file names, a spec from a
repository. Control characters (C0 and C1), line separators and marks that change the direction of
text are shown as escapes such as `\\x1b` and `\\u202e`, also in a pipe, which may end at a
terminal.

Colours (SGR sequences) in a program's log lines are kept if our own colours are shown: training
programs use them for progress, and they cannot affect other lines, because they are reset at the
end of each. They are removed if no colours are shown. In any other output they are escaped, so that
only our own code can colour a plan or a result.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from cloudtrain.runs.files import strict_json
from cloudtrain.shown_text import escaped, escaped_json, shown
from cloudtrain_wire.secret_values import masker
from cloudtrain_wire.sizes import format_size

STATE_COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "stopped": "yellow",
    "running": "cyan",
    "stopping": "yellow",
}
LABEL_COLOURS = {"error:": "red", "warning:": "yellow", "note:": "cyan", "hint:": "cyan"}
MARKS = {"found": ("✓", "green"), "wrong": ("✗", "red")}
"""Sign and colour of a verdict; others get a dash."""
_OURS = re.compile(
    f"(\x1b\\[3[0-7]m(?:{'|'.join((*STATE_COLOURS, *LABEL_COLOURS))}|\\^+|[✓✗])\x1b\\[0m)"
)
"""Our only coloured texts: states, labels of messages, and marks of lines and checks."""

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_RESET = "\x1b[0m"

_LABEL = re.compile(r" *(?:\S+(?: \S+)? {2,})?")
"""Label of a line, before the text that wraps: `  cost     `, `  ✓ python      `."""
_COMMANDS = ("cloudtrain ", "pip ", "aws ", "az ", "docker ")
"""Commands that stay on one line, so that they can be copied."""


def printable(text: str) -> str:
    """Mask secrets and escape control characters, except line ends and our own coloured states."""
    shown = masker.mask_text(text)
    if shown.replace("\n", "").isprintable():
        return shown

    return "".join(part if at % 2 else escaped(part) for at, part in enumerate(_OURS.split(shown)))


def one_line(text: str) -> str:
    """Escape control characters and line ends, for a cell or a row."""
    return printable(text.replace("\n", "\\n"))


def indented(text: str, by: int) -> str:
    """Escape control characters, and indent all lines but the first by `by` spaces."""
    return printable(text).replace("\n", "\n" + " " * by)


def log_text(text: str, *, colours: bool) -> str:
    """Return lines of a program's log.

    Of one that overwrites itself, as progress bars do, return the last text.
    """
    text = masker.mask_text(text).rstrip("\r")
    if text.replace("\n", "").isprintable():
        return text
    if "\n" in text:
        return "\n".join(log_text(line, colours=colours) for line in text.split("\n"))

    parts = _COLOUR.split(text[text.rfind("\r") + 1 :])
    marks = _COLOUR.findall(text[text.rfind("\r") + 1 :])

    if not colours or not marks:
        return "".join(map(one_line, parts))

    return "".join(
        one_line(part) + mark for part, mark in zip(parts, [*marks, _RESET], strict=True)
    )


def label(word: str) -> str:
    """Return the label of a message on stderr, `hint:`, or marks `^^^`, in its colour."""
    if not coloured(sys.stderr):
        return word

    return click.style(word, fg=LABEL_COLOURS.get(word, "red"))


def mark(verdict: str) -> str:
    """Return the tick, cross or dash of a check, in its colour if stdout shows colours."""
    sign, colour = MARKS.get(verdict, ("-", ""))
    if colour and coloured(sys.stdout):
        return click.style(sign, fg=colour)

    return sign


def labelled(text: str) -> str:
    """Return a message with its label in colour."""
    start = re.match(f"( *)({'|'.join(LABEL_COLOURS)})", text)
    if not start:
        return text

    return f"{start[1]}{label(start[2])}{text[start.end() :]}"


def write(text: str = "", *, err: bool = False, wraps: bool = False) -> None:
    """Print a text on stdout, or on stderr with `err`, with control characters escaped.

    `wraps`: break long lines at words on a terminal.
    """
    stream = sys.stderr if err else sys.stdout
    shown = printable(text)
    width = columns(stream)

    if wraps and width is not None:
        shown = "\n".join(wrapped(line, width) for line in shown.split("\n"))

    _echo(shown, err=err)


def _echo(text: str, *, err: bool) -> None:
    """Print a text; if stderr cannot be written, go on without it."""
    try:
        click.echo(text, err=err, color=coloured(sys.stderr if err else sys.stdout))
    except OSError:
        if not err:
            raise

        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a job must not end for its messages


def columns(stream: Any) -> int | None:
    """Return the width of the terminal of a stream; None if it is not a terminal."""
    if stream is None or not stream.isatty():
        return None

    import shutil  # slow to import, as textwrap is

    return shutil.get_terminal_size().columns


def wrapped(line: str, width: int) -> str:
    """Break a line at words, and indent further lines to the text behind its label."""
    label_length = len(_LABEL.match(line)[0])  # type: ignore[index]  # it matches an empty text
    if len(click.unstyle(line)) <= width or line[label_length:].startswith(_COMMANDS):
        return line

    import textwrap

    indent = len(click.unstyle(line[:label_length]))
    if indent > width // 2 or label_length == len(line) - len(line.lstrip()):
        indent = len(line) - len(line.lstrip()) + 2

    return "\n".join(
        textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def write_log(lines: Sequence[tuple[str, str]], *, err: bool = False) -> None:
    """Print lines of a program's log at once, with `err` on stderr.

    Each text is one line or several, with the prefix in front of each.
    """
    colours = coloured(sys.stderr if err else sys.stdout)
    shown = []
    for prefix, text in lines:
        front = prefix and one_line(prefix)
        shown.append(front + log_text(text, colours=colours).replace("\n", f"\n{front}"))

    if shown:
        _echo("\n".join(shown), err=err)


def print_json(value: Any, *, indent: int | None = 2, exact: bool = False) -> None:
    """Print JSON on stdout, with control characters as JSON escapes.

    Numbers that JSON cannot hold become null. The result is YAML too, which some clouds' tools read.
    `exact`: with secrets, for a request that is sent.
    """
    text = strict_json(value, indent=indent, default=dict)
    if not exact:
        text = masker.mask_text(text)

    click.echo(escaped_json(text))


def write_script(text: str) -> None:
    """Print a script on stdout with its secrets, for a request that is sent; escape unsafe characters."""
    click.echo(escaped(text), nl=False)


def write_csv(text: str) -> None:
    """Print CSV on stdout, with unsafe characters escaped."""
    click.echo(shown(text), nl=False)


def bar(done: float, total: float, width: int = 16) -> str:
    """Return `━━━━────`, a progress bar. Raise ZeroDivisionError if `total` is 0."""
    filled = round(width * min(1.0, done / total))
    return "━" * filled + "─" * (width - filled)


def redraw(text: str) -> None:
    """Replace the current line on a terminal's stderr; an empty text clears it."""
    shown = ""
    if text:
        shown = f"  {one_line(text)}"

    sys.stderr.write(f"\r\x1b[K{shown}")
    sys.stderr.flush()


def draw_prompt(text: str) -> None:
    """Show a program's prompt on a terminal's stderr, behind which somebody types."""
    sys.stderr.write(f"\r\x1b[K  {one_line(text)}")
    sys.stderr.flush()


def redraw_lines(lines: Sequence[str], before: int) -> None:
    """Replace the last `before` lines on a terminal's stderr."""
    back = ""
    if before:
        back = f"\x1b[{before}A\x1b[J"

    sys.stderr.write(back + "".join(f"{one_line(line)}\n" for line in lines))
    sys.stderr.flush()


@contextmanager
def full_screen() -> Iterator[Callable[[Sequence[str]], None]]:
    """Open a full screen on stdout, yield its draw function, and restore the terminal."""
    out = sys.stdout

    def draw(lines: Sequence[str]) -> None:
        out.write("\x1b[H" + "".join(f"{one_line(line)}\x1b[K\n" for line in lines) + "\x1b[J")
        out.flush()

    out.write("\x1b[?1049h\x1b[?25l")
    try:
        yield draw
    finally:
        out.write("\x1b[?25h\x1b[?1049l")
        out.flush()


def progress_bar(label: str, *, bytes_: bool = False) -> Callable[[int, int], None]:
    """Return a callback that draws a progress bar on stderr.

    It draws only on a terminal, and after half a second. Call it with the number of files done and
    their total; with `bytes_`, of bytes.
    """
    started = time.monotonic()
    shown = False

    def draw(done: int, total: int) -> None:
        nonlocal shown
        if not sys.stderr.isatty() or not total or (time.monotonic() - started < 0.5 and not shown):
            return

        shown = True
        if done >= total:
            redraw("")
            return

        if bytes_:
            amount = f"{format_size(done)} of {format_size(total)}"
        else:
            amount = f"{done}/{total} files"

        redraw(f"{label} {bar(done, total, 24)} {amount}")

    return draw


def coloured(stream: Any) -> bool:
    """Return whether a stream shows colours: a terminal, without NO_COLOR and TERM=dumb."""
    return (
        stream is not None
        and bool(stream.isatty())
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )
