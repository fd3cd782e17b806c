"""Faults after a submit to either cloud: a wait continues, and a line of a log is read once."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.runs.logs import LogLine
from cloudtrain.submission.lookup import find_run
from cloudtrain.submission.run import Run
from tests.fakes.messages import FaultKind
from tests.providers.faults import PERMANENT, TRANSIENT, run_id_of
from tests.providers.sites import ALWAYS, NEW_JOB, Site
from tests.support.samples import events_of
from tests.support.waiting import HANG_SECONDS

pytestmark = [
    pytest.mark.usefixtures("site_folder"),
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]

MANY = 100
"""More calls than a reader makes for three parts of the logs of two nodes."""
READS = 6
"""Fewest calls of such a reader."""


def submit_with_log(site: Site, run_id: str) -> Run:
    """Submit a run with a line in its log, and forget the connections."""
    run = site.submit(run_id)
    site.write_log(run_id, 0, "[rank 0] hello")
    site.reconnect()
    site.cloud.endpoint.reset()
    return run


def texts(run: Run, node: int | None = None) -> list[str]:
    return [line.text for line in run.logs(node=node)]


@pytest.mark.once
@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_wait_continues_while_a_cloud_does_not_answer(site: Site, kind: FaultKind) -> None:
    run = submit_with_log(site, run_id_of("wait", kind))
    times = 10 if kind != "slow" else 2
    for call in site.observing:
        site.cloud.endpoint.fault(kind, *call, times=times, seconds=0.05)
    errors: set[str] = set()
    lines: list[LogLine] = []
    updates = run.watch()
    while not lines:
        update = next(updates)
        assert not update.state.has_ended
        errors.add(update.last_error)
        lines += update.lines
    assert [line.text for line in lines] == ["hello"]
    assert bool(errors - {""}) is (kind != "slow")
    struck = Counter(call for _, call in site.cloud.endpoint.struck)
    assert set(struck) == set(site.observing)
    assert kind == "slow" or min(struck.values()) == times


@pytest.mark.parametrize("kind", PERMANENT)
def test_a_wait_ends_with_an_error_when_a_retry_cannot_help(
    site: Site, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NEW_JOB, 0)
    run = submit_with_log(site, run_id_of("lasting", kind))
    site.cloud.endpoint.fault(kind, *site.calls["observe"], times=ALWAYS)
    with pytest.raises(CloudError) as failed:
        run.wait(HANG_SECONDS)
    assert site.hints[kind] in str(failed.value.hint)
    site.cloud.endpoint.reset()
    assert run.status().state == "pending"
    assert texts(run) == ["hello"]


@pytest.mark.parametrize("index", [-2, -1], ids=["list of the log", "lines"])
@pytest.mark.parametrize("kind", [*PERMANENT, "throttle"])
def test_an_unreadable_log_does_not_keep_a_job_from_ending(
    site: Site, tmp_path: Path, kind: FaultKind, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.submission.run.RETRY_SECONDS", 0.01)
    run = submit_with_log(site, run_id_of("unread", kind, -index))
    site.cloud.endpoint.fault(kind, *site.observing[index], times=ALWAYS)
    site.put_model(run.id, weights="w")
    site.finish_job(run.id)
    assert run.wait(HANG_SECONDS).state == "succeeded"
    with pytest.raises(CloudError, match="the log cannot be read: ") as failed:
        list(run.logs())
    assert failed.value.hint
    site.cloud.endpoint.reset()
    assert (run.fetch(tmp_path / "result") / "model" / "weights").read_text() == "w"
    assert texts(run) == ["hello"]
    assert run.status().log_unread is None


@pytest.mark.once
@pytest.mark.parametrize("kind", TRANSIENT)
def test_lines_and_events_are_read_once_despite_a_fault_in_every_call(
    site: Site, kind: FaultKind
) -> None:
    run = site.submit(run_id_of("lines", kind))
    site.cloud.endpoint.reset()
    for nth in range(1, MANY, 1 if kind == "slow" else 2):  # between two faults is a retry
        site.cloud.endpoint.fault(kind, nth=nth, seconds=0.05)

    updates = run.watch()
    printed: list[str] = []
    for part in range(3):
        values = {"loss": part}
        event = {"type": "metrics", "time": 1, "node": 0, "rank": 0, "seq": part, "values": values}
        site.write_log(run.id, 0, f"[rank 0] zero {part}", f"::cloudtrain:: {json.dumps(event)}")
        site.write_log(run.id, 1, f"[rank 1] one {part}")
        deadline = time.monotonic() + HANG_SECONDS
        while len(printed) < 3 * (part + 1) and time.monotonic() < deadline:
            printed += [line.text for line in next(updates).lines]

    words = [f"{word} {part}" for word in ("zero", "one", "loss") for part in range(3)]
    assert sorted(printed) == sorted(words)
    assert [e["seq"] for e in events_of(run.folder) if e["type"] == "metrics"] == [0, 1, 2]
    assert texts(run, 0) == ["zero 0", "loss 0", "zero 1", "loss 1", "zero 2", "loss 2"]
    assert texts(run, 1) == ["one 0", "one 1", "one 2"]
    struck = [call for _, call in site.cloud.endpoint.struck]
    assert len(struck) >= READS
    assert set(struck) >= set(site.observing[-3:])


def test_a_reader_killed_between_line_and_event_duplicates_nothing(site: Site) -> None:
    run = site.submit("torn-1")
    site.write_log(run.id, 0, "[rank 0] first")
    run.status()
    with (run.folder.path / "logs" / "node-0.log").open("a") as file:
        file.write("2026-11-21T00:00:00.000Z [rank 0] of a reader without a position\n")
    site.write_log(run.id, 0, "[rank 0] second")
    find_run(run.id).status()
    assert texts(run) == ["first", "second"]
