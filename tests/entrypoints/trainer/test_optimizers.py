"""The optimizers of `--optimizer`: which parameters each updates, resumes, and a user's
own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from cloudtrain_trainer.options import Folders
from cloudtrain_trainer.own_task import complete
from cloudtrain_trainer.recompute import repeated_blocks
from cloudtrain_trainer.rules import OPTIMIZERS, Refused
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training.evaluation import evaluate
from cloudtrain_trainer.training.loop import Loop
from cloudtrain_trainer.training.step import lr_factor
from tests.entrypoints.trainer import own_code
from tests.entrypoints.trainer.loss_curves import small_task

OWN = "tests.entrypoints.trainer.own_code"
ALL = [*OPTIMIZERS, f"{OWN}:two_rates", f"{OWN}:late"]


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


def test_state_is_restored_by_the_names_of_parameters(
    make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factory may give its groups in another order after a change of its code."""
    flags = ["--optimizer", f"{OWN}:two_rates", "--batch-size", "160", "--lr", "0.01"]
    saved = make_loop(*flags, "--max-steps", "2")
    saved.run()
    expected = {
        name: dict(saved.step.optimizer.state[p]) for name, p in saved.step.model.named_parameters()
    }
    two_rates = own_code.two_rates

    def reversed_order(
        named_parameters: list[tuple[str, torch.Tensor]], lr: float
    ) -> torch.optim.Optimizer:
        return two_rates(named_parameters[::-1], lr)

    monkeypatch.setattr(own_code, "two_rates", reversed_order)
    resumed = make_loop(*flags, "--max-steps", "2")
    resumed.resume()
    for name, parameter in resumed.step.model.named_parameters():
        assert resumed.step.optimizer.state[parameter] == expected[name], name


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
                r"own_code.py:\d+: --optimizer .*:nothing returned nothing: return a"
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


MakeLoop = Callable[..., Loop]
FLAGS = ("--batch-size", "64", "--max-steps", "6", "--checkpoint-every-steps", "3", "--keep", "9")


def averages_of(loop: Loop) -> dict[str, torch.Tensor]:
    assert loop.step.averages is not None
    return {name: value.clone() for name, value in loop.step.averages.tensors.items()}


def weights_of(loop: Loop) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in loop.step.model.named_parameters()}


def are_equal(one: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return one.keys() == second.keys() and all(torch.equal(one[name], second[name]) for name in one)


def test_the_average_follows_the_weights(make_loop: MakeLoop) -> None:
    loop = make_loop(*FLAGS, "--ema", "0.15")
    expected = weights_of(loop)
    batches = loop.batches.load(0, 0)
    for step, decay in enumerate((0.1, 0.15, 0.15)):
        loop.step.train_step(batches, step, 6)
        for name, weight in weights_of(loop).items():
            expected[name] = decay * expected[name] + (1 - decay) * weight
    for name, average in averages_of(loop).items():
        torch.testing.assert_close(average, expected[name])


def test_the_average_is_evaluated_and_the_weights_are_trained(make_loop: MakeLoop) -> None:
    loop = make_loop(*FLAGS, "--ema", "0.9")
    batches = loop.batches.load(0, 0)
    for step in range(4):
        loop.step.train_step(batches, step, 6)
    trained = weights_of(loop)
    averages = averages_of(loop)
    assert loop.evaluate_only() == "succeeded"
    values = loop.metrics
    assert are_equal(weights_of(loop), trained)
    assert are_equal(averages_of(loop), averages)
    loop.step.model.load_state_dict(averages, strict=False)
    assert values == evaluate(loop.step, 64, 0, lambda: False)


def test_a_resume_continues_the_average_and_the_model_is_the_average(
    make_loop: MakeLoop, tmp_path: Path
) -> None:
    load = pytest.importorskip("safetensors.torch").load_file
    export = import_module("train").export_model
    whole = make_loop(*FLAGS, "--ema", "0.9")
    whole.run()
    shutil.rmtree(tmp_path / "step-00000006")
    resumed = make_loop(*FLAGS, "--ema", "0.9")
    resumed.resume()
    assert resumed.position.step == 3
    resumed.run()
    averages = averages_of(resumed)
    assert are_equal(averages, averages_of(whole))
    assert are_equal(weights_of(resumed), weights_of(whole))
    assert not are_equal(averages, weights_of(resumed))

    export(resumed, Folders(tmp_path / "model", tmp_path, tmp_path))
    model = load(tmp_path / "model/model.safetensors")
    assert are_equal({name: model[name] for name in averages}, averages)


def test_a_checkpoint_without_averages_begins_them_with_its_weights(make_loop: MakeLoop) -> None:
    plain = make_loop(*FLAGS)
    assert plain.step.averages is None
    plain.run()
    resumed = make_loop(*FLAGS, "--ema", "0.9")
    resumed.resume()
    assert are_equal(averages_of(resumed), weights_of(plain))


def test_averages_of_short_numbers_are_long(make_loop: MakeLoop) -> None:
    """In bfloat16 a step of the average would be rounded away."""
    from cloudtrain_trainer.training.optimizers import AveragedWeights

    model = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    averages = AveragedWeights(model, 0.999)
    before = model.weight.detach().clone()
    assert averages.tensors["weight"].dtype == torch.float32
    torch.nn.init.constant_(model.weight, 3.0)
    averages.update(100_000)
    expected = before.float() + 0.001 * (3 - before.float())
    torch.testing.assert_close(averages.tensors["weight"], expected)
    with averages.in_model():
        assert torch.equal(model.weight, expected.bfloat16())
    assert torch.equal(model.weight, torch.full_like(before, 3.0))


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


def gradients_of_a_step(loop: Loop) -> list[torch.Tensor]:
    """Return the gradients that the next step updates the weights with."""
    gradients: list[torch.Tensor] = []

    def keep(*_: object) -> None:
        parameters = loop.step.model.parameters()
        gradients.extend(p.grad.clone() for p in parameters if p.grad is not None)

    loop.step.optimizer.register_step_pre_hook(keep)
    loop.step.wrapped.train()
    loop.step.train_step(loop.batches.load(0, 0), 0, 100)

    return gradients


@pytest.mark.parametrize("amp", ["no", "bf16"])
def test_recomputed_layers_have_the_same_gradients(amp: str, make_loop: MakeLoop) -> None:
    flags = ("--batch-size", "4", "--amp", amp)
    stored, recomputed = (
        gradients_of_a_step(make_loop(*flags, "--recompute", how, task=small_task("text")))
        for how in ("none", "blocks")
    )
    assert len(stored) > 20
    assert all(map(torch.equal, stored, recomputed))


class Block(nn.Module):
    """Two layers, which count how often they run."""

    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), *more)
        self.runs = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        out: torch.Tensor = self.inside(values)
        return out


def stack(*blocks: nn.Module) -> nn.Module:
    """Return a model of blocks that repeat in nested sequences, between other layers."""
    first, second, *others = blocks
    nested = nn.Sequential(nn.Sequential(first, second), *others, nn.ReLU())
    return nn.Sequential(nn.Flatten(), nested, nn.Linear(64, 10))


def task_with(model: Callable[[], nn.Module]) -> Task:
    """Return a user's task with this model."""
    data = TensorDataset(torch.randn(40, 64), torch.arange(40) % 10)
    return complete(Task(model=model, train=data), 0, "task")


def test_the_repeated_blocks_of_a_model_are_recomputed(make_loop: MakeLoop) -> None:
    """Also the layers of a block that nothing repeats, and once a block that is used twice."""
    once, again, alone = (Block() for _ in range(3))
    model = stack(once, again, once, again, nn.Sequential(alone))
    gradients_of_a_step(make_loop("--recompute", "blocks", task=task_with(lambda: model)))
    assert (once.runs, again.runs, alone.runs) == (4, 4, 1)
    assert [*repeated_blocks(model)] == [once, again, *alone.inside]


def test_a_model_with_batch_norm_is_not_recomputed(make_loop: MakeLoop) -> None:
    normed = task_with(lambda: stack(*(Block(nn.BatchNorm1d(64)) for _ in range(2))))
    with pytest.raises(Refused, match="twice in the statistics of batch norm"):
        make_loop("--recompute", "blocks", task=normed)


def test_a_model_without_repeated_blocks_is_not_recomputed(make_loop: MakeLoop) -> None:
    plain = task_with(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(Refused, match="finds no layers that this model repeats"):
        make_loop("--recompute", "blocks", task=plain)


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_clipping_equals_that_of_torch(limit: float, make_loop: MakeLoop) -> None:
    task = small_task("digits")
    expected = [nn.Parameter(value) for value in gradients_of_a_step(make_loop(task=task))]
    for parameter in expected:
        parameter.grad = parameter.detach().clone()
    nn.utils.clip_grad_norm_(expected, limit)
    clipped = gradients_of_a_step(make_loop("--clip-norm", str(limit), task=task))
    for mine, parameter in zip(clipped, expected, strict=True):
        torch.testing.assert_close(mine, parameter.grad)
