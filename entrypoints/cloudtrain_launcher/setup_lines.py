"""Shell lines of a job that prepare its node before the ranks. Standard library only."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import IO

from cloudtrain_launcher.contract import Job, NodeContext
from cloudtrain_launcher.environment import job_environment
from cloudtrain_wire.secret_values import is_secret_variable, masker

SHOWN_LINES = 5
"""Number of lines of output in the error."""

_OF_THE_SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}
_NOT_KEPT = ("BASH_FUNC_", "CLOUDTRAIN_")
"""Prefixes of variables that are not kept: functions of the shell, and our own."""


def run_setup(
    job: Job,
    context: NodeContext,
    scratch: Path,
    log: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> str:
    """Run the lines in one shell, log their output, and keep the variables that they export.

    They start with the variables of the ranks; what they change goes into `os.environ`. Return the
    Python that they have put on PATH; empty: none. Raise RuntimeError for a line that fails or ends
    the shell. Return early if `cancelled()` is true.
    """
    environment = job_environment(job, context, scratch, os.environ)
    search_path = environment.get("PATH")
    shell = shutil.which("bash", path=search_path) or "/bin/sh"
    exported = scratch / "setup-environment"
    masker.add(_secrets(job.setup))
    process = subprocess.Popen(
        [shell, "-c", _script(job.setup, shutil.which("env", path=search_path) or "env", exported)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101  (a pipe)
    output = _Output(process.stdout, job.setup, log)
    output.start()
    while process.poll() is None:
        if cancelled():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return ""

        time.sleep(0.05)

    output.join(timeout=1)  # a program in the background may keep the pipe open
    line = job.setup[output.current]
    if process.returncode:
        text = "".join(f"\n{text}" for text in output.last_lines)
        raise RuntimeError(f"setup: {line!r} exited with code {process.returncode}{text}")

    if output.current + 1 < len(job.setup) or not exported.exists():
        raise RuntimeError(
            f"setup: {line!r} ended the shell that runs all lines, before it had told its"
            " variables; leave out exit and exec"
        )

    changes = _changes(environment, _read(exported))
    return _keep(changes, shutil.which("python", path=search_path))


def _script(lines: Sequence[str], env: str, exported: Path) -> str:
    """Return a script that prints the number of each line between zero bytes before it runs.

    It writes its environment to a file, also if the last line is `exit 0`.
    """
    tell = f"{shlex.quote(env)} -0 >{shlex.quote(str(exported))}"
    parts = [f"trap {shlex.quote(tell)} EXIT"]
    for number, line in enumerate(lines):
        parts.append(f"printf '\\0%s\\0\\n' {number}")
        parts.append(f"eval {shlex.quote(line)}")
        parts.append("case $? in 0) ;; *) exit ;; esac")

    return "\n".join([*parts, tell])


class _Output(Thread):
    """Output of the lines, copied into the log."""

    def __init__(self, output: IO[bytes], lines: Sequence[str], log: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self.current = 0
        """Number of the line that has begun last."""
        self.last_lines: deque[str] = deque(maxlen=SHOWN_LINES)
        """Its last output."""
        self._output = output
        self._lines = lines
        self._log = log

    def run(self) -> None:
        with self._output:
            for line in self._output:
                self._copy(line)

    def _copy(self, line: bytes) -> None:
        before, _, number = line.rstrip(b"\0\n").partition(b"\0")
        if not number.isdigit():
            self._show(line)
            return

        if before:
            self._show(before)

        self.current = int(number)
        self.last_lines.clear()
        self._log(f"setup: {self._lines[self.current]}")

    def _show(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        self.last_lines.append(text)
        self._log(text)


def _secrets(lines: Sequence[str]) -> Iterator[str]:
    """Yield the values that lines assign to variables which probably hold a secret."""
    for line in lines:
        for word in line.replace(";", " ").split():
            name, _, value = word.partition("=")
            value = value.strip("\"'")
            if is_secret_variable(name, value) and not value.startswith("$"):
                yield value


def _read(exported: Path) -> dict[str, str]:
    """Read the output of `env -0`."""
    variables = {}
    for item in exported.read_bytes().split(b"\0"):
        name, _, value = os.fsdecode(item).partition("=")
        variables[name] = value

    return variables


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that differ, without the shell's and our own; None: removed."""
    changes = {}
    for name in before.keys() | after.keys():
        is_kept = name and name not in _OF_THE_SHELL and not name.startswith(_NOT_KEPT)
        if is_kept and before.get(name) != after.get(name):
            changes[name] = after.get(name)

    return changes


def _keep(changes: Mapping[str, str | None], python: str | None) -> str:
    """Change `os.environ`, mask probable secrets; return the Python that takes `python`'s place."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
            continue

        os.environ[name] = value
        if is_secret_variable(name, value):
            masker.add([value])

    found = shutil.which("python")
    return found if found and "PATH" in changes and found != python else ""
