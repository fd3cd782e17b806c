"""The terminal as the keyboard of a followed program: lines for `input()` and pdb, when it asks."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from pathlib import Path

from cloudtrain.cli.terminal import draw_prompt
from cloudtrain_wire.events import Activity
from cloudtrain_wire.prompts import AT_PROMPT

MAX_LINE_BYTES = 1 << 16


class Keyboard:
    """The named pipe to a program, and its open question. `pipe`: the last client that opens it answers."""

    def __init__(self, pipe: Path) -> None:
        self._pipe = pipe
        self._prompt: str | None = None
        self._is_drawn = False
        self._echo: str | None = None
        with suppress(OSError):
            pipe.unlink()
        os.mkfifo(pipe, 0o600)
        self._file = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # to write alone needs a reader

    @property
    def is_asked(self) -> bool:
        """True while the program waits for a line."""
        return self._prompt is not None

    def note(self, event: Activity) -> None:
        """Note that the program asks, or has its answer."""
        self._is_drawn = False
        self._prompt = event.prompt if event.activity == AT_PROMPT else None

    def is_echo(self, text: str) -> bool:
        """Return whether a line of the log repeats the question and its answer, once."""
        is_echo = text == self._echo
        if is_echo:
            self._echo = None

        return is_echo

    def serve(self) -> None:
        """Draw the prompt, and send the line if one was typed. Do not wait for it."""
        if self._prompt is None:
            return

        if not self._is_drawn:
            self._is_drawn = True
            draw_prompt(self._prompt)

        if not (_is_in_foreground() and select.select([0], [], [], 0)[0]):
            return

        line = os.read(0, MAX_LINE_BYTES)
        if not line:
            self.close()
            return

        self._echo = self._prompt + line.decode("utf-8", "replace").rstrip("\n")
        self._prompt = None
        with suppress(OSError):
            os.write(self._file, line)

    def close(self) -> None:
        """End the program's input."""
        self._prompt = None
        if self._file < 0:
            return

        with suppress(OSError):
            if os.path.samestat(os.fstat(self._file), self._pipe.stat()):
                self._pipe.unlink()

        os.close(self._file)
        self._file = -1


def _is_in_foreground() -> bool:
    """Return False for a command that a shell runs in the background: others read the terminal."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # no shell controls this terminal
        return True


def keyboard_for(pipe: Path) -> Keyboard | None:
    """Return the keyboard if this command runs in a terminal. None if the disk refuses the pipe."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    try:
        return Keyboard(pipe)
    except OSError:
        return None
