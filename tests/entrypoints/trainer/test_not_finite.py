"""Losses, gradients, weights and evaluations that are NaN or infinite stop training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_job import MAX_LINE_BYTES, log_metrics
from cloudtrain_trainer import finite
from cloudtrain_trainer.data.batches import Batches
from cloudtrain_trainer.finite import NotFinite
from cloudtrain_trainer.tasks import Draw, Task
from cloudtrain_trainer.training.loop import Loop

BAD = 7
"""The index of the bad sample. 40 samples in batches of 4 are 10 steps per epoch, and one of them
has it.
"""


class Points:
    """Inputs (batch, 3) and targets (batch, 1); to one sample a number is added."""

    def __init__(self, bad_input: float = 0.0, bad_target: float = 0.0) -> None:
        self.inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        self.targets = self.inputs.sum(1, keepdim=True)
        self.inputs[BAD] += bad_input
        self.targets[BAD] += bad_target

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        return self.inputs[draw.indices], self.targets[draw.indices]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def loss_with_bad_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    """A finite loss whose gradient is NaN if a target is large: the derivative of a square root at
    zero, times zero.
    """
    loss = F.mse_loss(outputs, targets.clamp(max=10))
    return loss + (outputs * 0).sum().abs().sqrt() if bool((targets > 50).any()) else loss


def task(
    train: Points, validation: Points | None = None, loss: Callable[..., Tensor] = F.mse_loss
) -> Task:
    return Task(
        model=model,
        loss=loss,
        correct=lambda outputs, targets: torch.zeros(()),  # noqa: ARG005
        train=train,
        validation=validation or Points(),
        epochs=2,
        batch_size=4,
        lr=1e-2,
        weight_decay=0.1,
    )


NAN = {
    "input": task(Points(bad_input=math.nan)),
    "input-inf": task(Points(bad_input=math.inf)),
    "gradient": task(Points(bad_target=99), loss=loss_with_bad_gradient),
}
MESSAGES = {
    "input": "the loss is nan",
    "input-inf": "the loss is nan",
    "gradient": "the norm of the gradients is nan",
}


@pytest.fixture
def train_loop(make_loop: Callable[..., Loop]) -> Callable[..., Loop]:
    """Makes a loop of a task, with a constant learning rate."""
    return lambda task, *argv: make_loop(
        "--lr-schedule", "constant", "--warm-up", "0", *argv, task=task
    )


def bad_step(loop: Loop) -> int:
    """The step (from 1) of the first epoch whose batch has the bad sample."""
    assert isinstance(loop.batches, Batches)
    draws = loop.batches.draws(0, 0)
    return next(number for number, draw in enumerate(draws, 1) if BAD in draw.indices)


@pytest.mark.parametrize("kind", list(NAN))
@pytest.mark.parametrize("flags", ["", "--clip-norm 1"], ids=["unclipped", "clipped"])
def test_training_stops_and_names_the_step(
    train_loop: Callable[..., Loop], kind: str, flags: str
) -> None:
    loop = train_loop(NAN[kind], *flags.split())
    expected = f"step {bad_step(loop)}: {MESSAGES[kind]}"
    if kind == "gradient" and not flags:  # the norm is not computed: the next loss shows it
        expected = f"step {bad_step(loop) + 1}: the loss is nan"
    with pytest.raises(NotFinite, match=f"^{expected}$"):
        loop.run()


@pytest.mark.parametrize("kind", list(NAN))
def test_no_later_checkpoint_is_written_and_the_last_good_one_is_kept(
    train_loop: Callable[..., Loop], kind: str
) -> None:
    loop = train_loop(NAN[kind], "--checkpoint-every-steps", "1", "--keep", "1")
    with pytest.raises(NotFinite):
        loop.run()
    loop.checkpointer.checkpoints.finish()
    assert loop.checkpointer.checkpoints.steps() == [bad_step(loop) - 1]
    second = train_loop(NAN[kind])
    second.resume()
    assert finite.all_finite(second.step.model.parameters())


def test_a_stop_after_a_bad_step_saves_no_checkpoint(train_loop: Callable[..., Loop]) -> None:
    """A stop may be requested before the result of the bad step is known."""
    loop = train_loop(NAN["input"], "--batch-size", "40")
    loop.stop.requested = True
    loop.step.finite_watch.poll = lambda: False  # type: ignore[method-assign]  # as on a GPU, which it does not wait for
    with pytest.raises(NotFinite, match=f"^step {bad_step(loop)}: the loss is nan$"):
        loop.run()
    assert loop.checkpointer.checkpoints.steps() == []


def test_weights_that_overflow_are_not_saved(train_loop: Callable[..., Loop]) -> None:
    """Loss and gradients of that step are finite, and the updated weights are not."""
    loop = train_loop(task(Points()), "--max-steps", "1", "--checkpoint-every-steps", "1")
    first = next(loop.step.model.parameters())

    def overflow(*_: object) -> None:
        first.data.mul_(1e38).mul_(1e38)

    loop.step.optimizer.register_step_post_hook(overflow)
    with pytest.raises(NotFinite, match=r"^step 1: the weights are not finite$"):
        loop.run()
    assert loop.checkpointer.checkpoints.steps() == []


def test_infinities_in_a_buffer_are_allowed(train_loop: Callable[..., Loop]) -> None:
    one = task(Points())

    def masked() -> nn.Module:
        made = model()
        made.register_buffer("mask", torch.full((2, 2), -math.inf))
        return made

    loop = train_loop(replace(one, model=masked), "--max-steps", "2")
    assert loop.run() == "succeeded"


def test_minus_infinity_is_not_a_best_loss(train_loop: Callable[..., Loop]) -> None:
    loop = train_loop(task(Points()))
    loop.position = loop.position._replace(step=1)
    loop.checkpointer.record_evaluation(-math.inf)
    assert loop.checkpointer.best.step == -1


def fp16(train_loop: Callable[..., Loop], one: Task, scale: float, *flags: str) -> Loop:
    loop = train_loop(one, "--amp", "fp16", *flags)
    loop.step.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return loop


def test_in_fp16_the_scaler_handles_gradients_that_overflow(
    train_loop: Callable[..., Loop],
) -> None:
    loop = fp16(train_loop, task(Points()), 2.0**40)
    assert loop.run() == "succeeded"
    assert loop.step.scaler is not None
    assert loop.step.scaler.get_scale() < 2.0**40


@pytest.mark.parametrize(
    ("kind", "scale"), [("input", 1024.0), ("gradient", 1.0)], ids=["loss", "lowest-scale"]
)
def test_in_fp16_a_bad_loss_or_overflow_at_the_lowest_scale_stops_training(
    train_loop: Callable[..., Loop], kind: str, scale: float
) -> None:
    loop = fp16(train_loop, NAN[kind], scale)
    with pytest.raises(NotFinite, match=f"^step {bad_step(loop)}: {MESSAGES[kind]}$"):
        loop.run()


def parse_json(text: str) -> Any:
    """Parse JSON; NaN and Infinity, which are not JSON, are errors."""

    def refuse_constant(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON: {text}")

    return json.loads(text, parse_constant=refuse_constant)


def test_log_metrics_refuses_a_name_that_exceeds_the_line_length(
    capfd: pytest.CaptureFixture[str],
) -> None:
    long: dict[str, Any] = {"x" * 3000: 1.0, "y" * 3000: 2.0}
    log_metrics(step=1, **long)
    lines = capfd.readouterr().out.splitlines()
    assert [list(parse_json(line.partition(" ")[2])["values"].values()) for line in lines] == [
        [1.0],
        [2.0],
    ]
    assert all(len(line) < MAX_LINE_BYTES for line in lines)
    longer: dict[str, Any] = {"x" * 5000: 1.0}
    with pytest.raises(
        ValueError, match="log_metrics: a name of 5000 characters is too long: 'xxx"
    ):
        log_metrics(**longer)
