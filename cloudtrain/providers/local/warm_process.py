"""The warm process: with torch imported, it forks the supervisors of runs.

Their programs are forks of these. Started with CONTROL_FD by warm.py, which asks it for each run;
it ends with the process that has started it. Only the fork reads a run's message, so that no run's
variables stay in its memory. Standard library only, besides torch.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from cloudtrain.providers.local import provider, reserved, supervisor
from cloudtrain.source import unpack
from cloudtrain_launcher.fork_rules import reason_in_process

LOADED = (provider, supervisor, unpack)
"""Modules that every supervisor of a run under the plain contract imports."""

REAP_SECONDS = 1.0
"""Maximum delay until an ended supervisor is collected."""


def main(control_fd: int, search_path: list[str]) -> NoReturn:
    """Serve until the other end closes. `search_path`: `sys.path` of the programs."""
    try:
        control = socket.socket(fileno=control_fd)
        reserved.remember_start(search_path)
        reason = reason_in_process(())
        if reason:
            raise RuntimeError(reason)
        gc.collect()
        gc.freeze()  # forks do not collect, and copy, shared objects
        _serve(control)
    except BaseException:  # noqa: BLE001  (runs then start as new processes)
        traceback.print_exc()
    os._exit(0)


def _serve(control: socket.socket) -> None:
    installed = _installed()
    running: set[int] = set()
    while True:
        readable = select.select([control], [], [], REAP_SECONDS if running else None)[0]
        running = {pid for pid in running if not _has_ended(pid)}
        if not readable:
            continue
        request, files, *_ = socket.recv_fds(control, 1, 2)
        # the opener is gone, or the imported packages are out of date
        if not request or installed != _installed():
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _supervise(*files)
        for file in files:
            os.close(file)
        running.add(pid)


def _has_ended(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] != 0


def _installed() -> list[int]:
    """Return when packages were last installed or removed, as far as folders show it."""
    folders = set(map(Path, reserved.start_state.search_path)) & _imported_from()
    torch = Path(getattr(sys.modules.get("torch"), "__file__", os.devnull))
    times = []
    for path in (*sorted(folders), torch.with_name("version.py")):
        with suppress(OSError):
            times.append(path.stat().st_mtime_ns)
    return times


def _imported_from() -> set[Path]:
    """Return the folders of imported modules and packages."""
    files = [
        Path(file)
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None))
    ]
    return {folder for file in files for folder in file.parents[:2]}


def _supervise(connection_fd: int, log: int) -> NoReturn:
    """Become the supervisor of one run in the fork, as `backend.py` starts it."""
    code = 1
    try:
        with socket.socket(fileno=connection_fd) as connection:
            message = reserved.read_message(connection)
            reserved.become_new(message["env"], message["cwd"], log)
            connection.sendall(b"%d\n" % os.getpid())
        reserved.reserve(message["nodes"], n_reserved=1)
        code = supervisor.main(message["argv"])
    except BaseException:  # noqa: BLE001  (shown in the supervisor's log)
        traceback.print_exc()
    os._exit(code)
