"""A machine of Azure that is announced to be taken away is told of; where nobody answers, nobody is asked for long."""

from __future__ import annotations

import socket

import pytest

from cloudtrain_launcher import stop_sources
from cloudtrain_launcher.stop_sources import ScheduledEvents, scheduled_events_url, terminating_event
from tests.fakes.azure.metadata import Metadata, metadata
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other quickly, and a proxy stands in the way of whoever asks one."""
    monkeypatch.setattr(stop_sources, "EVENTS_POLL_SECONDS", 0.01)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")


def watched(server: Metadata) -> ScheduledEvents:
    found = ScheduledEvents(server.url)
    found.watch()
    assert eventually(lambda: server.asked >= 3)
    return found


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_what_ends_this_machine_is_seen(kind: str) -> None:
    with metadata("gpu-cluster_3") as server:
        found = watched(server)
        assert found.event == ""
        server.announce(kind, "gpu-cluster_2", "gpu-cluster_3")
        assert eventually(lambda: found.event)
    assert found.event == f"{kind}, not before Mon, 19 Sep 2016 18:29:47 GMT"


def test_what_passes_or_concerns_a_neighbour_is_passed_over() -> None:
    with metadata("gpu-cluster_3") as server:
        server.announce("Preempt", "gpu-cluster_2")
        server.announce("Freeze", "gpu-cluster_3")
        found = watched(server)
        before = server.asked
        assert eventually(lambda: server.asked > before + 2)
        assert found.event == ""
        server.announce("Preempt", "gpu-cluster_3")
        assert eventually(lambda: found.event), "and the thread has ended"


def test_an_event_that_has_begun_has_no_time_before_it() -> None:
    event = {"EventType": "Preempt", "Resources": ["a"], "NotBefore": ""}
    assert terminating_event({"Events": [event]}, "a") == "Preempt, now"


def test_where_nobody_answers_nobody_is_asked_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    asked: list[str] = []
    ask = ScheduledEvents._get

    def counted(self: ScheduledEvents, path: str) -> bytes:
        asked.append(path)
        return ask(self, path)

    monkeypatch.setattr(ScheduledEvents, "_get", counted)
    found = ScheduledEvents(f"http://127.0.0.1:{port}")
    found._watch()
    assert (len(asked), found.event) == (stop_sources.MAX_FAILURES, "")


def test_the_address_is_azures_own_unless_a_rehearsal_says_that_there_is_none() -> None:
    assert scheduled_events_url({}) == "http://169.254.169.254"
    assert scheduled_events_url({stop_sources.URL_VARIABLE: "off"}) == ""
    assert scheduled_events_url({stop_sources.URL_VARIABLE: "http://127.0.0.1:1"}) == "http://127.0.0.1:1"
