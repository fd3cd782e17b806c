"""Processes forked in advance with torch imported, which become programs of a run.

Such a program equals a new process. It is forked before its parent has threads, CUDA or open files,
and ends with its parent. Used in the warm process and its forks (warm_process.py); the launcher
finds this module as `RESERVED` in sys.modules. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from cloudtrain.providers.local.supervisor_status import RUN_DIR_VARIABLE
from cloudtrain_launcher.host import set_parent_death_signal

RESERVED = "_cloudtrain_reserved"
"""Name of this module for a launcher; its own modules may be of another version."""

ROOM = "CLOUDTRAIN_WARM_ROOM"
"""Variable of the warm process with space for a path: see `_show_run`."""
MAX_PATH_BYTES = 4096
ROOM_BYTES = MAX_PATH_BYTES + 64

_CLIENT_PACKAGES = ("cloudtrain", "cloudtrain_launcher", "cloudtrain_job")
_OF_THE_LAUNCHER = ("CLOUDTRAIN_", "PET_")
_READ_LATE = {
    "ACCELERATE_USE_CPU",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
}
"""Variables that a launcher sets for torchrun, and no import reads."""


@dataclass
class Start:
    """Start of the warm process's interpreter, and its reserved processes."""

    room: int = 0
    """Address of `ROOM`'s value, which /proc/PID/environ shows."""
    search_path: list[str] = field(default_factory=list)
    """`sys.path` without the program's own folder."""
    n_given: int = 0
    """Number of its entries from PYTHONPATH; they come first."""
    variables: dict[str, str] = field(default_factory=dict)
    """Variables of this program at its start."""
    processes: list[Reserved] = field(default_factory=list)


start_state = Start()


class Program:
    """A program in a reserved process: the used part of `subprocess.Popen`."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Reserved:
    """A process that waits until it becomes a program."""

    def __init__(self, n_reserved: int, siblings: Iterable[Reserved] = ()) -> None:
        """Fork it. `n_reserved`: processes for its program to reserve.

        `siblings`: earlier processes of the same parent.
        """
        self._socket, child_socket = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            for connection in (self._socket, *(sibling._socket for sibling in siblings)):
                connection.close()
            _wait(child_socket, parent, n_reserved)
        child_socket.close()

    def become(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, umask: int
    ) -> Program:
        """Start a program in it. Raise OSError if the process is gone."""
        message = json.dumps({"argv": list(argv), "env": dict(env), "cwd": cwd, "umask": umask})
        reader, writer = os.pipe()
        try:
            socket.send_fds(self._socket, [b"\0"], [writer])
            self._socket.sendall(message.encode())
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
            self._socket.close()
        return Program(self.pid, os.fdopen(reader, "rb", 0))


def reserve(count: int, n_reserved: int = 0) -> None:
    """Fork processes for programs that this one will start, each with `n_reserved` of them."""
    for _ in range(count):
        start_state.processes.append(Reserved(n_reserved, start_state.processes))


def start(
    argv: Sequence[str], env: Mapping[str, str], cwd: str | None = None, umask: int = -1
) -> Program | None:
    """Start `python -u PROGRAM ...` in a new session, with its output in a pipe.

    Return None if it needs a new process.
    """
    variables = start_state.variables
    first = argv[0] == sys.executable and argv[1] == "-u"
    if not first or (variables and not _starts_alike(variables, env)):
        return None
    while start_state.processes:
        process = start_state.processes.pop(0)
        try:
            return process.become(argv, env, cwd, umask)
        except OSError:  # it was killed
            process_gone(process.pid)
    return None


def process_gone(pid: int) -> None:
    """Collect a reserved process that was killed."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def _starts_alike(variables: Mapping[str, str], env: Mapping[str, str]) -> bool:
    """Return True if a new process with these variables would load the same modules."""
    changed = {name for name in {*variables, *env} if variables.get(name) != env.get(name)}
    if "PYTHONPATH" in changed:
        first_entries = _entries(variables)
        if _entries(env)[: len(first_entries)] != first_entries:
            return False
        changed.remove("PYTHONPATH")
    return all(name.startswith(_OF_THE_LAUNCHER) or name in _READ_LATE for name in changed)


def _entries(variables: Mapping[str, str]) -> list[str]:
    return [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]


def remember_start(search_path: list[str]) -> None:
    """Remember how this interpreter was started; call it in the warm process.

    Raise ValueError if PYTHONPATH is not absolute.
    """
    path_entries = _entries(os.environ)
    if search_path[: len(path_entries)] != path_entries:
        raise ValueError("PYTHONPATH names folders that are relative, or twice")
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    start_state.room = getenv(ROOM.encode()) or 0
    del os.environ[ROOM]
    start_state.search_path = search_path
    start_state.n_given = len(path_entries)
    sys.modules[RESERVED] = sys.modules[__name__]


def _wait(connection: socket.socket, parent: int, n_reserved: int) -> NoReturn:
    """Wait in the fork for a program, and become it."""
    code = 1
    try:
        set_parent_death_signal(parent)
        start_state.processes.clear()
        first, outputs, *_ = socket.recv_fds(connection, 1, 1)
        if not first:
            os._exit(0)
        message = read_message(connection)
        connection.close()
        become_new(message["env"], message["cwd"], outputs[0])
        if message["umask"] >= 0:
            os.umask(message["umask"])
        _show_run(message["env"])
        code = _run(message["argv"], message["env"], n_reserved)
    except BaseException:  # noqa: BLE001  (printed to the program's output)
        traceback.print_exc()
    os._exit(code)


def read_message(connection: socket.socket) -> dict[str, Any]:
    """Read one JSON object; the sender then closes the connection or waits."""
    received = b""
    while chunk := connection.recv(1 << 16):
        received += chunk
    message: dict[str, Any] = json.loads(received)
    return message


def become_new(env: Mapping[str, str], cwd: str | None, output: int) -> None:
    """Detach a fork from its parent: session, folder, streams, variables."""
    os.setsid()
    if cwd is not None:
        os.chdir(cwd)
    empty_input = os.open(os.devnull, os.O_RDONLY)
    for source, descriptor in ((empty_input, 0), (output, 1), (output, 2)):
        os.dup2(source, descriptor)
    os.close(empty_input)
    os.close(output)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None


def _show_run(env: Mapping[str, str]) -> None:
    """Show the run in /proc/PID/environ, so that a cleanup finds every process."""
    text = os.fsencode(f"\0{RUN_DIR_VARIABLE}={env[RUN_DIR_VARIABLE]}\0")
    ctypes.memmove(start_state.room, text.ljust(ROOM_BYTES, b"\0"), ROOM_BYTES)


def _run(argv: Sequence[str], env: Mapping[str, str], n_reserved: int) -> int:
    """Run the program of `python -u PROGRAM ...`; return its exit code."""
    program = argv[2]
    for name in list(sys.modules):
        if name.partition(".")[0] in _CLIENT_PACKAGES:
            del sys.modules[name]  # the program brings its own launcher
    added = _entries(env)[start_state.n_given :]
    head = start_state.search_path[: start_state.n_given]
    tail = start_state.search_path[start_state.n_given :]
    # `run_path` itself adds the folder of a package
    folder = [] if Path(program).is_dir() else [str(Path(program).parent)]
    sys.path[:] = [*folder, *head, *added, *tail]
    sys.argv = list(argv[2:])
    sys.orig_argv = list(argv)
    start_state.variables = dict(env)
    if n_reserved:
        reserve(n_reserved)
    else:
        del sys.modules[RESERVED]
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    else:
        code = 0
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the end of an interpreter does
    return code
