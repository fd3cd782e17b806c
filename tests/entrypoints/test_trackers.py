"""TensorBoard and MLflow get the numbers of the events, from rank 0, and never an error that ends
training.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cloudtrain_trainer.reporting.trackers import Trackers
from tests.entrypoints.groups import Group, StartGroup


def test_mlflow_gets_the_run_and_a_failing_server_does_not_end_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, Any]] = []
    mlflow: Any = ModuleType("mlflow")
    mlflow.__spec__ = SimpleNamespace()
    mlflow.start_run = lambda **options: calls.append(("start", options["run_name"]))
    mlflow.log_params = lambda values: calls.append(("params", values))
    mlflow.log_metrics = lambda values, step: calls.append(("metrics", (step, values)))
    mlflow.end_run = lambda status: calls.append(("end", status))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("CLOUDTRAIN_RUN_ID", "digits-1")
    trackers = Trackers(tmp_path, {"lr": 0.1})
    trackers.log(3, {"loss": 0.5})
    trackers.close("succeeded")
    expected = [
        ("start", "digits-1"),
        ("params", {"lr": "0.1"}),
        ("metrics", (3, {"loss": 0.5})),
        ("end", "FINISHED"),
    ]
    assert calls == expected

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("gone")

    mlflow.log_metrics = fail
    trackers = Trackers(tmp_path, {})
    trackers.log(3, {"loss": 0.5})
    trackers.log(4, {"loss": 0.4})
    assert capfd.readouterr().err.count("MLflow is turned off: ConnectionError: gone") == 1


def test_weights_and_biases_gets_the_run_where_a_project_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[str, Any]] = []
    run = SimpleNamespace(
        define_metric=lambda name, step_metric: calls.append((name, step_metric)),
        log=lambda values: calls.append(("log", values)),
        finish=lambda exit_code: calls.append(("finish", exit_code)),
    )
    wandb: Any = ModuleType("wandb")
    wandb.__spec__ = SimpleNamespace()

    def init(**options: Any) -> SimpleNamespace:
        calls.append(("init", options))
        return run

    wandb.init = init
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    Trackers(tmp_path, {"lr": 0.1}).log(3, {"loss": 0.5})
    assert calls == []
    monkeypatch.setenv("WANDB_PROJECT", "digits")
    monkeypatch.setenv("CLOUDTRAIN_RUN_ID", "digits-1")
    trackers = Trackers(tmp_path / "output", {"lr": 0.1})
    trackers.log(3, {"loss": 0.5})
    trackers.close("stopped")
    options = {"id": "digits-1", "name": "digits-1", "resume": "allow", "config": {"lr": 0.1}}
    begun = ("init", {**options, "dir": str(tmp_path / "output")})
    assert calls == [begun, ("*", "step"), ("log", {"step": 3, "loss": 0.5}), ("finish", 0)]


def test_only_rank_0_writes_to_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Trackers(tmp_path, {}, active=False).log(1, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == []


Curves = dict[str, list[tuple[int, Any]]]
"""(step, value) of every point, by the name of the curve."""


def read_back(folder: Path) -> Curves:
    """As TensorBoard itself reads them."""
    events = import_module(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def from_events(runs: list[dict[str, list[dict[str, Any]]]]) -> Curves:
    """From the events of several starts of one run, by kind."""
    curves: Curves = defaultdict(list)
    reserved = {"type", "time", "node", "rank", "seq", "epoch", "epochs", "step", "steps", "unit"}
    for events in runs:
        for event in events["metrics"]:
            for name, value in event["values"].items():
                # Its files hold float32.
                curves[name].append((event["step"], pytest.approx(value, rel=1e-6)))
        for event in events["progress"]:
            for name in event.keys() - reserved:
                curves[f"train/{name}"].append(
                    (event["step"], pytest.approx(event[name], rel=1e-6))
                )
    return dict(curves)


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_shows_the_numbers_of_the_events_and_continues_after_a_resume(
    tmp_path: Path, group: StartGroup
) -> None:
    runs = []
    for epochs in (2, 3):
        ranks: Group = group(1, f"--batch-size 256 --lr-schedule constant --epochs {epochs}")
        ranks.succeed()
        assert "TensorBoard is turned off" not in ranks.output()
        runs.append({kind: ranks.events(kind) for kind in ("metrics", "progress")})
    curves = read_back(tmp_path / "cloudtrain-output/output/tensorboard")
    assert [step for step, _ in curves["val_loss"]] == [5, 10, 15]
    assert curves == from_events(runs)
