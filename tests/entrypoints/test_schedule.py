"""The trainer's announcement before its first step: the number of evaluations that it then makes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import cloudtrain_job
from cloudtrain_launcher import events
from cloudtrain_trainer.reporting.progress import schedule


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


def test_samples_and_checkpoints_are_announced() -> None:
    schedule = announced(30, 10, checkpoint_every_steps=7)
    expected = {
        "evaluation_samples": 50,
        "step_samples": 4,
        "checkpoint_steps": 7,
        "checkpoint_seconds": 600.0,
    }
    assert {name: schedule[name] for name in expected} == expected


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
