"""Commands that start in a few milliseconds: forks of one process per set of modules, which has
imported them.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TextIO

from tests.support.shared_server import connect

PROGRAM = Path(__file__).with_name("command_server.py")
READ_AT_START = ("PYTHON", "COVERAGE_", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_")
"""Prefixes of variables that an interpreter or its libraries read when they start: a fork would not
heed them.
"""

ARGV_BUFFER = "buffer=" + 16_000 * "."
"""Arguments and variables so long that a fork can write its own over them, where /proc shows them
(warm_jobs.py).
"""


class ForkedCommand:
    """A command that a server has forked: the part of `subprocess.Popen` that tests use, with text
    streams.
    """

    def __init__(self, report: int, stdout: TextIO, stderr: TextIO) -> None:
        """`report`: the pipe with its process id and then its exit code, a line each."""
        self._report = os.fdopen(report, "rb", buffering=0)
        self.stdout = stdout
        self.stderr = stderr
        self.returncode = None
        self._output: dict[TextIO, str] = {}
        self._readers: list[threading.Thread] = []
        self.pid = int(self._report.readline() or 0)
        if not self.pid:
            raise ChildProcessError(f"the command was not started: {stderr.read()}")

    returncode: int | None
    """How it ended, negative for a signal; None until `poll` or a wait has seen it."""

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._end(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. `subprocess.TimeoutExpired` after `timeout` seconds."""
        code = self._end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"command {self.pid}", timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return the remaining output of it and its children, when all have closed it and it has
        ended.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._readers:
            for stream in (self.stdout, self.stderr):
                self._readers.append(
                    threading.Thread(target=self._read, args=(stream,), daemon=True)
                )
                self._readers[-1].start()
        for reader in self._readers:
            reader.join(_remaining(deadline))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"the output of command {self.pid}", timeout or 0)
        self.wait(_remaining(deadline))
        return self._output[self.stdout], self._output[self.stderr]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # the server has not said yet that it has ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def _read(self, stream: TextIO) -> None:
        with stream:
            self._output[stream] = stream.read()

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], timeout)[0]:
            # No line: the server was killed.
            self.returncode = int(self._report.readline() or -signal.SIGKILL)
            self._report.close()
        return self.returncode


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class CommandServer:
    """A process that has imported the client and these modules, and forks commands until it is
    closed.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        argv = ["-X", ARGV_BUFFER, str(PROGRAM), *modules]
        env = {**os.environ, "ARGV_BUFFER": ARGV_BUFFER}
        self._connection = connect(socket.SOCK_SEQPACKET, argv, env)
        self._at_start = _read_at_start(os.environ)
        atexit.register(self.close)

    def can_start(self, env: Mapping[str, str]) -> bool:
        """Return whether a command with these variables behaves the same when forked."""
        return _read_at_start(env) == self._at_start

    def start(
        self,
        arguments: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        *,
        program: Sequence[str] = (),
    ) -> ForkedCommand:
        """Start `cloudtrain ARGUMENTS`, or with `warm_jobs` a program, in a new session, without
        input.

        A program's errors go where its output goes.
        """
        message = {
            "arguments": arguments,
            "folder": str(folder),
            "env": dict(env),
            "program": program,
        }
        request = json.dumps(message).encode()
        (out, out_end), (err, err_end), (report, report_end) = os.pipe(), os.pipe(), os.pipe()
        if program:
            os.dup2(out_end, err_end)
        nothing = os.open(os.devnull, os.O_RDONLY)
        child_ends = [nothing, out_end, err_end, report_end]
        socket.send_fds(self._connection, [request], child_ends)
        for descriptor in child_ends:
            os.close(descriptor)
        return ForkedCommand(
            report, os.fdopen(out, encoding="utf-8"), os.fdopen(err, encoding="utf-8")
        )

    def close(self) -> None:
        """Close the server; running commands continue."""
        self._connection.shutdown(socket.SHUT_WR)
        self._connection.recv(1)  # until it has ended
        self._connection.close()


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


@cache
def command_server(*modules: str) -> CommandServer | None:
    """Return the one server of this process with these modules; None if the system cannot watch its
    commands.
    """
    return CommandServer(modules) if hasattr(os, "pidfd_open") else None
