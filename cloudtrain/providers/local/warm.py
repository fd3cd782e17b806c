"""Keep a process with torch imported, to start runs on this machine from.

Open while a program starts many short runs, such as the trials of a sweep. The first run determines
its Python and its variables; a run that differs starts as usual, and so does every run if the
process dies.
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
"""Timeout of an answer; it may still be importing from a cold disk."""
MAX_STARTS = 3
"""Maximum number of starts, after kills or installations of packages."""

_MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server",
)
"""Slow imports of torchrun and of most programs' ranks."""
_PROGRAM = """
import sys
if sys.path[0] == "":  # not with PYTHONSAFEPATH
    del sys.path[0]
import importlib
for name in sys.argv[3].split():
    importlib.import_module(name)
search_path = list(sys.path)
sys.path.append(sys.argv[1])
from cloudtrain.providers.local.warm_process import main
main(int(sys.argv[2]), search_path)
"""

_PACKAGES = Path(__file__).parents[3]
"""Folder that contains this package."""

_open: dict[Path, WarmProcess] = {}


@contextmanager
def warm_process(data_dir: Path) -> Iterator[None]:
    """Open a context for runs of this program and data folder without an import of torch."""
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
    """Return the open process for runs of this data folder, or None."""
    return _open.get(data_dir.resolve()) if _open else None


class WarmProcess:
    """The process, started by the first run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._alike: tuple[str, Mapping[str, str]] | None = None
        self._starts_left = MAX_STARTS
        self._has_answered = False

    def start(self, launches: Sequence[Launch], argv: Sequence[str], log: IO[bytes]) -> int | None:
        """Start a run's supervisor; return its process id, or None for a normal start.

        `argv`: its arguments, first the run's folder. `launches`: the nodes' launchers that it will
        start.
        """
        environments = [_started_by(launch) for launch in launches]
        with self._lock:
            self._alike = self._alike or environments[0]
            if (
                any(environment != self._alike for environment in environments)
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
                # a process that never answered is not started again
                self._starts_left *= self._has_answered
            return pid

    def close(self) -> None:
        """End the process; its runs continue."""
        with self._lock:
            self._starts_left = 0
            self._end_process()

    def _open_process(self, python: str, variables: Mapping[str, str]) -> bool:
        if self._starts_left == 0:
            return False
        self._starts_left -= 1
        self._control, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_socket, suppress(OSError):
            self._process = subprocess.Popen(
                [
                    python,
                    "-u",
                    "-c",
                    _PROGRAM,
                    str(_PACKAGES),
                    str(child_socket.fileno()),
                    " ".join(_MODULES),
                ],
                env={**variables, ROOM: "." * ROOM_BYTES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[child_socket.fileno()],
                start_new_session=True,
            )
        return self._process is not None

    def _ask(self, message: bytes, log: IO[bytes]) -> int | None:
        """Ask the process for a supervisor; return its process id, or None without an answer."""
        assert self._control is not None  # noqa: S101
        own_end, child_end = socket.socketpair()
        with own_end:
            try:
                with child_end:
                    socket.send_fds(self._control, [b"\0"], [child_end.fileno(), log.fileno()])
                own_end.settimeout(ANSWER_SECONDS)
                own_end.sendall(message)
                own_end.shutdown(socket.SHUT_WR)
                answer = own_end.recv(64)
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
    """Return the Python and the variables of a launcher, without ours and secret values."""
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
