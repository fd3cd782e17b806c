"""A stop is requested once: by a signal, a file on a mount that may fail, the time limit, or Azure's
announcement that this machine ends; the peers follow.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path
from typing import Any
from urllib.request import OpenerDirector, Request

import pytest

from cloudtrain_launcher import scheduled_events as scheduled_events_module
from cloudtrain_launcher import stop as stop_module
from cloudtrain_launcher import stop_file as stop_file_module
from cloudtrain_launcher.scheduled_events import ScheduledEvents, terminating_event
from cloudtrain_wire.ports import free_port
from tests.entrypoints.launcher.test_launcher_parts import error, launcher_of
from tests.fakes.azure.metadata import Metadata, metadata
from tests.support.waiting import HANG_SECONDS, eventually


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Poll quickly, beside a proxy that does not work; restore the handler of signals."""
    monkeypatch.setattr(stop_file_module, "STOP_FILE_POLL_SECONDS", 0.01)
    monkeypatch.setattr(scheduled_events_module, "EVENTS_POLL_SECONDS", 0.01)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def request(file: Path | str = "", after: int = 0) -> tuple[stop_module.StopRequest, list[str]]:
    logged: list[str] = []
    return stop_module.StopRequest(str(file), after, logged.append), logged


def test_the_first_request_is_the_reason(tmp_path: Path) -> None:
    stop, logged = request(tmp_path / "stop")
    stop.listen()
    began = time.time()
    os.kill(os.getpid(), signal.SIGTERM)
    assert eventually(stop.is_requested)
    (tmp_path / "stop").touch()
    assert stop.recheck()
    assert (stop.reason, logged) == ("sigterm", [])
    assert began <= stop.requested_at <= time.time()


@pytest.mark.parametrize("before", [True, False])
def test_a_stop_file_counts_whenever_it_appears_and_is_not_removed(
    tmp_path: Path, before: bool
) -> None:
    file = tmp_path / "stop"
    stop, logged = request(file)
    if before:
        file.touch()
        stop.listen()
        assert stop.is_requested(), "before anything is started"
    else:
        stop.listen()
        assert not stop.is_requested()
        file.touch()
        assert eventually(stop.is_requested)

    assert (stop.reason, logged) == (
        "stop_file",
        ["a stop was requested: stopping with a checkpoint"],
    )
    assert file.exists()


def test_the_time_limit_requests_a_stop_and_notifies_the_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monotonic = time.monotonic
    file = tmp_path / "stop"
    stop, logged = request(file, after=600)
    peer, peer_logged = request(file)
    for channel in (stop, peer):
        channel.listen()
        assert not channel.is_requested()

    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 600)
    assert stop.is_requested()
    assert (stop.reason, logged) == ("time", ["the time limit is near: stopping with a checkpoint"])
    assert eventually(peer.is_requested)
    assert (peer.reason, peer_logged) == ("time", logged)
    alone, _ = request(after=-1)
    assert not alone.is_requested()


def test_a_mount_that_fails_or_hangs_is_not_a_request_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, _ = request(tmp_path / "no such folder" / "stop")
    stop.listen()
    assert not stop.recheck()
    hanging = threading.Event()
    monkeypatch.setattr("cloudtrain_launcher.stop_file.READ_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(os.path, "lexists", lambda _: hanging.wait(2 * HANG_SECONDS))
    began = time.monotonic()
    stop, _ = request(tmp_path / "stop")
    stop.listen()
    assert not stop.recheck()
    assert time.monotonic() - began < HANG_SECONDS
    hanging.set()
    assert eventually(stop.is_requested)


@pytest.mark.parametrize(
    ("mine", "outcome", "why"),
    [({"consequence": True}, "stopped", "stop_file"), ({}, "failed", None)],
)
def test_a_node_that_lost_stopped_peers_has_stopped(
    tmp_path: Path, capfdbinary: Any, mine: dict[str, Any], outcome: str, why: str | None
) -> None:
    launcher = launcher_of(tmp_path, {"CLOUDTRAIN_STOP_FILE": str(tmp_path / "stop")})
    launcher.ranks.errors.append(error(1, time.time(), **mine))
    (tmp_path / "stop").touch()
    assert launcher.conclude(1, 1.0) == {"stopped": 5, "failed": 1}[outcome]
    assert (b'"why":"stop_file"' in capfdbinary.readouterr().out) == (why is not None)


@pytest.mark.parametrize(
    ("why", "code"), [("stop_file", 0), ("time", 0), ("sigterm", 5), ("preempted", 5)]
)
def test_on_azure_only_a_stop_that_the_job_was_asked_for_exits_with_0(
    tmp_path: Path, why: str, code: int
) -> None:
    """Azure ML shows a job as Completed if all its nodes exit with 0."""
    launcher = launcher_of(tmp_path, context={"stopped_exit_code": 0})
    (tmp_path / "result.json").write_text('{"outcome": "stopped"}')
    launcher.stop.reason = why
    assert launcher.conclude(0, 1.0) == code


def test_sigterm_notifies_the_peers_and_notes_of_an_earlier_attempt_are_ignored(
    tmp_path: Path,
) -> None:
    file = tmp_path / "stop"
    (tmp_path / f"stop{stop_module.PREEMPTED_SUFFIX}").write_text("of an earlier attempt")
    (stop, _), (peer, peer_logged) = request(file), request(file)
    peer.listen()
    stop.listen()  # the last to listen has the signal
    assert not stop.is_requested()
    assert not peer.is_requested()
    os.kill(os.getpid(), signal.SIGTERM)
    assert eventually(stop.is_requested)
    assert eventually(peer.is_requested)
    assert (stop.reason, peer.reason) == ("sigterm", "peer_preempted")
    assert peer_logged == [
        "another node of this job is about to be preempted: stopping with a checkpoint"
    ]
    assert not file.exists(), "a job that is started again goes on"


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


@pytest.mark.parametrize("cut_off", [False, True])
def test_polling_ends_if_nothing_answers(monkeypatch: pytest.MonkeyPatch, cut_off: bool) -> None:
    requested: list[str] = []
    open_url = OpenerDirector.open

    def counted(self: OpenerDirector, request: Request, *args: Any, **options: Any) -> Any:
        requested.append(request.full_url)
        if cut_off:
            raise IncompleteRead(b"{")
        return open_url(self, request, *args, **options)

    monkeypatch.setattr(OpenerDirector, "open", counted)
    scheduled_events = ScheduledEvents(f"http://127.0.0.1:{free_port()}")
    before = set(threading.enumerate())
    scheduled_events.watch()
    for thread in set(threading.enumerate()) - before:
        thread.join(HANG_SECONDS)

    assert (len(requested), scheduled_events.event) == (scheduled_events_module.MAX_FAILURES, "")


def test_a_preemption_stops_all_nodes_and_none_exits_before_the_machine(tmp_path: Path) -> None:
    """Azure ML takes the node that exits first for a failure, and does not restart the job."""
    file = str(tmp_path / "stop")
    peer, _ = request(file)
    peer.listen()
    with metadata("gpu_1") as machine:
        logged: list[str] = []
        stop = stop_module.StopRequest(file, 0, logged.append, machine.url)
        stop.listen()
        assert not stop.is_requested()
        machine.announce("Preempt", "gpu_1")
        assert eventually(stop.is_requested)
        assert eventually(peer.is_requested)

    assert (stop.reason, peer.reason) == ("preempted", "peer_preempted")
    assert "Azure is about to end this machine (Preempt, not before Mon, 19 Sep 2016" in logged[0]
    leaving = threading.Thread(target=stop.wait_for_preemption, daemon=True)
    leaving.start()
    leaving.join(0.3)
    assert leaving.is_alive()
    os.kill(os.getpid(), signal.SIGTERM)
    leaving.join(HANG_SECONDS)
    assert not leaving.is_alive()
