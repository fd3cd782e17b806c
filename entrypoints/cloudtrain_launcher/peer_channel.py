"""Tells the other nodes of a trial that the first one has ended it, by a word over TCP. Standard
library only.

The first node alone counts reports and decides. Its peers must hear of it, also where they share no
folder and where a program's ranks would wait for each other for ever. Each peer connects to the
first node; nothing it sends is read.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

PORT_OFFSET = 1
"""Added to the port of the rendezvous, which all nodes know."""

CONNECT_SECONDS = 0.5
"""Between two attempts of a peer to connect, and the longest time that one may take."""

MAX_BYTES = 64


class Announcer:
    """The first node's end. RuntimeError if the port is taken."""

    def __init__(self, address: str, port: int) -> None:
        """`address`: this node's, by which its peers reach it."""
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
        """Tell all peers, and those that connect later."""
        with self._lock:
            self._outcome = f"{outcome}\n".encode()
            for peer in self._peers:
                _send(peer, self._outcome)

    def close(self) -> None:
        """Accept no more peers, and hang up on those that are there."""
        with self._lock:
            for connection in (self._server, *self._peers):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
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
    """On a peer: call `on_outcome` with the first node's word and when it came, in a thread, if it
    ever comes.
    """
    threading.Thread(
        target=_listen, args=(address, port, on_outcome), daemon=True, name="first node"
    ).start()


def _listen(address: str, port: int, on_outcome: Callable[[str, float], None]) -> None:
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
        except OSError:  # it is not there yet
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
        return  # without a word the first node is gone


def _send(peer: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        peer.sendall(data)


def _family(address: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
