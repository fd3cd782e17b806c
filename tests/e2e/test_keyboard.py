"""`breakpoint()` and `input()` of a local run, asked and answered in a terminal."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.command_line import CommandLine
from tests.support.waiting import HANG_SECONDS, eventually

ASKS = "value = 41\nbreakpoint()\nprint('value is', value)\n"

JOB = "name: asks\nentrypoint: train.py\n"


class Terminal:
    """A command whose terminal the test reads and types into."""

    def __init__(self, cli: CommandLine, *arguments: str) -> None:
        self._test_end, command_end = pty.openpty()
        os.set_blocking(self._test_end, False)
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *arguments],
            cwd=cli.folder / "job",
            env=cli.environment(TERM="xterm", COLUMNS="200"),
            stdin=command_end,
            stdout=command_end,
            stderr=command_end,
            start_new_session=True,
        )
        os.close(command_end)
        self.text = ""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._test_end, text.encode())

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Wait until the screen has had a text that many times."""
        eventually(lambda: self._read().count(text) >= times or self._fail_at_end(text))

    def end(self) -> int:
        """Read to the end; return the exit code."""
        eventually(lambda: self._read() and self.process.poll() is not None)
        self._read()
        return self.process.wait(timeout=HANG_SECONDS)

    def close(self) -> None:
        """End the command, if a failed test has left it."""
        self.process.kill()
        self.process.wait()
        os.close(self._test_end)

    def _read(self) -> str:
        with suppress(BlockingIOError, OSError):  # nothing to read now, or the command has ended
            while part := os.read(self._test_end, 4096):
                self.text += part.decode()

        return self.text

    def _fail_at_end(self, text: str) -> bool:
        if self.process.poll() is not None and text not in self._read():
            raise AssertionError(f"it ended without {text!r}: {self.text}")

        return False


START = """\
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from cloudtrain.cli import main
sys.exit(main())
"""


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Terminals of a test."""
    opened = list[Terminal]()
    yield opened
    for terminal in opened:
        terminal.close()


def submit(cli: CommandLine, terminals: list[Terminal], *more: str, asks: str = ASKS) -> Terminal:
    cli.write(job_yaml=JOB, train_py=asks)
    terminals.append(Terminal(cli, "submit", "--run-id", "k-1", *more))
    return terminals[-1]


@pytest.mark.parametrize("warm", ["true", "false"])
def test_breakpoint_asks_in_the_terminal(
    cli: CommandLine, terminals: list[Terminal], warm: str
) -> None:
    terminal = submit(cli, terminals, "--set", f"launch.warm={warm}")
    terminal.wait_for("(Pdb) ")
    assert cli.json("status", "k-1")["activity"] == "waiting at a prompt"

    terminal.type("value = value + 1\n")
    terminal.wait_for("(Pdb) ", times=2)
    terminal.type("c\n")
    assert terminal.end() == 0, terminal.text
    assert "value is 42" in terminal.text
    assert terminal.text.count("(Pdb) value = value + 1") == 1
    assert "(Pdb) value = value + 1" in cli.run("logs", "k-1").out


def test_thinking_at_the_prompt_is_no_hang(cli: CommandLine, terminals: list[Terminal]) -> None:
    terminal = submit(cli, terminals, "--set", "limits.hang=1s")
    asked = cli.wait_for_event("k-1", lambda event: event["type"] == "activity")
    eventually(lambda: time.time() > asked["time"] + 3)
    terminal.type("c\n")
    assert terminal.end() == 0, terminal.text


def test_ctrl_c_leaves_the_program_at_the_end_of_its_input(
    cli: CommandLine, terminals: list[Terminal]
) -> None:
    terminal = submit(cli, terminals)
    terminal.wait_for("(Pdb) ")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "left at its prompt" in terminal.text
    assert cli.run("wait", "k-1").code == 1
    assert not (cli.run_folder("k-1") / "keyboard").exists()


def test_quit_ends_the_run_without_a_diagnosis(cli: CommandLine, terminals: list[Terminal]) -> None:
    terminal = submit(cli, terminals)
    terminal.wait_for("(Pdb) ")
    terminal.type("q\n")
    assert terminal.end() == 1
    assert "ended at the debugger's prompt" in terminal.text
    assert "no-keyboard" not in terminal.text


def test_lines_of_the_shell_are_not_read(cli: CommandLine) -> None:
    program = "try:\n    print('got', input())\nexcept EOFError:\n    print('no line')\n"
    cli.write(job_yaml=JOB, train_py=program)
    commands = f"{shlex.quote(sys.executable)} -m cloudtrain submit; cat"
    result = subprocess.run(
        ["sh", "-c", commands],
        cwd=cli.folder / "job",
        env=cli.environment(),
        input="one\ntwo\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert "no line" in result.stderr
    assert result.stdout.endswith("one\ntwo\n")


def test_two_processes_have_no_keyboard(cli: CommandLine, terminals: list[Terminal]) -> None:
    terminal = submit(cli, terminals, "--processes", "2", asks="breakpoint()\n")
    assert terminal.end() == 1
    assert "a program asks in the terminal" in terminal.text
