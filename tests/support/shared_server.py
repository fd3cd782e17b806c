"""Servers that fork processes, shared by all workers of a test run: each imports its modules once.

A program of such a server has imported what its forks need, and calls `serve_each`. It forks a
server of its own for each worker that connects, and ends after the last of these.
"""

from __future__ import annotations

import gc
import hashlib
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
"""The same for all workers of a test run."""
LISTENER = 3
"""Descriptor on which a program accepts connections."""
READY = b"+"
ATTEMPTS = 3
START_SECONDS = 300
"""Maximum time of the imports of a program."""


def connect(kind: socket.SocketKind, argv: Sequence[str], env: Mapping[str, str]) -> socket.socket:
    """Return a connection to the server with these arguments, which is started if need be."""
    name = hashlib.sha256("\0".join((RUN, *argv)).encode()).hexdigest()
    for _ in range(ATTEMPTS):
        connection = socket.socket(socket.AF_UNIX, kind)
        connection.settimeout(START_SECONDS)
        with suppress(OSError):  # the last server ended at this moment
            _join(connection, f"\0cloudtrain {name}", argv, env)
            if connection.recv(1) == READY:
                connection.settimeout(None)
                return connection
        connection.close()
    raise ChildProcessError(f"the server does not start: {' '.join(argv)}")


def _join(
    connection: socket.socket, address: str, argv: Sequence[str], env: Mapping[str, str]
) -> None:
    """Connect to the address; start the server unless another worker has done so."""
    with socket.socket(socket.AF_UNIX, connection.type) as listener:
        while True:
            try:
                listener.bind(address)
                break
            except OSError:  # another worker has bound it, and may not listen yet
                with suppress(ConnectionRefusedError):
                    connection.connect(address)
                    return
            time.sleep(0.01)
        listener.listen(64)
        # Before the start: a worker that is killed leaves no server that waits for it.
        connection.connect(address)
        os.posix_spawn(
            sys.executable,
            [sys.executable, *argv],
            env,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, listener.fileno(), LISTENER),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
        )


def serve_each(serve: Callable[[socket.socket], object]) -> NoReturn:
    """Fork a server for each connection until the last of them has ended."""
    listener = socket.socket(fileno=LISTENER)
    servers: dict[int, int] = {}
    """Process id by the descriptor that tells of its end."""
    gc.freeze()  # a collection in a fork neither visits nor copies what is shared
    while True:
        ready, _, _ = select.select([listener.fileno(), *servers], [], [])
        for end in servers.keys() & set(ready):
            os.waitpid(servers.pop(end), 0)
            os.close(end)
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            pid = os.fork()
            if pid == 0:
                listener.close()
                for end in servers:
                    os.close(end)
                connection.send(READY)
                serve(connection)
                os._exit(0)  # the interpreter's own end would take longer
            connection.close()
            servers[os.pidfd_open(pid)] = pid
        elif not servers:
            os._exit(0)
