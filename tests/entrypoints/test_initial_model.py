"""A model that ranks share has the very numbers of one that a process builds whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cloudtrain_trainer import tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.training.initial_model import InitialModel

CPU = torch.device("cpu")


class Manifold(nn.Module):
    """Initial weights in many ways: drawn, computed, in part, copied, by rejection."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(90, 90)).view(1, 1, 90, 90))
        self.drawn = nn.Parameter(torch.randn(100, 100) * 0.02)
        nn.init.normal_(self.drawn[:50])
        self.embedding = nn.Embedding(300, 64, padding_idx=3)
        self.head = nn.Linear(64, 300, bias=False)
        self.head.weight = self.embedding.weight
        self.recurrent = nn.LSTM(64, 64)
        self.copies = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), 2)
        self.orthogonal, self.truncated, self.wide = (nn.Linear(128, 128) for _ in range(3))
        nn.init.orthogonal_(self.orthogonal.weight)
        nn.init.trunc_normal_(self.truncated.weight, std=0.5, a=-0.3, b=0.6)
        with torch.no_grad():
            self.orthogonal.weight[3:5].mul_(3)
            self.wide.weight[:, 7].fill_(1.0)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(100, 100))
        for part in self.recurrent.weight_ih_l0.chunk(4):  # type: ignore[operator]
            nn.init.xavier_uniform_(part)
        self.small = nn.Linear(100, 100).to(torch.bfloat16)
        self.images = nn.Conv2d(32, 64, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def build(create: Callable[[], nn.Module], *argv: str) -> nn.Module:
    """Build the model as rank 0 of ranks that share it."""
    initial = InitialModel(create, parse(list(argv)), Ranks(), True)
    initial.place(initial.model, CPU)
    return initial.model


def assert_same_tensors(model: nn.Module, expected: dict[str, Tensor]) -> None:
    loaded = tensors(model)
    assert loaded.keys() == expected.keys()
    for name, tensor in loaded.items():
        assert torch.equal(tensor, expected[name]), name
        assert (tensor.stride(), tensor.dtype) == (
            expected[name].stride(),
            expected[name].dtype,
        ), name


@pytest.mark.parametrize(
    "create",
    [
        Manifold,
        tasks.build("gpt", 0).model,
    ],
    ids=["many ways", "gpt"],
)
def test_a_shared_model_has_the_numbers_of_one_process(
    create: Callable[[], nn.Module], capfd: pytest.CaptureFixture[str]
) -> None:
    model = build(create, "--seed", "3")
    torch.manual_seed(3)
    assert_same_tensors(model, tensors(create()))
    assert capfd.readouterr().out == "", "it is not built whole"


def test_tied_weights_stay_tied() -> None:
    model = build(Manifold)
    assert model.head.weight is model.embedding.weight  # type: ignore[union-attr]


class KeepsTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(90, 90)
        self.table = torch.rand(90, 90)


class ReadsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(90, 90)
        self.scale = self.linear.weight.norm().item()


@pytest.mark.parametrize(
    ("create", "reason"),
    [
        (KeepsTable, "table is a tensor, but not a parameter or buffer"),
        (ReadsValues, r"Tensor.item\(\) cannot be called on meta tensors"),
    ],
)
def test_a_model_that_needs_values_is_built_whole(
    create: Callable[[], nn.Module], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model = build(create)
    torch.manual_seed(0)
    expected = create()
    assert_same_tensors(model, tensors(expected))
    if isinstance(expected, KeepsTable):
        assert torch.equal(model.table, expected.table)  # type: ignore[arg-type]
    output = capfd.readouterr().out
    assert re.search(f"every rank builds the whole model in host memory: {reason}", output)


def test_a_models_own_mistake_is_its_own_error() -> None:
    def refuses() -> nn.Module:
        raise Refused("no")

    def fails() -> nn.Module:
        raise LookupError("of the model")

    with pytest.raises(Refused, match=r"^no$"):
        build(refuses)
    with pytest.raises(LookupError, match="of the model"):
        build(fails)


def test_given_weights_are_placed_instead(tmp_path: Path) -> None:
    weights = {name: value + 1 for name, value in Manifold().state_dict().items()}
    # One name of two, and a tensor that keeps the model's own.
    del (
        weights["embedding.weight"],
        weights["mask"],
    )
    torch.save(weights, tmp_path / "given.pt")
    model = build(Manifold, "--weights", str(tmp_path / "given.pt"), "--partial-weights")
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in weights.items())
    assert torch.equal(state["embedding.weight"], weights["head.weight"])
    assert torch.equal(state["mask"], Manifold().state_dict()["mask"])
