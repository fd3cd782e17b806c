"""The optimizers of `--optimizer`: which parameters each updates, resumes, and a user's
own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cloudtrain_trainer.rules import OPTIMIZERS, Refused
from cloudtrain_trainer.training.loop import Loop

OWN = "tests.entrypoints.own_optimizers"
ALL = [*OPTIMIZERS, f"{OWN}:two_rates"]


@pytest.mark.parametrize("name", ALL)
def test_a_resumed_run_ends_with_the_same_bits(
    name: str, make_loop: Callable[..., Loop], tmp_path: Path
) -> None:
    flags = [
        "--optimizer",
        name,
        "--batch-size",
        "160",
        "--max-steps",
        "4",
        "--checkpoint-every-steps",
        "2",
    ]
    whole = make_loop(*flags)
    start = [parameter.detach().clone() for parameter in whole.step.model.parameters()]
    assert whole.run() == "succeeded"
    ends = [parameter.detach() for parameter in whole.step.model.parameters()]
    assert not any(map(torch.equal, start, ends)), "each parameter is trained"
    assert torch.isfinite(torch.stack([end.sum() for end in ends])).all()
    shutil.rmtree(tmp_path / "step-00000004")
    resumed = make_loop(*flags)
    resumed.resume()
    assert resumed.position.step == 2
    assert resumed.run() == "succeeded"
    assert all(map(torch.equal, resumed.step.model.parameters(), ends))


def test_another_optimizer_does_not_resume_from_a_checkpoint(
    make_loop: Callable[..., Loop],
) -> None:
    make_loop("--max-steps", "1").run()
    with pytest.raises(Refused, match=r"was saved with .*, not .* --optimizer sgd: use the same"):
        make_loop("--max-steps", "1", "--optimizer", "sgd").resume()


def test_adamw_takes_its_betas_and_the_cosine_its_floor(make_loop: Callable[..., Loop]) -> None:
    loop = make_loop("--betas", "0.8,0.95", "--lr", "0.5", "--min-lr", "0.1", "--warm-up", "0")
    batches = loop.batches.load(0, 0)
    groups = loop.step.optimizer.param_groups
    assert {group["betas"] for group in groups} == {(0.8, 0.95)}
    rates = []
    for step in (0, 5, 10):
        loop.step.train_step(batches, step, 10)
        rates += [group["lr"] for group in groups[:1]]
    assert rates == pytest.approx([0.5, 0.3, 0.1])
    with pytest.raises(Refused, match=r"--min-lr .* is above --lr"):
        make_loop("--lr", "0.5", "--min-lr", "0.6")


def test_each_group_follows_the_schedule_from_its_own_rate(make_loop: Callable[..., Loop]) -> None:
    loop = make_loop("--optimizer", f"{OWN}:two_rates", "--lr", "0.5", "--warm-up", "0.5")
    loop.step.train_step(loop.batches.load(0, 0), 0, 10)  # the first of five steps of warm-up
    assert [group["lr"] for group in loop.step.optimizer.param_groups] == pytest.approx([0.1, 1.0])


@pytest.mark.parametrize("name", ALL)
def test_the_loss_scaler_of_fp16_works_with_each(name: str, make_loop: Callable[..., Loop]) -> None:
    """Gradients that overflow are left out; at a lower scale the same batch is trained."""
    loop = make_loop("--optimizer", name, "--amp", "fp16")
    assert loop.step.scaler is not None
    loop.step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    start = [parameter.detach().clone() for parameter in loop.step.model.parameters()]
    batch = next(loop.batches.load(0, 0))
    loop.step.train_step(iter([batch]), 0, 100)
    assert all(map(torch.equal, start, loop.step.model.parameters()))
    loop.step.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    loop.step.train_step(iter([batch]), 1, 100)
    assert not any(map(torch.equal, start, loop.step.model.parameters()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lbfgs", "step of LBFGS computes the loss several times"),
        ("foreign", "has parameters that are not the model's"),
        (
            "nothing",
            (
                r"own_optimizers.py:\d+: --optimizer .*:nothing returned nothing: return a"
                r" torch.optim.Optimizer"
            ),
        ),
        ("missing", "has nothing named missing"),
    ],
)
def test_an_optimizer_that_cannot_work_is_refused_with_its_place(
    name: str, message: str, make_loop: Callable[..., Loop]
) -> None:
    with pytest.raises(Refused, match=message):
        make_loop("--optimizer", f"{OWN}:{name}")


def test_state_that_a_checkpoint_cannot_keep_is_told(make_loop: Callable[..., Loop]) -> None:
    loop = make_loop("--optimizer", f"{OWN}:with_list", "--max-steps", "1")
    with pytest.raises(
        Refused,
        match=r"the state history of 0.weight is a list of int, int: checkpoints keep tensors",
    ):
        loop.run()
