"""Record processes and connections that code starts, from Python's audit events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty")
_CONNECTIONS = (
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "socket.getaddrinfo",
    "socket.gethostbyname",
)


@dataclass
class Effects:
    """Effects of one thread since `recorded` began."""

    is_forbidden: bool = False
    processes: list[str] = field(default_factory=list)
    """Arguments of each process."""
    connections: list[str] = field(default_factory=list)
    """Call and address of each connection."""


@contextmanager
def recorded(*, is_forbidden: bool = False) -> Iterator[Effects]:
    """Record processes and connections of this thread; calls of git do not count.

    `is_forbidden`: they fail as well.
    """
    _install()
    thread = threading.get_ident()
    effects = Effects(is_forbidden)
    _RECORDING[thread] = effects
    try:
        yield effects
    finally:
        del _RECORDING[thread]


_RECORDING: dict[int, Effects] = {}
"""By thread: an imitated cloud may use other threads."""
_INSTALLED: list[bool] = []


def _install() -> None:
    """Install the hook once: Python cannot remove it. It is cheap without a recorder."""
    if not _INSTALLED:
        _INSTALLED.append(True)
        sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _RECORDING or event not in _PROCESSES + _CONNECTIONS:
        return
    effects = _RECORDING.get(threading.get_ident())
    if effects is None or _is_git(event, arguments):
        return
    if event in _PROCESSES:
        effects.processes.append(repr(arguments[1] if event == "subprocess.Popen" else arguments))
    else:
        effects.connections.append(f"{event}{arguments!r}")
    if effects.is_forbidden:
        raise PermissionError(f"{event} is not allowed here")


def _is_git(event: str, arguments: tuple[Any, ...]) -> bool:
    words = arguments[1] if event == "subprocess.Popen" else ()
    return isinstance(words, (list, tuple)) and bool(words) and Path(str(words[0])).name == "git"
