"""Message over TCP from a trial's first node to its peers at its end. Standard library only.

Only the first node counts reports and decides. Its peers must learn of the end even without a
shared folder and while their ranks wait for each other. Each peer connects to the first node; data
from peers is not read.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

PORT_OFFSET = 1
"""Offset from the rendezvous port, which all nodes know."""

CONNECT_SECONDS = 0.5
"""Delay between a peer's connection attempts, and time limit of each."""

MAX_BYTES = 64


class Announcer:
    """The first node's end of the channel. Raise RuntimeError if the port is in use."""

    def __init__(self, address: str, port: int) -> None:
        """`address`: this node's, for its peers."""
        self._lock = threading.Lock()
        self._outcome = b""
        self._peers: list[socket.socket] = []
        try:
            self._server = socket.create_server((address, port), family=_family(address, port))
        except OSError as error:
            raise RuntimeError(
                f"port {port} of {address} cannot be used: {error.strerror or error}"
            ) from None
        threading.Thread(target=self._accept, daemon=True, name="peers of the trial").start()

    def announce(self, outcome: str) -> None:
        """Send the outcome to all peers, later ones included."""
        with self._lock:
            self._outcome = f"{outcome}\n".encode()
            for peer in self._peers:
                _send(peer, self._outcome)

    def close(self) -> None:
        """Stop accepting peers and close their connections."""
        with self._lock:
            for connection in (self._server, *self._peers):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:  # closed
                return
            with self._lock:
                self._peers.append(peer)
                if self._outcome:
                    _send(peer, self._outcome)


def listen(address: str, port: int, on_outcome: Callable[[str, float], None]) -> None:
    """Call `on_outcome` on a peer with the first node's word and its time, in a thread."""
    threading.Thread(
        target=_listen, args=(address, port, on_outcome), daemon=True, name="first node"
    ).start()


def _listen(address: str, port: int, on_outcome: Callable[[str, float], None]) -> None:
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
        except OSError:  # the first node does not listen yet
            time.sleep(CONNECT_SECONDS)
            continue
        with connection:
            connection.settimeout(None)
            try:
                data = connection.recv(MAX_BYTES)
            except OSError:
                data = b""
        if data:
            on_outcome(data.decode("ascii", "replace").strip(), time.time())
        return  # the first node ended without a word


def _send(peer: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        peer.sendall(data)


def _family(address: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
