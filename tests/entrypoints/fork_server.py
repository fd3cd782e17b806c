"""A program that forks the ranks of a group. It has imported the modules that it is given, so a
start takes 0.1 s.

Each line on its socket, which becomes its standard streams, is a request (groups.py). It answers
with the process ids of the ranks, and later with the exit code of each. At a line `null`, or the
end of the input, it kills the ranks that are left.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "entrypoints/job"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "entrypoints"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.shared_server import serve_each

POLL_SECONDS = 0.02
CPU_SECONDS = 240
"""CPU time that a rank may take."""


def find(name: str) -> Any:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def run_rank(request: dict[str, Any], rank: int, log: int) -> NoReturn:
    """Become this rank of the group: its output goes to a file, its environment is the request's.
    Ends the process.
    """
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        for source, descriptor in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, descriptor)
        os.close(null)
        os.close(log)
        os.setsid()  # as torchrun starts a rank
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["env"], RANK=str(rank), LOCAL_RANK=str(rank))
        sys.argv = request["argv"]
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        if request["before"]:
            find(request["before"])(rank)
        find(request["program"])()
    except BaseException:  # noqa: BLE001  (shown in the rank's log, whatever it is)
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(1)


def start(request: dict[str, Any]) -> list[int]:
    """Fork the ranks; returns their process ids."""
    pids = []
    for rank, path in enumerate(request["logs"]):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        pid = os.fork()
        if pid == 0:
            run_rank(request, rank, log)
        os.close(log)
        pids.append(pid)
    return pids


def answer(**message: Any) -> None:
    """Write one line of JSON."""
    os.write(1, (json.dumps(message) + "\n").encode())


def serve(connection: socket.socket) -> NoReturn:
    """Answer requests until one is `null`, or the input ends."""
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    connection.close()
    running: set[int] = set()
    received = b""
    requested = True
    while requested:
        if select.select([0], [], [], POLL_SECONDS if running else None)[0]:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                break
            *lines, received = (received + chunk).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if request is None:
                    requested = False
                    break
                pids = start(request)
                running.update(pids)
                answer(started=pids)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                answer(ended=pid, code=os.waitstatus_to_exitcode(status))
    for pid in running:
        os.killpg(pid, signal.SIGKILL)
    os._exit(0)  # the interpreter's own end would take seconds


if __name__ == "__main__":
    for name in sys.argv[1:]:
        import_module(name)
    serve_each(serve)
