"""Free ports of this machine. Standard library only."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that the system assigns to no other process for a minute.

    The port above is reserved too: there the first node of a trial reports its end.
    """
    while True:
        port = _reserve_port(0)
        try:
            with socket.socket() as server:
                server.bind(("127.0.0.1", port + 1))

            _reserve_port(port + 1)
        except (OSError, OverflowError):  # in use, or above the last port
            continue

        return port


def _reserve_port(port: int) -> int:
    """Reserve a port for a minute and return its number; 0: any free port.

    The listening side of a connection closes it first. The port is then in TIME_WAIT: the system
    does not choose it, but a server with SO_REUSEADDR, such as torch's, gets it by number.
    """
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen(1)
        address = server.getsockname()

        with socket.socket() as client:
            client.connect(address)
            accepted, _ = server.accept()
            accepted.close()
            client.recv(1)

        return int(address[1])
