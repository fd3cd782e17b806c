"""A program that forks commands: it has imported the client and further modules for all of them.

Each message on its socket is a request, with the command's three standard streams and a pipe beside
it. The command writes its process id into the pipe, and the server how it ended. It serves until
the other end is closed. Standard library only: what is imported here, every command has imported.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

MAX_MESSAGE_BYTES = 200_000
"""Maximum size of a request; below Linux's default limit for one packet of a Unix socket."""
IMPORTED = (
    *(
        "cloudtrain.api.lookup",
        "cloudtrain.api.submit",
        "cloudtrain.providers.local.provider",
    ),
    *(
        f"cloudtrain.cli.{name}"
        for name in (
            "attach",
            "check",
            "doctor",
            "fetch",
            "follow",
            "list",
            "logs",
            "plan",
            "rerun",
            "status",
            "stop",
            "submit",
            "wait",
        )
    ),
)
"""Modules that most commands import: the client without any SDK."""


def become_command(request: dict[str, Any], streams: list[int], report: int) -> NoReturn:
    """Become `python -m cloudtrain`, or another program, in a new session.

    This ends the process.
    """
    try:
        os.setsid()
        for descriptor, stream in enumerate(streams):
            os.dup2(stream, descriptor)
            os.close(stream)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["env"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.path[0] = request["folder"]
        # Runpy writes the file's name over the first.
        sys.argv = [
            "cloudtrain",
            *request["arguments"],
        ]
        os.write(report, f"{os.getpid()}\n".encode())
        os.close(report)
        if request["program"]:
            execute: Any = import_module("warm_jobs").execute
            execute(request["program"][0], request["program"], os.environb)
        runpy.run_module("cloudtrain", run_name="__main__", alter_sys=True)
    except BaseException:  # noqa: BLE001  (shown among the command's errors)
        traceback.print_exc()
    os._exit(1)


def serve(connection: socket.socket) -> None:
    """Answer requests until the other end of the connection is closed."""
    running: dict[
        int, tuple[int, int]
    ] = {}  # by the descriptor that tells of its end: process id and pipe
    while True:
        ready, _, _ = select.select([connection.fileno(), *running], [], [])
        for end in running.keys() & set(ready):
            pid, report = running.pop(end)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with suppress(BrokenPipeError):  # nobody asks
                os.write(report, f"{code}\n".encode())
            os.close(report)
            os.close(end)
        if connection.fileno() not in ready:
            continue
        message, received, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, 4)
        if not message:
            return
        *streams, report = received
        pid = os.fork()
        if pid == 0:
            connection.close()
            for end, (_, end_of_child) in running.items():
                os.close(end)
                os.close(end_of_child)
            become_command(json.loads(message), streams, report)
        for stream in streams:
            os.close(stream)
        running[os.pidfd_open(pid)] = pid, report


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in (*IMPORTED, *sys.argv[1:]):
        import_module(name)
    serve_each: Any = import_module("shared_server").serve_each
    serve_each(serve)
