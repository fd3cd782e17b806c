"""A command that runs unchanged, once per node, without torchrun. Standard library only.

Its nodes meet at the first node's port before they start, because not every platform names all of
them. Each sends the job's run id, its rank, host and a free port, and gets the hosts of all nodes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from cloudtrain_launcher.contract import PYTHON, Job, NodeContext
from cloudtrain_launcher.environment import expand_placeholders
from cloudtrain_wire.ports import free_port
from cloudtrain_wire.rank_variables import RANK_VARIABLES

MEETING_SECONDS = 900.0
"""Maximum wait for all nodes, which pull the image at different speeds."""

POLL_SECONDS = 0.5
"""Time limit of one call on a socket, and pause between two attempts to connect."""

MAX_BYTES = 1 << 20
"""Maximum size of a message: 1000 nodes need a tenth of it."""

Host = tuple[str, int]
"""Name or address of a node, and a port that was free there."""


def meet(
    job: Job,
    context: NodeContext,
    cancelled: Callable[[], bool],
    seconds: float = MEETING_SECONDS,
) -> tuple[Host, ...]:
    """Wait for all nodes and return their hosts by rank; none if `cancelled()` is true.

    Raise TimeoutError if a node does not arrive, OSError if the port is in use.
    """
    deadline = time.monotonic() + seconds

    def is_waiting() -> bool:
        return time.monotonic() < deadline and not cancelled()

    if context.node_rank == 0:
        hosts = _gather(job, context, is_waiting)
    else:
        hosts = _ask(job, context, is_waiting)

    missing = [str(node) for node in range(context.nodes) if node not in hosts]
    if missing and cancelled():
        return ()

    if missing:
        nodes = "the first node"
        if hosts:
            nodes = f"node {', '.join(missing)}"

        place = f"{context.master_addr} port {context.master_port}"
        raise TimeoutError(f"{nodes} did not come to {place} within {seconds:.0f} s")

    return tuple(hosts[node] for node in range(context.nodes))


def _gather(job: Job, context: NodeContext, is_waiting: Callable[[], bool]) -> dict[int, Host]:
    """Collect the hosts of all nodes on the first one, and send them to the others."""
    hosts = {0: (context.address or context.master_addr, free_port())}
    if context.nodes == 1:
        return hosts

    place = (context.master_addr, context.master_port)
    family = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0]
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(place, family=family))
        server.settimeout(POLL_SECONDS)
        connections = []
        while len(hosts) < context.nodes and is_waiting():
            # Nobody came, a stranger, or a node whose message is late: closed, it comes again.
            with suppress(OSError, ValueError, TypeError), ExitStack() as unknown:
                connection, peer = server.accept()
                unknown.enter_context(connection).settimeout(POLL_SECONDS)
                run_id, node, host, port = json.loads(_read_line(connection, lambda: False))
                if run_id == job.run_id and 0 < int(node) < context.nodes:
                    hosts[int(node)] = (str(host or peer[0]), int(port))
                    connections.append(connection)
                    stack.push(unknown.pop_all())

        answer = json.dumps(hosts).encode() + b"\n"
        for connection in connections if len(hosts) == context.nodes else ():
            with suppress(OSError):
                connection.sendall(answer)
                # The side that closes first keeps the port busy, and the command may listen here.
                connection.recv(1)

    return hosts


def _ask(job: Job, context: NodeContext, is_waiting: Callable[[], bool]) -> dict[int, Host]:
    """Send this node's host to the first node and return the hosts of all; none if it is late."""
    message = json.dumps([job.run_id, context.node_rank, context.address, free_port()])
    while is_waiting():
        try:
            place = (context.master_addr, context.master_port)
            with socket.create_connection(place, timeout=POLL_SECONDS) as connection:
                connection.sendall(message.encode() + b"\n")
                hosts = json.loads(_read_line(connection, is_waiting))
                return {int(node): (str(host), int(port)) for node, (host, port) in hosts.items()}
        except (OSError, ValueError):  # the first node does not listen yet
            time.sleep(POLL_SECONDS)

    return {}


def _read_line(connection: socket.socket, is_waiting: Callable[[], bool]) -> bytes:
    """Read a line, as long as `is_waiting()`. Raise OSError or ValueError if none comes."""
    data = b""
    while not data.endswith(b"\n"):
        try:
            chunk = connection.recv(MAX_BYTES)
        except TimeoutError:
            if not is_waiting():
                raise

            continue

        data += chunk
        if not chunk or len(data) > MAX_BYTES:
            raise ValueError("not a line")

    return data


def replace_process(job: Job, folder: Path) -> str:
    """Run the command in place of this process; return the reason if that is impossible.

    A program that is a file of `folder` needs no path, and a .py file no interpreter. Variables of
    a rank, which this process needs, are left out unless the job asks for them.
    """
    python = os.environ.pop(PYTHON)
    words = [job.target, *expand_placeholders(job.command, os.environ), *job.argv]
    file = folder / job.target
    if job.target in ("python", "python3"):  # the job's own, with its packages
        words[0] = python
    elif file.is_file() and file.suffix == ".py":
        words.insert(0, python)
    elif file.is_file():
        words[0] = str(file)

    env = dict(os.environ)
    if not job.rank_variables:
        for name in RANK_VARIABLES:
            env.pop(name, None)

    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and a program would inherit that
        signal.signal(getattr(signal, name), signal.SIG_DFL)

    try:
        os.execvpe(words[0], words, env)  # noqa: S606  (no shell is wanted)
    except OSError as error:
        return f"cannot run {job.target!r}: {error.strerror}"
