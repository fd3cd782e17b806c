"""The learning rate schedule and gradient clipping of an optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from cloudtrain_trainer import tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.strategies import Strategy
from cloudtrain_trainer.tasks.resnet50 import resnet
from cloudtrain_trainer.training.loop import Loop
from cloudtrain_trainer.training.step import Step, lr_factor


def test_the_learning_rate_increases_then_decays_to_zero() -> None:
    factors = [lr_factor(step, 100) for step in range(101)]
    assert factors[9] == max(factors) == 1.0
    assert factors[100] == pytest.approx(0)
    assert all(a >= b for a, b in pairwise(factors[9:]))
    assert lr_factor(0, 1) == 1.0


@pytest.mark.parametrize(
    ("kind", "warm_up", "expected"),
    [
        ("constant", 0.5, [0.5, 1, 1, 1, 1]),
        ("cosine", 0.0, [1, 0.854, 0.5]),
    ],
)
def test_the_schedules_have_these_values(kind: str, warm_up: float, expected: list[float]) -> None:
    factors = [lr_factor(step, 4, kind, warm_up) for step in range(len(expected))]
    assert factors == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("amp", ["no", "bf16"])
def test_recomputed_layers_have_the_same_gradients(
    amp: str, make_loop: Callable[..., Loop]
) -> None:
    gradients = []
    for flag in ("none", "blocks"):
        flags = ["--task", "gpt", "--batch-size", "2", "--amp", amp, "--recompute", flag]
        loop = make_loop(*flags, task=tasks.build("gpt", 0))
        loop.step.forward_backward(*next(loop.batches.load(0, 0)))
        gradients.append([parameter.grad for parameter in loop.step.model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_a_model_with_batch_norm_is_not_recomputed(make_loop: Callable[..., Loop]) -> None:
    task = tasks.build("resnet50", 0, size="tiny")
    deeper = replace(task, model=partial(resnet, (1, 3, 1, 1), 8, 10))
    with pytest.raises(Refused, match="twice in the statistics of batch norm"):
        make_loop("--task", "resnet50", "--recompute", "blocks", task=deeper)


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_clipping_equals_that_of_torch(limit: float) -> None:
    task = tasks.build("digits", 0)
    options = parse(["--clip-norm", str(limit)])
    step = Step(task, Strategy(Ranks(), options), options, 32)
    torch.manual_seed(0)
    for parameter in step.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    copies = [nn.Parameter(p.detach().clone()) for p in step.model.parameters()]
    for mine, parameter in zip(copies, step.model.parameters(), strict=True):
        assert parameter.grad is not None
        mine.grad = parameter.grad.clone()
    step._clip()
    nn.utils.clip_grad_norm_(copies, limit)
    for mine, parameter in zip(copies, step.model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, mine.grad)
