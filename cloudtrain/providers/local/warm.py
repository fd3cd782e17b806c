"""Keeps a process that has imported torch, from which runs on this machine start: none of them
imports it again.

Open while a program starts many short runs, such as the trials of a sweep. The first run decides
its Python and its variables; a run that differs in one of them starts as it does otherwise, and so
does every run if it dies.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from cloudtrain.planning.launch import Launch
from cloudtrain.providers.local.reserved import MAX_PATH_BYTES, ROOM, ROOM_BYTES

ANSWER_SECONDS = 120
"""After this time without an answer it is given up; it may still be importing, from a cold disk."""
MAX_STARTS = 3
"""How often it is started, if it was killed or packages were installed meanwhile."""

_MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server",
)
"""What torchrun, and the ranks of most programs, import and what takes long."""
_PROGRAM = """
import sys
if sys.path[0] == "":  # not with PYTHONSAFEPATH
    del sys.path[0]
import importlib
for name in sys.argv[3].split():
    importlib.import_module(name)
found = list(sys.path)
sys.path.append(sys.argv[1])
from cloudtrain.providers.local.warm_process import main
main(int(sys.argv[2]), found)
"""

_PACKAGES = Path(__file__).parents[3]
"""The folder that this package is in."""

_open: dict[Path, WarmProcess] = {}


@contextmanager
def warm_process(data_dir: Path) -> Iterator[None]:
    """While it is open, runs of this data folder that this program starts need not import torch."""
    data_dir = data_dir.resolve()
    if data_dir in _open or sys.platform != "linux":
        yield
        return
    _open[data_dir] = warm = WarmProcess()
    try:
        yield
    finally:
        del _open[data_dir]
        warm.close()


def open_for(data_dir: Path) -> WarmProcess | None:
    """The one that is open for runs of this data folder."""
    return _open.get(data_dir.resolve()) if _open else None


class WarmProcess:
    """The process, once a run has asked for it. Threads may ask at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._alike: tuple[str, Mapping[str, str]] | None = None
        self._starts_left = MAX_STARTS
        self._has_answered = False

    def start(self, launches: Sequence[Launch], argv: Sequence[str], log: IO[bytes]) -> int | None:
        """Start a run's supervisor; its process id, or None if the run must start without us.

        `argv`: its arguments, first the run's folder. `launches`: the nodes' launchers, which it
        will start.
        """
        wanted = [_started_by(launch) for launch in launches]
        with self._lock:
            self._alike = self._alike or wanted[0]
            if (
                any(each != self._alike for each in wanted)
                or len(os.fsencode(argv[0])) > MAX_PATH_BYTES
            ):
                return None
            if self._control is None and not self._open_process(*self._alike):
                return None
            message = {
                "argv": list(argv),
                "cwd": argv[0],
                "env": dict(os.environ),
                "nodes": len(launches),
            }
            pid = self._ask(json.dumps(message).encode(), log)
            self._has_answered = self._has_answered or pid is not None
            if pid is None:
                self._end_process()
                self._starts_left *= (
                    self._has_answered
                )  # one that cannot even start is not started again
            return pid

    def close(self) -> None:
        """End the process; runs that it has started go on."""
        with self._lock:
            self._starts_left = 0
            self._end_process()

    def _open_process(self, python: str, variables: Mapping[str, str]) -> bool:
        if self._starts_left == 0:
            return False
        self._starts_left -= 1
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, suppress(OSError):
            self._process = subprocess.Popen(
                [
                    python,
                    "-u",
                    "-c",
                    _PROGRAM,
                    str(_PACKAGES),
                    str(theirs.fileno()),
                    " ".join(_MODULES),
                ],
                env={**variables, ROOM: "." * ROOM_BYTES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return self._process is not None

    def _ask(self, message: bytes, log: IO[bytes]) -> int | None:
        """Have it fork a supervisor; the process id. None if it is gone, or does not answer."""
        assert self._control is not None  # noqa: S101
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs:
                    socket.send_fds(self._control, [b"\0"], [theirs.fileno(), log.fileno()])
                ours.settimeout(ANSWER_SECONDS)
                ours.sendall(message)
                ours.shutdown(socket.SHUT_WR)
                answer = ours.recv(64)
            except OSError:
                return None
        return int(answer) if answer.endswith(b"\n") else None

    def _end_process(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _started_by(launch: Launch) -> tuple[str, Mapping[str, str]]:
    """The Python of a launcher, and the variables with which it starts, without ours and secret
    values.
    """
    secret = {
        *launch.secrets,
        *(location.partition(":")[2] for location in launch.secrets.values()),
    }
    variables = {**os.environ, **launch.env}
    return launch.argv[0], {
        name: value
        for name, value in variables.items()
        if name not in secret and not name.startswith("CLOUDTRAIN_")
    }
