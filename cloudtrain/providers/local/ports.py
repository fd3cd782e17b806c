"""A free port that stays free until it is bound."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port on loopback that the system will hand to nobody else for the next minute.

    A connection through it is closed from the listening side first: the port then rests in TIME_WAIT, which keeps it
    from being chosen for others, while a server that asks for it by number (with SO_REUSEADDR, as torch does) gets it.
    """
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        address = server.getsockname()
        with socket.socket() as client:
            client.connect(address)
            accepted, _ = server.accept()
            accepted.close()
            client.recv(1)
        return int(address[1])
