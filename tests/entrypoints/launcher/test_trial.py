"""A trial of a sweep ends at the first report that is behind the client's published values.

It reads them in a folder, which may be a mount that hangs, or in S3 with its own role. Its first
node notifies the others of the end.
"""

from __future__ import annotations

import json
import math
import queue
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cloudtrain_launcher import trial
from cloudtrain_launcher.trial import (
    FILE_NAME,
    RUNGS_FILE,
    Announcer,
    Trial,
    TrialMemory,
    TrialWatch,
    listen,
    read_published,
)
from cloudtrain_wire.events import Event, Metrics, RankStarted, RungReached, Warned
from cloudtrain_wire.ports import free_port
from tests.entrypoints.launcher.test_launcher_parts import error, launcher_of
from tests.entrypoints.launchers import events, finish, start
from tests.support.waiting import HANG_SECONDS

RULES: dict[str, Any] = {
    "trial": 7,
    "metric": "loss",
    "goal": "minimize",
    "rungs": [1, 3, 9],
    "eta": 2,
}


def publish(folder: Path, rungs: dict[int, dict[int, float | None]]) -> None:
    document = {
        "version": 1,
        "rungs": [{"at": at, "values": values} for at, values in rungs.items()],
    }
    folder.mkdir(exist_ok=True)
    (folder / RUNGS_FILE).write_text(json.dumps(document))


class Watched:
    """A watch and its messages."""

    def __init__(
        self,
        folder: Path | str,
        checkpoints: Path | None = None,
        run_id: str = "a-1",
        **changes: Any,
    ) -> None:
        self.told: list[Event] = []
        self.ends: list[str] = []
        memory = TrialMemory(checkpoints, run_id)
        trial = Trial.from_json(RULES | changes)
        self.watch = TrialWatch(trial, str(folder), self.told.append, self.ends.append, memory)

    def report(self, *values: float, **more: Any) -> list[tuple[int, str]]:
        """Report these losses; return the decisions by report."""
        for value in values:
            self.watch.on_metrics(
                Metrics(rank=0, values={"loss": value, "other": 1.0}).replace(**more)
            )

        return [
            (event.report, event.outcome) for event in self.told if isinstance(event, RungReached)
        ]


def test_trial_continues_while_among_the_best_and_ends_otherwise(
    tmp_path: Path,
) -> None:
    publish(tmp_path, {1: {0: 5.0, 1: 3.0}, 3: {0: 1.0, 1: 2.0}})
    watched = Watched(tmp_path)
    assert watched.report(4.0) == [(1, "pruned")]
    watched = Watched(tmp_path)
    assert watched.report(2.9) == [(1, "goes_on")]
    assert watched.report(2.5) == [(1, "goes_on")], "it is at no rung"
    assert watched.ends == []
    assert watched.report(1.5) == [(1, "goes_on"), (3, "pruned")]
    assert watched.ends == ["pruned"]


def test_the_file_is_read_at_the_rung_and_its_own_value_in_it_is_left_out(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.report(2.0) == [(1, "goes_on")], "nobody has published anything yet"
    publish(tmp_path, {3: {0: 1.0, 7: 0.5}})
    assert watched.report(2.0, 2.0) == [(1, "goes_on"), (3, "pruned")]
    assert not any(isinstance(event, Warned) for event in watched.told)
    publish(tmp_path, {1: {7: 0.5, 0: 0.7}})
    assert Watched(tmp_path).report(0.6) == [(1, "goes_on")]


def test_what_is_not_a_number_never_goes_on(tmp_path: Path) -> None:
    assert Watched(tmp_path).report(math.nan) == [(1, "pruned")]
    assert Watched(tmp_path, until=3).report(math.nan) == [(1, "pruned")]
    assert Watched(tmp_path, until=3).report(1.0, math.nan, 1.0) == [
        (1, "goes_on"),
        (3, "paused"),
    ], "at rungs only"


def test_reports_of_earlier_runs_count_and_one_that_is_repeated_counts_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path, until=3, reports=2, position=20)
    assert watched.report(1.0, step=10) == []
    assert watched.report(1.0, step=20) == []
    assert watched.report(1.0, step=30) == [(3, "paused")]


def test_a_job_that_its_platform_starts_again_counts_on_from_its_checkpoint(tmp_path: Path) -> None:
    assert Watched(tmp_path, tmp_path, until=3).report(1.0, epoch=1) == [(1, "goes_on")]
    assert not (tmp_path / FILE_NAME).exists(), "without a checkpoint the program begins anew"
    (tmp_path / "step-2").touch()
    before = Watched(tmp_path, tmp_path, until=3)
    for epoch in (1, 2):
        before.report(1.0, epoch=epoch)

    second = Watched(tmp_path, tmp_path, until=3)
    assert second.report(1.0, epoch=2) == [], "it is reported again"
    assert second.report(1.0, epoch=3) == [(3, "paused")]
    promoted = Watched(tmp_path, tmp_path, run_id="a-2", until=2, reports=1, position=1)
    assert promoted.report(1.0, epoch=2) == [(2, "paused")], (
        "the client names the position to resume from"
    )
    (tmp_path / FILE_NAME).write_text("{")
    assert Watched(tmp_path, tmp_path, until=3).report(1.0, epoch=1) == [(1, "goes_on")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not what it should be: JSONDecodeError"),
        ('{"version": 2}', "of version 2, this launcher knows version 1"),
        (None, "no place at which a job reads"),
    ],
)
def test_a_file_that_cannot_be_read_means_go_on_and_one_warning(
    tmp_path: Path, text: str | None, why: str
) -> None:
    if text is not None:
        (tmp_path / RUNGS_FILE).write_text(text, errors="surrogateescape")

    watched = Watched("" if text is None else tmp_path)
    assert watched.report(9.0, 9.0, 9.0) == [(1, "goes_on"), (3, "goes_on")]
    (warning,) = [event.message for event in watched.told if isinstance(event, Warned)]
    assert why in warning
    assert watched.report(*[9.0] * 5, math.nan) == [(1, "goes_on"), (3, "goes_on"), (9, "pruned")]


def test_only_the_first_rank_is_heard_and_what_it_prints_counts_too(tmp_path: Path) -> None:
    metrics = {"loss": "loss=([0-9.]+)"}
    first_node = {"CLOUDTRAIN_NODE_RANK": "0"}
    launcher = launcher_of(tmp_path, first_node, trial=RULES | {"until": 2}, metrics=metrics)
    for rank in (0, 1):
        launcher.on_event(RankStarted(time=1.0, rank=rank, local_rank=rank))
    launcher.on_event(Metrics(rank=1, values={"loss": 1.0}))
    launcher.on_event(Metrics(rank=0, values={"loss": 1.0}))
    launcher.ranks.on_text(1, "loss=0.5")
    assert not launcher.stop.is_requested()
    launcher.ranks.on_text(0, "loss=0.5")
    assert launcher.stop.reason == "paused"


@pytest.mark.parametrize(
    ("node", "reason", "code"),
    [
        (0, "pruned", 0),
        (0, "paused", 0),
        (1, "", 0),
        (0, "", 5),
        (1, "sigterm", 5),
    ],
    ids=["pruned", "paused", "its peer", "a stop by itself", "a stop of a peer"],
)
def test_a_trial_that_has_ended_itself_has_succeeded_and_so_have_its_peers(
    tmp_path: Path, node: int, reason: str, code: int
) -> None:
    launcher = launcher_of(tmp_path, {"CLOUDTRAIN_NODE_RANK": str(node)}, trial=RULES)
    (tmp_path / "result.json").write_text('{"outcome": "stopped"}')
    launcher.stop.reason = reason
    assert launcher.conclude(1 if reason else 0, 1.0) == code


@pytest.mark.parametrize(("outcome", "code"), [("paused", 1), ("pruned", 0)])
def test_a_trial_that_waits_for_its_promotion_has_failed_without_its_checkpoint(
    tmp_path: Path, outcome: str, code: int
) -> None:
    launcher = launcher_of(tmp_path, trial=RULES)
    (tmp_path / "result.json").write_text('{"outcome": "stopped"}')
    launcher.stop.end_trial(outcome)
    launcher.unsaved = launcher.ranks.add_error(error(-1, time.time() + 1, exception="OSError"))
    assert launcher.conclude(1, 1.0) == code


STUBBORN = """
import signal, sys, time
from cloudtrain_job import log_metrics
time.sleep(2)  # torchrun watches its ranks by then; before, a stop leaves them without a grace period
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1:] else signal.SIG_DFL)
for epoch in range(1, 9):
    print(f"epoch={epoch} loss={9 - epoch}", flush=True)
    if epoch == 3:
        time.sleep(600)
"""


@pytest.mark.torchrun
def test_a_program_that_ignores_sigterm_is_pruned_and_has_succeeded(tmp_path: Path) -> None:
    argv = ["ignores SIGTERM"]
    publish(tmp_path / "published", {1: {0: 9.0}, 3: {0: 1.0, 1: 1.0}})
    printed = {"epoch": "epoch=([0-9]+)", "loss": "loss=([0-9.]+)"}
    process = start(
        tmp_path, STUBBORN, argv=argv, values=argv, metrics=printed, trial=RULES, grace_seconds=2
    )
    text = finish(process)
    assert process.returncode == 0, text
    reported = [event for event in events(text) if event["type"] in ("metrics", "rung_reached")]
    assert [event.get("outcome", event.get("epoch")) for event in reported] == [
        1,
        "goes_on",
        2,
        3,
        "pruned",
    ]
    end = events(text)[-1]
    assert (end["outcome"], end["why"], end["forced"]) == ("succeeded", "pruned", True), text
    assert "Traceback" not in text


WAITING = """
import os, signal, time
from cloudtrain_job import emit, log_metrics
if os.environ["RANK"] == "0":
    while not os.path.exists("../peer"):
        time.sleep(0.05)
    log_metrics(epoch=1, loss=1.0)
else:
    open("../peer", "w").close()
time.sleep(600)
"""
"""Two ranks that know nothing of each other and would wait for ever; the first one reports."""


@pytest.mark.torchrun
def test_the_other_nodes_of_a_trial_end_with_the_first_whatever_they_run(tmp_path: Path) -> None:
    port = free_port()
    processes = []
    for node in range(2):
        (tmp_path / str(node)).mkdir()
        changes: dict[str, Any] = {
            "nodes": 2,
            "trial": RULES | {"until": 1},
            "grace_seconds": HANG_SECONDS,
            "restarts": 1,
        }
        processes.append(start(tmp_path / str(node), WAITING, node=node, port=port, **changes))

    for process in processes:
        text = finish(process)
        assert process.returncode == 0, text
        end = events(text)[-1]
        assert (end["outcome"], end.get("why"), end["forced"]) == ("succeeded", "paused", False), (
            text
        )
        assert end["error"] is None


def test_a_disk_that_refuses_is_an_error_and_a_mount_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rungs.json").mkdir()
    with pytest.raises(IsADirectoryError):
        read_published(str(tmp_path), "rungs.json")

    hanging = threading.Event()
    monkeypatch.setattr(trial, "READ_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(Path, "read_bytes", lambda _: hanging.wait(2 * HANG_SECONDS) and b"")
    with pytest.raises(RuntimeError, match="could not be read within"):
        read_published(str(tmp_path), "rungs.json")

    hanging.set()


def test_an_object_of_s3_is_read_with_the_image_s_boto3(
    aws: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    monkeypatch.setenv("AWS_REGION", "us-east-1")
    storage = boto3.client("s3", region_name="us-east-1")
    storage.create_bucket(Bucket="runs")
    assert read_published("s3://runs/run-1/published", "rungs.json") is None
    storage.put_object(Bucket="runs", Key="run-1/published/rungs.json", Body=b"{}")
    assert read_published("s3://runs/run-1/published", "rungs.json") == "{}"
    with pytest.raises(RuntimeError, match="NoSuchBucket; the job's role needs s3:GetObject there"):
        read_published("s3://nobodys/run-1/published", "rungs.json")


HERE = "127.0.0.1"


def test_peers_that_are_there_and_those_that_come_later_hear_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "CONNECT_SECONDS", 0.05)
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
    monkeypatch.setattr(trial, "CONNECT_SECONDS", 0.05)
    heard: list[str] = []
    with socket.create_server((HERE, 0)) as server:
        before = threading.enumerate()
        listen(HERE, server.getsockname()[1], lambda outcome, _: heard.append(outcome))
        connection, _ = server.accept()
        (listening,) = {*threading.enumerate()} - {*before}
        connection.close()

    listening.join(HANG_SECONDS)
    assert not listening.is_alive()
    assert heard == []
