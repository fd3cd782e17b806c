"""Throughput, the time between progress events, and the mean loss."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import cloudtrain_job
from cloudtrain_trainer import tasks
from cloudtrain_trainer.data import batches
from cloudtrain_trainer.data.batches import Batches
from cloudtrain_trainer.reporting.metrics import LossMean, Meter
from cloudtrain_trainer.reporting.progress import schedule
from cloudtrain_trainer.reporting.trackers import Trackers
from cloudtrain_trainer.tasks import Draw
from cloudtrain_trainer.training.loop import Loop
from cloudtrain_wire import events
from tests.entrypoints.groups import Group, StartGroup


def test_the_loss_mean_is_weighted_by_samples_and_can_be_restored() -> None:
    mean = LossMean()
    loss = torch.tensor(1.0, requires_grad=True)
    mean.add(loss, 3)
    restored = LossMean()
    restored.restore(mean.state())
    mean.add(loss, 1)
    with torch.no_grad():
        loss.fill_(5.0)  # a program may reuse its tensor

    for continued in (mean, restored):
        continued.add(loss.bfloat16(), 1)
    assert (mean.state(), restored.state()) == ((9.0, 5.0), (8.0, 4.0))


def test_progress_is_due_after_the_first_step_and_then_every_half_second() -> None:
    clock = [0.0]
    meter = Meter(clock=lambda: clock[0])
    meter.count(10)
    assert meter.due()
    clock[0] = 2.0
    assert meter.rate() == 5.0
    clock[0] = 2.4
    assert not meter.due()
    clock[0] = 2.5
    assert meter.due()


class TimedData:
    """Data whose batches take this many seconds of a simulated clock."""

    def __init__(self, data: tasks.Data, clock: list[float], seconds: float) -> None:
        self.data = data
        self.now = clock
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
        self.now[0] += self.seconds
        return self.data[draw]


def test_the_rate_after_an_evaluation_does_not_include_its_time(
    make_loop: Callable[..., Loop],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step of 32 samples takes one second, an evaluation of 12 batches 12 minutes."""
    monkeypatch.setattr(batches, "MAX_AHEAD", 1)
    clock = [0.0]
    loop = make_loop("--epochs", "2")
    loop.meter = Meter(clock=lambda: clock[0])
    loop.throughput = Meter(clock=lambda: clock[0])
    train = TimedData(loop.task.train, clock, 1.0)
    validation = TimedData(loop.task.validation, clock, 60.0)
    assert isinstance(loop.batches, Batches)
    loop.batches = replace(loop.batches, data=train)
    loop.step.task = replace(loop.task, validation=validation)
    loop.run()
    lines = capfd.readouterr().out.splitlines()
    events = [json.loads(line.partition(" ")[2]) for line in lines if '"type":"' in line]
    rates = [event["samples_per_s"] for event in events if event["type"] == "progress"]
    assert set(rates) == {32.0}
    epochs = [event["values"] for event in events if event["type"] == "metrics"]
    assert [values["samples_per_s"] for values in epochs] == [32.0, 32.0]
    assert clock[0] == 2 * 44 + 2 * 12 * 60
    assert loop.meter.mean_rate() == 2 * 44 * 32 / clock[0], "the mean rate includes evaluations"


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
    for by_kind in runs:
        for event in by_kind["metrics"]:
            for name, value in event["values"].items():
                # Its files hold float32.
                curves[name].append((event["step"], pytest.approx(value, rel=1e-6)))
        for event in by_kind["progress"]:
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


def announced(
    steps: int, epoch: int, validation: Any = range(50), **options: Any
) -> dict[str, Any]:
    """Return the fields of the event, for a loop with batches of 4 samples and this many steps in
    an epoch.
    """
    arguments = {
        "eval_every": 1,
        "eval_every_steps": None,
        "checkpoint_every_steps": None,
        "checkpoint_every": 600.0,
    }
    loop: Any = SimpleNamespace(
        steps=steps,
        task=SimpleNamespace(validation=validation),
        batches=SimpleNamespace(samples_per_epoch=4 * epoch, batch_size=4),
        options=SimpleNamespace(**{**arguments, **options}),
    )
    return schedule(loop).fields()


@pytest.mark.parametrize(
    ("steps", "epoch", "options", "evaluations"),
    [
        (30, 10, {}, 3),
        (35, 10, {}, 4),
        (5, 10, {}, 1),
        (60, 10, {"eval_every": 2}, 3),
        (70, 10, {"eval_every": 2}, 4),
        (30, 10, {"eval_every_steps": 4}, 9),
        (30, 10, {"eval_every_steps": 5}, 6),
    ],
)
def test_evaluations_are_those_of_epochs_of_steps_and_of_the_end(
    steps: int, epoch: int, options: dict[str, Any], evaluations: int
) -> None:
    made = {
        step
        for step in range(1, steps + 1)
        if step % (epoch * options.get("eval_every", 1)) == 0 or step == steps
    }
    every = options.get("eval_every_steps")
    made |= {step for step in range(1, steps + 1) if every and step % every == 0}
    assert announced(steps, epoch, **options)["evaluations"] == evaluations == len(made)


def test_a_script_without_a_launcher_prints_for_people(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CLOUDTRAIN_STREAM_DIR")
    with cloudtrain_job.activity("saving"):
        cloudtrain_job.log_progress(3, 10, loss=0.5)
    cloudtrain_job.log_metrics(step=1234567, epoch=1, loss=0.123456789, accuracy=float("nan"))
    assert capfd.readouterr().out == (
        "step 3  steps 10  loss 0.5\nstep 1234567  epoch 1  loss 0.123457  accuracy nan\n"
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_script_announces_the_same_from_its_first_rank(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    sent = []
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setattr(
        cloudtrain_job, "emit", lambda kind, **fields: sent.append({"type": kind, **fields})
    )
    cloudtrain_job.log_schedule(5, evaluation_samples=100)
    assert [events.from_json({"time": 1.0, **event}) for event in sent] == [
        events.Schedule(time=1.0, evaluations=5, evaluation_samples=100) for _ in range(1 - rank)
    ]
