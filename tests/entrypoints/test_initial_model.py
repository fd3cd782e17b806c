"""A model whose large tensors are made later has the very numbers of one that is built at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cloudtrain_trainer import tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.models.deferred import MIN_NUMBERS, record
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.training.initial_model import InitialModel

CPU = torch.device("cpu")


class Manifold(nn.Module):
    """Initial weights in many ways: drawn, computed, from a generator of its own, in part, copied,
    by rejection.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(90, 90)).view(1, 1, 90, 90))
        self.drawn = nn.Parameter(torch.randn(100, 100) * 0.02)
        nn.init.normal_(self.drawn[:50], generator=torch.Generator().manual_seed(7))
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
        self.rates = [rate.item() for rate in torch.linspace(0, 1, 10)]
        for part in self.recurrent.weight_ih_l0.chunk(4):  # type: ignore[operator]
            nn.init.xavier_uniform_(part)
        self.small = nn.Linear(100, 100).to(torch.bfloat16)
        self.images = nn.Conv2d(32, 64, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


@pytest.mark.parametrize(
    "create",
    [
        Manifold,
        tasks.build("gpt", 0).model,
        tasks.build("resnet50", 0, data="synthetic", size="tiny").model,
        tasks.build("mnist", 0, data="digits").model,
    ],
    ids=["many ways", "gpt", "resnet50", "mnist"],
)
def test_tensors_that_are_made_later_have_the_numbers_of_those_made_at_once(
    create: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(3)
    expected = tensors(create())
    next_number = torch.rand(())
    torch.manual_seed(3)
    model, recording = record(create)
    assert torch.equal(torch.rand(()), next_number), "what is drawn after the model must not change"
    found = tensors(model)
    assert found.keys() == expected.keys()
    for name in sorted(found, reverse=True):  # the order does not matter
        view = recording.view(found[name])
        assert (view is not None) == found[name].is_meta
        assert view or found[name].numel() < MIN_NUMBERS, f"{name} has memory"
        made = found[name] if view is None else recording.make(view)
        assert torch.equal(made, expected[name]), name
        assert (made.stride(), made.dtype) == (expected[name].stride(), expected[name].dtype), name


def initial_model(create: Callable[[], nn.Module], *argv: str) -> tuple[nn.Module, list[str]]:
    """The model as a rank places it that shares it with others, and what was said."""
    said: list[str] = []
    initial = InitialModel(create, parse(list(argv)), True, said.append)
    initial.place(initial.model, CPU)
    return initial.model, said


class KeepsTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(90, 90)
        self.table = torch.rand(90, 90)


def test_a_model_is_placed_with_its_values_and_tied_weights_stay_tied() -> None:
    model, said = initial_model(Manifold)
    torch.manual_seed(0)
    expected = tensors(Manifold())
    assert said == []
    assert all(torch.equal(value, expected[name]) for name, value in tensors(model).items())
    assert model.head.weight is model.embedding.weight  # type: ignore[union-attr]
    kept, _ = initial_model(KeepsTable)
    torch.manual_seed(0)
    fresh = KeepsTable()
    assert isinstance(kept.table, Tensor)
    assert isinstance(fresh.table, Tensor)
    assert torch.equal(kept.table, fresh.table), "it is not a buffer, so nobody else would make it"


def takes_values() -> nn.Module:
    model = nn.Linear(90, 90)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0] * 90] * 90))
    return model


def hides_a_tensor() -> nn.Module:
    hidden = torch.rand(90, 90)
    model = nn.Linear(90, 90)
    model.register_forward_hook(lambda *_: hidden.sum())
    return model


@pytest.mark.parametrize(
    ("create", "reason"),
    [
        (takes_values, r"weights are taken from a tensor of shape \(90, 90\)"),
        (hides_a_tensor, "keeps a tensor elsewhere than in its parameters and buffers"),
    ],
)
def test_a_model_that_cannot_be_recorded_is_built_whole_and_that_is_said_once(
    create: Callable[[], nn.Module], reason: str
) -> None:
    model, said = initial_model(create)
    torch.manual_seed(0)
    expected = tensors(create())
    assert all(torch.equal(value, expected[name]) for name, value in tensors(model).items())
    (line,) = said
    assert line.startswith(
        "every rank builds the whole model in host memory before it keeps its part: "
    )
    assert re.search(reason, line)


def test_a_models_own_mistake_is_its_own_error() -> None:
    def refuses() -> nn.Module:
        raise Refused("no")

    def fails() -> nn.Module:
        raise LookupError("of the model")

    with pytest.raises(Refused, match=r"^no$"):
        initial_model(refuses)
    with pytest.raises(LookupError, match="of the model"):
        initial_model(fails)


def test_given_weights_are_placed_instead(tmp_path: Path) -> None:
    given = {name: value + 1 for name, value in Manifold().state_dict().items()}
    del (
        given["embedding.weight"],
        given["mask"],
    )  # one name of two, and a tensor that keeps the model's own
    torch.save(given, tmp_path / "given.pt")
    model, said = initial_model(
        Manifold, "--weights", str(tmp_path / "given.pt"), "--partial-weights"
    )
    found = model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in given.items())
    assert torch.equal(found["embedding.weight"], given["head.weight"])
    assert torch.equal(found["mask"], Manifold().state_dict()["mask"])
    assert len(said) == 1
