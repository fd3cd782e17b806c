"""The first node of a trial tells its peers that it has ended, whenever they connect."""

from __future__ import annotations

import queue
import socket
import time

import pytest

from cloudtrain_launcher import peer_channel
from cloudtrain_launcher.host import free_port
from cloudtrain_launcher.peer_channel import Announcer, listen
from tests.support.waiting import HANG_SECONDS

HERE = "127.0.0.1"


def test_peers_that_are_there_and_those_that_come_later_hear_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_channel, "CONNECT_SECONDS", 0.05)
    heard: queue.Queue[tuple[str, float]] = queue.Queue()
    port = free_port()
    began = time.time()
    # Before there is anything to connect to.
    listen(HERE, port, lambda *message: heard.put(message))
    first = Announcer(HERE, port)
    first.announce("pruned")
    assert heard.get(timeout=HANG_SECONDS)[0] == "pruned"
    listen(HERE, port, lambda *message: heard.put(message))
    outcome, when = heard.get(timeout=HANG_SECONDS)
    assert (outcome, began <= when <= time.time()) == ("pruned", True)
    first.close()


def test_a_first_node_that_ends_without_a_word_is_no_end_of_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_channel, "CONNECT_SECONDS", 0.05)
    heard: list[str] = []
    with socket.create_server((HERE, 0)) as server:
        listen(HERE, server.getsockname()[1], lambda outcome, _: heard.append(outcome))
        connection, _ = server.accept()
        connection.close()
    assert heard == []


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            RuntimeError, match=f"port {port} of {HERE} cannot be used: Address already in use"
        ):
            Announcer(HERE, port)
