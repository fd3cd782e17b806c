"""Scheduled Events: an event that ends this machine is detected, and polling ends without a
service.
"""

from __future__ import annotations

import socket

import pytest

from cloudtrain_launcher import stop
from cloudtrain_launcher.stop import (
    ScheduledEvents,
    scheduled_events_url,
    terminating_event,
)
from tests.fakes.azure.metadata import Metadata, metadata
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll quickly, with a proxy configured that does not work."""
    monkeypatch.setattr(stop, "EVENTS_POLL_SECONDS", 0.01)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


def polling(server: Metadata) -> ScheduledEvents:
    scheduled_events = ScheduledEvents(server.url)
    scheduled_events.watch()
    assert eventually(lambda: server.asked >= 3)
    return scheduled_events


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_an_event_that_ends_this_machine_is_found(kind: str) -> None:
    event = {"EventType": kind, "Resources": ["a", "b"], "NotBefore": ""}
    assert terminating_event({"Events": [event]}, "b") == f"{kind}, now"
    assert terminating_event({"Events": [event]}, "c") == ""


def test_a_short_freeze_and_events_of_other_machines_are_ignored() -> None:
    with metadata("gpu-cluster_3") as server:
        server.announce("Preempt", "gpu-cluster_2")
        server.announce("Freeze", "gpu-cluster_3")
        scheduled_events = polling(server)
        before = server.asked
        assert eventually(lambda: server.asked > before + 2)
        assert scheduled_events.event == ""
        server.announce("Preempt", "gpu-cluster_3")
        assert eventually(lambda: scheduled_events.event), "and the thread has ended"


def test_polling_ends_if_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    requested: list[str] = []
    get = ScheduledEvents._get

    def counted(self: ScheduledEvents, path: str) -> bytes:
        requested.append(path)
        return get(self, path)

    monkeypatch.setattr(ScheduledEvents, "_get", counted)
    scheduled_events = ScheduledEvents(f"http://127.0.0.1:{port}")
    scheduled_events._watch()
    assert (len(requested), scheduled_events.event) == (stop.MAX_FAILURES, "")


def test_the_url_is_azures_unless_a_variable_changes_it() -> None:
    assert scheduled_events_url({}) == "http://169.254.169.254"
    assert scheduled_events_url({stop.URL_VARIABLE: "off"}) == ""
    assert scheduled_events_url({stop.URL_VARIABLE: "http://127.0.0.1:1"}) == "http://127.0.0.1:1"
