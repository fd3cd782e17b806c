"""Losses, gradients, weights and evaluations that are not finite numbers: training stops, or leaves the step out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_job import MAX_LINE_BYTES, log_metrics
from cloudtrain_trainer import finite, state, strategies
from cloudtrain_trainer import step as step_module
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.checkpoint import CheckpointStore
from cloudtrain_trainer.finite import NotFinite
from cloudtrain_trainer.loop import Loop
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.tasks import Draw, Task

BAD = 7
"""The sample that spoils its batch. 40 samples in batches of 4 make 10 steps per epoch, one of them with it."""


class Points:
    """Inputs (n, 3) and targets (n, 1); one sample may be another number than the others."""

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


def bent(outputs: Tensor, targets: Tensor) -> Tensor:
    """A finite loss whose gradient is NaN where a target is large: the slope of a root at zero, times zero."""
    loss = F.mse_loss(outputs, targets.clamp(max=10))
    return loss + (outputs * 0).sum().abs().sqrt() if bool((targets > 50).any()) else loss


def task(train: Points, validation: Points | None = None, loss: Callable[..., Tensor] = F.mse_loss) -> Task:
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
    "gradient": task(Points(bad_target=99), loss=bent),
}
SAID = {"input": "the loss is nan", "input-inf": "the loss is nan", "gradient": "the norm of the gradients is nan"}


@pytest.fixture
def make_loop(tmp_path: Path) -> Callable[..., Loop]:
    def make(one: Task, *argv: str) -> Loop:
        torch.set_num_threads(1)
        options = parse(["--lr-schedule", "constant", "--warm-up", "0", *argv])
        strategy = strategies.build(Ranks(), options)
        return Loop(one, strategy, options, CheckpointStore(tmp_path, options.keep, strategy.ranks), Stop())

    return make


def bad_step(loop: Loop) -> int:
    """The step of the first epoch that takes the bad sample, from 1 on."""
    draws = loop.batches.draws(0, 0)
    return next(number for number, draw in enumerate(draws, 1) if BAD in draw.indices)


def parameters(loop: Loop) -> str:
    return state.fingerprint(loop.step.model.state_dict())


@pytest.mark.parametrize("kind", list(NAN))
@pytest.mark.parametrize("flags", ["", "--clip-norm 1"], ids=["unclipped", "clipped"])
def test_training_stops_and_names_the_step(make_loop: Callable[..., Loop], kind: str, flags: str) -> None:
    loop = make_loop(NAN[kind], *flags.split())
    with pytest.raises(NotFinite, match=f"^step {bad_step(loop)}: {SAID[kind]}$"):
        loop.run()


@pytest.mark.parametrize("kind", list(NAN))
def test_no_checkpoint_is_written_from_there_on_and_the_last_good_one_stays(
    make_loop: Callable[..., Loop], kind: str
) -> None:
    loop = make_loop(NAN[kind], "--checkpoint-every-steps", "1", "--keep", "1")
    with pytest.raises(NotFinite):
        loop.run()
    loop.checkpointer.checkpoints.finish()
    assert loop.checkpointer.checkpoints.steps() == [bad_step(loop) - 1]
    again = make_loop(NAN[kind])
    again.resume()
    assert finite.all_finite(again.step.model.parameters())


def test_a_stop_that_is_asked_for_behind_it_does_not_save_it_either(make_loop: Callable[..., Loop]) -> None:
    """The question of a stop may come before the answer about the step is known."""
    loop = make_loop(NAN["input"])
    loop.stop.requested = True
    loop.step.finite_watch.poll = lambda: False  # type: ignore[method-assign]  # as on a GPU, which is never waited for
    loop._train_epoch()
    loop.position = loop.position._replace(step=1)
    batches = loop.batches.load(0, 0)
    for at in range(10):
        loop.step.train_step(batches, at, 100)
    with pytest.raises(NotFinite, match=f"^step {bad_step(loop)}: the loss is nan$"):
        loop.checkpointer.save(last=True)
    assert loop.checkpointer.checkpoints.steps() == []


@pytest.mark.parametrize("kind", list(NAN))
@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fused"])
def test_a_step_that_is_left_out_leaves_no_trace(
    make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch, kind: str, fast: bool
) -> None:
    """Weights, AdamW's moments and batch norm's statistics are those of a training that never took it, to the bit."""
    if fast:  # as on a GPU: one kernel, which looks at the flag by itself
        monkeypatch.setattr(step_module, "FUSED_ON", ("cuda", "cpu"))
    skipping, without = make_loop(NAN[kind], "--on-nan", "skip"), make_loop(NAN[kind])
    for loop in (skipping, without):
        loop.step.wrapped.train()
        batches = list(loop.batches.load(0, 0))
        for at, batch in enumerate(batches):
            if loop is skipping or at + 1 != bad_step(loop):
                loop.step.train_step(iter([batch]), at, 100)
    assert (skipping.step.finite_watch.skipped_steps, without.step.finite_watch.skipped_steps) == (1, 0)
    assert parameters(skipping) == parameters(without)
    assert finite.all_finite(skipping.step.model.state_dict().values())


def test_a_run_that_leaves_steps_out_says_so_and_ends_well(
    make_loop: Callable[..., Loop], capfd: pytest.CaptureFixture[str]
) -> None:
    loop = make_loop(NAN["input"], "--on-nan", "skip")
    assert loop.run() == "succeeded"
    assert loop.metrics["skipped_steps"] == 2
    assert all(math.isfinite(value) for value in loop.metrics.values())
    assert finite.all_finite(loop.step.model.state_dict().values())
    assert f"step {bad_step(loop)}: the loss is nan: skipped (--on-nan skip), 1 steps so far" in capfd.readouterr()[0]


def test_a_resume_counts_on(make_loop: Callable[..., Loop]) -> None:
    flags = "--on-nan", "skip"
    make_loop(NAN["input"], *flags, "--max-steps", "10").run()
    again = make_loop(NAN["input"], *flags)
    again.resume()
    again.run()
    assert again.metrics["skipped_steps"] == 2


def test_a_run_whose_steps_are_all_bad_is_stopped_also_where_bad_ones_are_left_out(
    make_loop: Callable[..., Loop],
) -> None:
    loop = make_loop(
        task(Points(), loss=lambda outputs, targets: F.mse_loss(outputs, targets) * math.nan), "--on-nan", "skip"
    )
    with pytest.raises(NotFinite, match=r"^step 1: the loss is nan, and so on for 10 steps in a row$"):
        loop.run()
    assert finite.all_finite(loop.step.model.parameters())


def test_weights_that_overflow_are_not_saved(make_loop: Callable[..., Loop]) -> None:
    """Loss and gradients of that step were finite: the update was not."""
    loop = make_loop(task(Points()), "--max-steps", "1", "--checkpoint-every-steps", "1")
    first = next(loop.step.model.parameters())

    def overflow(*_: object) -> None:
        first.data.mul_(1e38).mul_(1e38)

    loop.step.optimizer.register_step_post_hook(overflow)
    with pytest.raises(NotFinite, match=r"^step 1: the weights are not finite$"):
        loop.run()
    assert loop.checkpointer.checkpoints.steps() == []


def test_a_checkpoint_of_an_earlier_release_that_holds_such_weights_is_refused(
    make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make_loop(task(Points()), "--max-steps", "1")
    monkeypatch.setattr(finite, "all_finite", lambda _: True)
    loop._train_epoch()
    next(loop.step.model.parameters()).data.fill_(math.nan)
    loop.checkpointer.save(last=True)
    monkeypatch.undo()
    with pytest.raises(Refused, match=r"step-00000001 contains weights that are not finite.* --no-resume here"):
        make_loop(task(Points())).resume()


def test_a_mask_of_infinities_in_a_buffer_is_none_of_this(make_loop: Callable[..., Loop]) -> None:
    one = task(Points())

    def masked() -> nn.Module:
        made = model()
        made.register_buffer("mask", torch.full((2, 2), -math.inf))
        return made

    loop = make_loop(replace(one, model=masked), "--max-steps", "2")
    assert loop.run() == "succeeded"


BAD_VALIDATION = task(Points(), Points(bad_input=math.nan))


def test_an_evaluation_that_is_no_number_stops_training(make_loop: Callable[..., Loop]) -> None:
    loop = make_loop(BAD_VALIDATION)
    with pytest.raises(NotFinite, match=r"^the evaluation after step 10: val_loss is nan$"):
        loop.run()


def test_with_skip_it_is_never_the_best_and_counts_against_patience(
    make_loop: Callable[..., Loop], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = make_loop(BAD_VALIDATION, "--on-nan", "skip", "--patience", "2", "--epochs", "5")
    assert loop.run() == "succeeded"
    assert (loop.position.step, loop.checkpointer.best.step, loop.checkpointer.best.evaluations_since) == (20, -1, 2)
    assert not list(tmp_path.glob("best.*"))
    lines = [line for line in capfd.readouterr()[0].splitlines() if '"type":"metrics"' in line]
    assert [strict(line.partition(" ")[2])["values"]["val_loss"] for line in lines] == [None, None]
    (shared,) = tmp_path.glob("step-00000020/shared.json")
    assert strict(shared.read_text())["metrics"]["val_loss"] is None
    again = make_loop(BAD_VALIDATION, "--on-nan", "skip", "--patience", "2", "--target-accuracy", "0.9")
    again.resume()
    assert again.checkpointer.best == loop.checkpointer.best
    assert again.run() == "succeeded"
    assert again.position == loop.position, "what has ended stays ended"


def test_minus_infinity_is_no_best_loss(make_loop: Callable[..., Loop]) -> None:
    loop = make_loop(task(Points()))
    loop.position = loop.position._replace(step=1)
    loop.checkpointer.record_evaluation(-math.inf)
    assert loop.checkpointer.best.step == -1


def fp16(make_loop: Callable[..., Loop], one: Task, scale: float, *flags: str) -> Loop:
    loop = make_loop(one, "--amp", "fp16", *flags)
    loop.step.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return loop


def test_in_fp16_gradients_that_overflow_are_the_scalers_own_affair(make_loop: Callable[..., Loop]) -> None:
    loop = fp16(make_loop, task(Points()), 2.0**40)
    assert loop.run() == "succeeded"
    assert loop.step.scaler is not None
    assert loop.step.scaler.get_scale() < 2.0**40
    assert loop.step.finite_watch.skipped_steps == 0


@pytest.mark.parametrize(
    ("kind", "scale"), [("input", 1024.0), ("gradient", 1.0)], ids=["loss", "nothing-left-to-scale"]
)
def test_in_fp16_what_no_scale_helps_against_stops_training(
    make_loop: Callable[..., Loop], kind: str, scale: float
) -> None:
    loop = fp16(make_loop, NAN[kind], scale)
    with pytest.raises(NotFinite, match=f"^step {bad_step(loop)}: {SAID[kind]}$"):
        loop.run()


def test_in_fp16_a_bad_loss_is_left_out_too(make_loop: Callable[..., Loop]) -> None:
    """Also one whose gradients are finite, at which the scaler would not look."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        found = F.mse_loss(outputs.float(), targets.clamp(max=10))
        return found + math.nan if bool((targets > 50).any()) else found

    loop = fp16(make_loop, task(Points(bad_target=99), loss=loss), 1024.0, "--on-nan", "skip")
    taken: list[Any] = []
    loop.step.optimizer.register_step_post_hook(lambda *_: taken.append(1))
    assert loop.run() == "succeeded"
    assert (len(taken), loop.metrics["skipped_steps"]) == (18, 2)


def strict(text: str) -> Any:
    """What any reader of JSON makes of it."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON: {text}")

    return json.loads(text, parse_constant=refuse)


def test_a_name_that_no_line_can_hold_is_refused_in_words(capfd: pytest.CaptureFixture[str]) -> None:
    long: dict[str, Any] = {"x" * 3000: 1.0, "y" * 3000: 2.0}
    log_metrics(step=1, **long)
    lines = capfd.readouterr().out.splitlines()
    assert [list(strict(line.partition(" ")[2])["values"].values()) for line in lines] == [[1.0], [2.0]]
    assert all(len(line) < MAX_LINE_BYTES for line in lines)
    longer: dict[str, Any] = {"x" * 5000: 1.0}
    with pytest.raises(ValueError, match="log_metrics: a name of 5000 characters is too long: 'xxx"):
        log_metrics(**longer)
