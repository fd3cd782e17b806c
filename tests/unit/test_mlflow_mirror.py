"""Runs and points that are brought to an MLflow server, whatever breaks meanwhile."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.api import mlflow_mirror, shared_history
from cloudtrain.api.mlflow_mirror import TAG, Experiment, bring_runs
from cloudtrain.api.shared_history import Mark, expect, marks, refuse_unusable
from cloudtrain.errors import UsageError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.store import RunStore
from cloudtrain.settings import load_settings
from tests.support.samples import born, write_events

pytestmark = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs MLflow's client")

ENDED = {"type": "ended", "time": 160.0, "state": "succeeded", "billing": {"usd": 1.5}}


class Broken(Exception):
    """The client was killed, or the answer was lost."""


class Server:
    """MLflow's client and a server that stores each point again whenever it comes."""

    def __init__(self, seed: int | None = None) -> None:
        self.stored: dict[str, SimpleNamespace] = {}
        self._ids = (f"{number:03}" for number in itertools.count())
        self._random = None if seed is None else random.Random(seed)

    def _may_break(self) -> None:
        if self._random and self._random.random() < 0.3:
            raise Broken

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=name)

    def search_runs(self, experiments: list[str], query: str) -> list[Any]:
        return [
            self.get_run(run)
            for run, stored in self.stored.items()
            if stored.stage == "active" and f"'{stored.tags[TAG]}'" in query
        ]

    def get_run(self, run: str) -> Any:
        stored = self.stored[run]
        info = SimpleNamespace(run_id=run, lifecycle_stage=stored.stage, end_time=stored.end)
        return SimpleNamespace(info=info, data=stored)

    def create_run(self, experiment: str, start_time: int, tags: dict[str, str]) -> None:
        self._may_break()
        self.stored[next(self._ids)] = SimpleNamespace(
            tags=tags, params={}, points=[], stage="active", end=None, status="RUNNING"
        )
        self._may_break()

    def delete_run(self, run: str) -> None:
        self.stored[run].stage = "deleted"

    def log_batch(self, run: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        self._may_break()
        stored = self.stored[run]
        assert stored.stage == "active"
        stored.points += metrics
        stored.params |= {param.key: param.value for param in params}
        stored.tags |= {tag.key: tag.value for tag in tags}
        self._may_break()

    def get_metric_history(self, run: str, key: str) -> list[Any]:
        self._may_break()
        return [point for point in self.stored[run].points if point.key == key]

    def set_terminated(self, run: str, status: str, end: int = 0) -> None:
        self._may_break()
        self.stored[run].status = status
        self.stored[run].end = end

    @property
    def active(self) -> list[SimpleNamespace]:
        return [stored for stored in self.stored.values() if stored.stage == "active"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_MLFLOW_URI", "http://127.0.0.1:1")
    monkeypatch.setattr(mlflow_mirror, "PAUSES", (0,) * 200)
    monkeypatch.setattr(mlflow_mirror, "PASS_SECONDS", 0)
    monkeypatch.setattr(mlflow_mirror, "IDLE_SECONDS", 0)


def marked(home: RunStore, run_id: str, *events: dict[str, Any]) -> RunFolder:
    run = born(home, run_id, *events)
    expect(home.data_dir, run_id, load_settings(home.data_dir))
    return run


def bring(server: Server, home: RunStore) -> None:
    client: Any = server
    bring_runs(Experiment(client, "e"), home.data_dir)


def report(seq: int, step: float | None, **values: float) -> dict[str, Any]:
    """Return a report of metrics."""
    fields = {"type": "metrics", "time": 110.0 + seq, "rank": 0, "node": 0, "seq": seq}
    return {**fields, "values": values, "step": step}


@pytest.mark.parametrize("seed", range(10))
def test_each_run_and_each_point_is_there_once_whatever_breaks(home: RunStore, seed: int) -> None:
    server = Server(seed)
    run = marked(home, "a-1")
    expected: Counter[tuple[str, int, float]] = Counter()
    for step in range(6):
        write_events(run, report(step, step, loss=1 / (step + 1), acc=step))
        expected[("loss", step, 1 / (step + 1))] = 1
        expected[("acc", step, float(step))] = 1
        bring(server, home)

    write_events(run, report(5, 5, loss=1 / 6, acc=5), ENDED)  # the last one is read twice
    bring(server, home)
    (stored,) = server.active
    points = Counter((point.key, point.step, point.value) for point in stored.points)
    assert points == expected
    assert stored.status == "FINISHED"
    assert stored.tags["cloudtrain.usd"] == "1.5000"
    assert marks(home.data_dir) == []


def test_a_client_that_has_made_the_same_run_keeps_the_same_one(home: RunStore) -> None:
    server = Server()
    run = marked(home, "a-1", report(1, 1, loss=1.0))
    client: Any = server
    experiment = Experiment(client, "e")
    mirror = mlflow_mirror.Mirror(experiment, Mark(home.data_dir / "mlflow" / "a-1"))
    mirror.catch_up()

    earlier = server.stored["000"]
    server.stored["00"] = SimpleNamespace(**{**vars(earlier), "tags": {TAG: "a-1"}, "points": []})
    write_events(run, ENDED)
    bring(server, home)
    (winner,) = server.active
    assert winner is server.stored["00"]
    assert [point.value for point in winner.points] == [1.0]


def test_numbers_and_names_that_mlflow_lacks_are_sent_in_its_own(home: RunStore) -> None:
    server = Server()
    values = {"acc@1": 1.0, "../x": 2.0, "train/loss": math.nan}
    marked(home, "a-1", report(1, None, **values), report(2, 1e300, big=1.0), ENDED)
    bring(server, home)
    bring(server, home)
    points = {point.key: point for point in server.active[0].points}
    assert points.keys() == {"acc_1", "x", "train/loss", "big"}
    assert math.isnan(points["train/loss"].value)
    assert points["big"].step == mlflow_mirror.MAX_STEP


def test_trials_have_their_sweep_as_parent(home: RunStore) -> None:
    (home.data_dir / "sweeps" / "s-1").mkdir(parents=True)
    for trial in ("s-1-t000", "s-1-t001"):
        marked(home, trial, ENDED)

    server = Server()
    bring(server, home)
    (parent,) = [run for run, stored in server.stored.items() if stored.tags[TAG] == "s-1"]
    children = [run for run in server.active if run is not server.stored[parent]]
    assert [child.tags["mlflow.parentRunId"] for child in children] == [parent] * 2
    assert server.stored[parent].status == "FINISHED"


def test_what_a_refused_submit_has_made_is_deleted(
    home: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    mark = expect(home.data_dir, "a-1", load_settings(home.data_dir))
    assert mark is not None
    client: Any = server
    mlflow_mirror.make_run(Experiment(client, "e"), mark)
    assert len(server.active) == 1
    assert mark.read()["id"] == "000"

    os.utime(mark.path, (0, 0))
    monkeypatch.setattr(mlflow_mirror, "DROPPED_SECONDS", 10)
    bring(server, home)
    assert server.active == []
    assert marks(home.data_dir) == []


def test_a_server_that_does_not_answer_is_said_once(
    home: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[Path] = []
    monkeypatch.setattr(shared_history, "_start", started.append)
    run = marked(home, "a-1", ENDED)
    Mark(home.data_dir / "mlflow" / "a-1").write(error="ConnectionError: refused")
    for _ in range(2):
        shared_history.mirror(home.data_dir, at_once=True)

    assert started == [home.data_dir] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "the history in MLflow is behind by 1 run (ConnectionError: refused);"
        " cloudtrain list sends the rest"
    ]
    bring(Server(), home)
    assert run.events_file.exists()
    shared_history.mirror(home.data_dir, at_once=True)
    assert len(started) == 2


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("http://me:secret@mlflow.example", "MLFLOW_TRACKING_PASSWORD"),
        ("file:///home/me/mlruns", "sqlite"),
        ("./mlruns", "sqlite"),
        ("mlflow.example:5000", "http://HOST"),
        ("arn:aws:sagemaker:us-east-1:1:mlflow-app/a", "sagemaker-mlflow"),
        ("azureml://eastus.api.azureml.ms/mlflow/v1.0/x", "azureml-mlflow"),
    ],
)
def test_an_address_that_cannot_work_is_refused_with_what_to_do(uri: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        refuse_unusable(uri)

    assert hint in str(refusal.value.hint)
    assert "secret" not in str(refusal.value)
    refuse_unusable("http://127.0.0.1:5000")
