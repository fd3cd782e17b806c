"""Launchers forked from a process that has imported torch, whose agents are forks too: a start
costs 0.3 s, not 2.5.

All else is as on a platform: launcher and agent have processes, variables, sessions, signals and
streams of their own. That it starts as a new process too is shown by tests whose launcher is one:
`new_process` in test_launcher.py.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from tests.entrypoints.groups import ForkServer
from tests.support.waiting import HANG_SECONDS

MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server",
)
REPOSITORY = Path(__file__).resolve().parents[2]
OF_TESTS = (
    REPOSITORY,
    REPOSITORY / "tests/entrypoints",
    REPOSITORY / "entrypoints",
    REPOSITORY / "entrypoints/job",
)
"""Folders where the fork server finds modules, and a launcher must not."""
POLL_SECONDS = 0.01

_servers: list[ForkServer] = []


def close_server() -> None:
    """End the server, if one has been started."""
    while _servers:
        _servers.pop().close()


class ForkedLauncher:
    """A launcher's process and its output: what tests use of `subprocess.Popen`. `entry`: the
    folder that is run.
    """

    def __init__(self, entry: Path, folder: Path, env: Mapping[str, str]) -> None:
        if not _servers:
            _servers.append(ForkServer(*MODULES))
        self._server = _servers[0]
        reader, writer = os.pipe()
        request = {"folder": str(folder), "argv": [str(entry)], "env": dict(env), "before": ""}
        request |= {
            "logs": [f"/proc/{os.getpid()}/fd/{writer}"],
            "program": "tests.entrypoints.warm_launchers:main",
        }
        (self.pid,) = self._server.start(request)
        os.close(writer)
        self.stdout = os.fdopen(reader, encoding="utf-8", errors="replace")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            self.returncode = self._server.code(self.pid, time.monotonic() + POLL_SECONDS)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        """The rest of the output, when the process has ended; after `timeout` seconds it is killed."""
        watch = threading.Timer(timeout, os.killpg, (self.pid, signal.SIGKILL))
        watch.start()
        with self.stdout:
            text = self.stdout.read()
        self.returncode = self._server.code(self.pid, time.monotonic() + HANG_SECONDS)
        watch.cancel()
        return text, None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


class ForkedAgent:
    """The agent as a fork of the launcher: what the launcher uses of `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **_: Any) -> None:
        reader, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            become_agent(command, env, writer)
        os.close(writer)
        self.stdout = os.fdopen(reader, "rb")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def become_agent(command: Sequence[str], env: Mapping[str, str], output: int) -> NoReturn:
    """In a fork of the launcher: be what `python -u agent.py ...` is, and end."""
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 1024)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        for name in [name for name in sys.modules if name.startswith("cloudtrain_")]:
            del sys.modules[name]
        getattr(weakref.finalize, "_registry").clear()  # noqa: B009  (else the launcher's scratch folder ends with a rank)
        os.environ.clear()
        os.environ.update(env)
        agent = command[2]
        paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
        # The launcher's variables: its folder, and the job's.
        sys.path[:2] = [
            str(Path(agent).parent),
            *paths,
        ]
        sys.argv = list(command[2:])
        sys.orig_argv = list(command)
        runpy.run_path(agent, run_name="__main__")
    except BaseException:  # noqa: BLE001  (shown in the launcher's log, whatever it is)
        traceback.print_exc()
    os._exit(1)


def main() -> NoReturn:
    """Run the launcher in this process."""
    for path in OF_TESTS:
        sys.path.remove(str(path))
    entry = sys.argv[0]
    sys.path[:0] = [entry, str(Path(entry) / "job")]
    torchrun: Any = __import__("cloudtrain_launcher.torchrun").torchrun
    streams = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "STDOUT")}
    torchrun.subprocess = SimpleNamespace(Popen=ForkedAgent, **streams)
    sys.path.pop(1)  # the launcher adds it
    code = 1
    try:
        runpy.run_path(entry, run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)
