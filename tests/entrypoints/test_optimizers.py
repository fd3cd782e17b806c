"""The optimizers of `--optimizer`: which parameters each updates, resumes, skipped steps, and a
user's own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from cloudtrain_trainer import tasks
from cloudtrain_trainer.models.decoder import Shape, decoder, joined
from cloudtrain_trainer.models.matrices import Rows, hidden_matrices
from cloudtrain_trainer.rules import OPTIMIZERS, Refused
from cloudtrain_trainer.training import optimizers
from cloudtrain_trainer.training import step as step_module
from cloudtrain_trainer.training.loop import Loop
from cloudtrain_trainer.training.muon import Muon, orthogonal

OWN = "tests.entrypoints.own_optimizers"
ALL = [*OPTIMIZERS, f"{OWN}:two_rates"]


def trained(
    optimizer: Callable[[nn.Parameter], torch.optim.Optimizer], start: torch.Tensor
) -> torch.Tensor:
    """A matrix after three steps with the same gradients."""
    matrix = nn.Parameter(start.clone())
    found = optimizer(matrix)
    for seed in range(3):
        matrix.grad = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(seed))
        found.step()
    return matrix.detach()


@pytest.mark.parametrize("shape", [(24, 10), (10, 24)])
def test_muon_is_that_of_torch_with_steps_of_the_size_of_adamws(shape: tuple[int, int]) -> None:
    start = torch.randn(shape)
    ours = trained(lambda p: Muon([{"params": [p], "weight_decay": 0.2}], lr=0.1), start)
    theirs = trained(
        lambda p: torch.optim.Muon([p], lr=0.1, weight_decay=0.2, adjust_lr_fn="match_rms_adamw"),
        start,
    )
    torch.testing.assert_close(
        ours, theirs, rtol=0, atol=2e-3
    )  # bf16 rounds sums of several matrices otherwise
    assert (start - ours).abs().max() > 0.05


def test_matrices_of_one_shape_are_each_made_orthogonal() -> None:
    matrices = torch.randn(3, 16, 40)
    for each in orthogonal(matrices.bfloat16()).float():
        singular = torch.linalg.svdvals(each)
        assert 0.6 < float(singular.min()) <= float(singular.max()) < 1.3


def test_a_joined_matrix_is_as_its_parts_would_be() -> None:
    """Rows are (groups, parts, rows of a part), as query, key and value of each head."""
    rows = Rows(parts=3, groups=2)
    start = torch.randn(2, 3, 4, 12)
    grad = torch.randn(2, 3, 4, 12)
    whole = nn.Parameter(start.reshape(24, 12).clone())
    whole.grad = grad.reshape(24, 12)
    Muon([{"params": [whole], "rows": rows}], lr=0.1).step()
    for part in range(3):
        alone = nn.Parameter(start[:, part].reshape(8, 12).clone())
        alone.grad = grad[:, part].reshape(8, 12)
        Muon([{"params": [alone]}], lr=0.1).step()
        torch.testing.assert_close(
            whole.detach().view(2, 3, 4, 12)[:, part].reshape(8, 12),
            alone.detach(),
            atol=2e-3,
            rtol=0,
        )


def test_muon_takes_matrices_of_hidden_layers_only() -> None:
    shape = Shape(vocabulary=16, context=8, width=8, layers=1, heads=2)
    layer = ["attention.qkv", "attention.out", "feed.gate_up", "feed.down"]
    expected = {f"layers.0.{name}.weight" for name in layer}
    model = decoder(shape)
    found = hidden_matrices(model, joined(shape))
    assert set(found) == expected, "without embedding and head"
    assert found["layers.0.attention.qkv.weight"] == Rows(3, 2)
    assert found["layers.0.feed.down.weight"] == Rows()
    assert set(hidden_matrices(decoder(replace(shape, tied=True)))) == expected, (
        "the embedding is the head"
    )
    assert list(hidden_matrices(tasks.build("digits", 0).model())) == ["9.weight"]
    optimizer = optimizers.build(
        "muon", dict(model.named_parameters()), 0.1, 0.5, fused=False, matrices=found
    )
    names = {id(p): name for name, p in model.named_parameters()}
    decay = {
        names[id(p)]: group["weight_decay"]
        for group in optimizer.param_groups
        for p in group["params"]
    }
    assert decay == {name: 0.5 if p.dim() == 2 else 0.0 for name, p in model.named_parameters()}


def test_a_model_without_matrices_in_hidden_layers_is_refused_for_muon(
    make_loop: Callable[..., Loop],
) -> None:
    task = tasks.build("resnet50", 0, size="tiny", data="synthetic")
    with pytest.raises(Refused, match=r"no matrix in a hidden layer, .*: use adamw or sgd"):
        make_loop("--optimizer", "muon", task=task)


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


def test_each_group_follows_the_schedule_from_its_own_rate(make_loop: Callable[..., Loop]) -> None:
    loop = make_loop("--optimizer", f"{OWN}:two_rates", "--lr", "0.5", "--warm-up", "0.5")
    loop.step.train_step(loop.batches.load(0, 0), 0, 10)  # the first of five steps of warm-up
    assert [group["lr"] for group in loop.step.optimizer.param_groups] == pytest.approx([0.1, 1.0])


@pytest.mark.parametrize("fused", [(), ("cpu",)], ids=["host", "fused"])
@pytest.mark.parametrize("name", ALL)
def test_a_bad_step_is_skipped(
    name: str,
    fused: tuple[str, ...],
    make_loop: Callable[..., Loop],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first step of all, at which an optimizer makes its state; then a good one is trained."""
    monkeypatch.setattr(step_module, "FUSED_ON", fused)
    loop = make_loop("--optimizer", name, "--on-nan", "skip")
    batches = loop.batches.load(0, 0)
    start = [parameter.detach().clone() for parameter in loop.step.model.parameters()]
    inputs, targets = next(batches)
    loop.step.train_step(iter([(inputs * float("nan"), targets)]), 0, 100)
    assert all(map(torch.equal, start, loop.step.model.parameters()))
    loop.step.train_step(batches, 1, 100)
    assert not any(map(torch.equal, start, loop.step.model.parameters()))
    assert all(bool(torch.isfinite(parameter).all()) for parameter in loop.step.model.parameters())


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
