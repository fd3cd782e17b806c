"""Optional parts of a user's task: the call of its model, its loss and metrics, and a custom step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_trainer.own_losses import default_loss, default_measures, own_weight
from cloudtrain_trainer.own_task import complete
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, Task
from cloudtrain_trainer.training.evaluation import evaluate
from cloudtrain_trainer.training.loop import Loop

INPUTS = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(20) % 3


def net() -> nn.Module:
    return nn.Linear(4, 3)


class Named(nn.Module):
    """Takes its inputs by name, and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, measures: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        return {"logits": scale * self.layer(measures)}


class WithLoss(Named):
    """Returns its own loss, as Hugging Face's models do."""

    def forward(self, measures: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        logits = self.layer(measures)
        return SimpleNamespace(loss=F.cross_entropy(logits, labels), logits=logits)


PAIRS = [(INPUTS[i], int(CLASSES[i])) for i in range(20)]
DICTS = [
    {"measures": INPUTS[i].tolist(), "labels": int(CLASSES[i]), "text": "kept out"}
    for i in range(20)
]


def first_loss(task: Task) -> float:
    """Return the loss over all samples, with the task's model."""
    inputs, targets = task.train[Draw(0, list(range(20)))]
    torch.manual_seed(0)
    return task.loss(task.call(task.model(), inputs), inputs if targets is None else targets).item()


@pytest.mark.parametrize(
    "task",
    [
        Task(model=net, train=PAIRS),
        Task(model=net, train=PAIRS, loss=F.cross_entropy),
        Task(model=Named, train=DICTS),
        Task(model=Named, train=DICTS, loss=lambda outputs, batch: F.cross_entropy(outputs["logits"], batch["labels"])),
        Task(model=WithLoss, train=DICTS),
        Task(model=Named, train=[({"measures": inputs}, label) for inputs, label in PAIRS]),
        Task(model=net, train=[(inputs.tolist(), label) for inputs, label in PAIRS]),
        Task(model=Named, train=[((inputs,), label) for inputs, label in PAIRS]),
        Task(model=net, train=PAIRS, step=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])),
        Task(model=net, train=PAIRS, step=lambda model, batch: {"loss": F.cross_entropy(model(batch[0]), batch[1])}),
        Task(model=net, train=DICTS, collate=lambda batch: (INPUTS[: len(batch)], CLASSES[: len(batch)])),
    ],
    ids=["pairs", "own loss", "dicts", "dicts, own loss", "model's loss", "dict inputs", "lists", "tuple", "step",
         "step with dict", "collate"],
)  # fmt: skip
def test_a_batch_of_any_form_has_the_same_loss(task: Task) -> None:
    torch.manual_seed(0)
    expected = F.cross_entropy(net()(INPUTS), CLASSES).item()
    assert first_loss(complete(task, 0, "task")) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("outputs", "targets", "expected"),
    [
        ((6, 5), (6,), "classes last"),
        ((6, 7, 5), (6, 7), "classes last"),
        ((6, 5, 4, 3), (6, 4, 3), "classes second"),
    ],
    ids=["classes", "tokens", "pixels"],
)
def test_whole_numbers_are_classes(
    outputs: tuple[int, ...], targets: tuple[int, ...], expected: str
) -> None:
    logits = torch.randn(outputs)
    classes = torch.randint(0, 5, targets)
    moved = logits if expected == "classes second" else logits.movedim(-1, 1)
    assert default_loss(logits, classes) == F.cross_entropy(moved, classes)


def test_other_numbers_are_values_and_are_not_compared_with_each_other() -> None:
    outputs = torch.randn(6, 1)
    targets = torch.randn(6)
    assert default_loss(outputs, targets) == F.mse_loss(outputs[:, 0], targets)


def everything(outputs: Any, targets: Any = None) -> Any:
    return outputs if isinstance(outputs, Tensor) else None


def per_sample(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def test_mistakes_of_a_loss_a_metric_and_a_step_are_told_with_their_place() -> None:
    task = complete(
        Task(model=net, train=PAIRS, loss=per_sample, metrics={"wrong": everything}), 0, "task"
    )
    with pytest.raises(
        Refused,
        match=r"test_own_tasks.py:\d+: the loss is a tensor of shape \(20,\): it must be the mean",
    ):
        first_loss(task)
    task = replace(task, weight=own_weight(everything))
    assert task.weight is not None
    with pytest.raises(
        Refused, match=r"test_own_tasks.py:\d+: the weight is a tensor of .* of 0 or"
    ):
        task.weight(INPUTS)
    assert task.measures is not None
    with pytest.raises(
        Refused,
        match=r"test_own_tasks.py:\d+: the metric wrong returned a tensor of shape \(20, 4\)",
    ):
        task.measures(INPUTS, CLASSES)
    task = complete(Task(model=net, train=PAIRS, step=everything), 0, "task")
    with pytest.raises(Refused, match=r"test_own_tasks.py:\d+: the step returned nothing"):
        first_loss(task)
    task = complete(Task(model=Named, train=[{"pixels": 1.0, "labels": 1}]), 0, "task")
    with pytest.raises(
        Refused,
        match=r"test_own_tasks.py:\d+: forward needs 'measures', and the batch has 'pixels'",
    ):
        task.call(task.model(), task.train[Draw(0, [0])][0])


class Tagger(nn.Module):
    """Tags each of three words; it returns its own loss, of the words without the label -100."""

    loss_type = "ForTokenClassification"
    first = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, words: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layer(words)[:, : 3 - self.first].flatten(0, 1)
        return {"loss": F.cross_entropy(logits, labels[:, self.first :].flatten())}


class CausalTagger(Tagger):
    """Predicts the label of the next word, as transformers' models for causal text do."""

    loss_type = "ForCausalLM"
    first = 1


WORDS = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(1))
TAGS = torch.tensor([[0, 1, 2], [1, -100, -100], [-100, -100, -100], [2, 0, -100]])
SENTENCES = [{"words": words, "labels": tags} for words, tags in zip(WORDS, TAGS, strict=True)]


@pytest.mark.parametrize("kind", [Tagger, CausalTagger])
@pytest.mark.parametrize("own", [False, True])
def test_padding_counts_neither_in_gradients_nor_in_losses(
    kind: type[Tagger], own: bool, make_loop: Callable[..., Loop]
) -> None:
    parts: dict[str, Any] = {}
    if own:
        parts["step"] = lambda model, batch: model(**batch)
        parts["weight"] = lambda batch: int((batch["labels"][:, kind.first :] != -100).sum())
    task = complete(Task(model=kind, train=SENTENCES, validation=[*SENTENCES], **parts), 0, "task")
    flags = ["--batch-size", "4", "--accumulate", "4", "--lr", "1e-9", "--min-lr", "1e-9"]
    loop = make_loop(*flags, task=task)
    whole = kind()
    whole.load_state_dict(loop.step.model.state_dict())
    expected = whole(WORDS, TAGS)["loss"]
    expected.backward()
    gradients: list[Tensor | None] = []
    loop.step.optimizer.register_step_pre_hook(
        lambda *_: gradients.extend(p.grad for p in loop.step.model.parameters())
    )
    loop.step.train_step(loop.batches.load(0, 0), 0, 1)
    for mine, parameter in zip(gradients, whole.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)
    total, weight = loop.step.loss.state()
    assert total / weight == pytest.approx(expected.item())
    values = evaluate(loop.step, 1, 0, lambda: False)
    assert values is not None
    assert values["val_loss"] == pytest.approx(expected.item())
    assert not loop.step.finite_watch.poll()


def test_accuracy_is_measured_where_targets_are_classes() -> None:
    assert default_measures(torch.eye(3), torch.tensor([0, 1, 0]))["accuracy"] == 2
    assert default_measures(torch.randn(3), torch.randn(3)) == {}
    assert (
        default_measures({"logits": torch.eye(3)}, {"labels": torch.tensor([0, 1, 2])})["accuracy"]
        == 3
    )


def error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Per sample."""
    return (outputs.argmax(1) != targets).float()


@pytest.mark.parametrize(
    ("task", "names"),
    [
        (Task(model=net, train=PAIRS, validation=PAIRS, batch_size=8), {"val_accuracy"}),
        (Task(model=Named, train=DICTS, validation=DICTS, batch_size=8), {"val_accuracy"}),
        (
            Task(model=net, train=PAIRS, validation=PAIRS, batch_size=8,
                 metrics={"error": error, "worst": lambda o, t: error(o, t).max()}),
            {"val_error", "val_worst"},
        ),
        (
            Task(model=net, train=PAIRS, validation=PAIRS, batch_size=8,
                 step=lambda m, b: {"loss": F.cross_entropy(m(b[0]), b[1]), "error": error(m(b[0]), b[1])}),
            {"val_error"},
        ),
    ],
    ids=["pairs", "dicts", "own metrics", "step"],
)  # fmt: skip
def test_the_loop_trains_it_and_reports_its_metrics(
    make_loop: Callable[..., Loop], task: Task, names: set[str]
) -> None:
    loop = make_loop("--epochs", "2", task=complete(task, 0, "task"))
    assert loop.run() == "succeeded"
    assert {name for name in loop.metrics if name.startswith("val_")} == {"val_loss", *names}
    model = loop.step.model.eval()
    width = CLASSES
    with torch.no_grad():
        predicted = model(INPUTS)
    outputs = predicted["logits"] if isinstance(predicted, dict) else predicted
    share = float(error(outputs, width).mean())
    assert loop.metrics.get(
        "val_error", 1 - loop.metrics.get("val_accuracy", 0.0)
    ) == pytest.approx(share)


def test_without_validation_data_nothing_is_evaluated(make_loop: Callable[..., Loop]) -> None:
    task = complete(Task(model=net, train=PAIRS, batch_size=8), 0, "task")
    loop = make_loop("--epochs", "2", task=task)
    assert loop.run() == "succeeded"
    assert loop.metrics.keys() == {"loss"}
    with pytest.raises(Refused, match="needs validation data"):
        make_loop("--patience", "1", task=task)
