"""Small models and tasks as a user writes them, for `--model` and `--task`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from cloudtrain_trainer.tasks import Task
from tests.support import decoder
from tests.support.decoder import Decoder

MEGABYTES_PER_SAMPLE = 4
"""Memory of a forward pass of `Hungry` for a sample."""


def text(seed: int = 0) -> Task:
    """A language model whose layers repeat, with embedding and head of one matrix."""
    return decoder.task(seed)


def padded(seed: int = 0) -> Task:
    """The same with sequences of other lengths, whose padding has the label -100."""
    task = decoder.task(seed)
    return replace(task, train=padded_after(task.train), validation=padded_after(task.validation))


def padded_after(data: TensorDataset) -> TensorDataset:
    """Pad sequences after 2 to 16 tokens; one in seven has no label."""
    tokens, labels = data.tensors
    numbers = torch.arange(len(tokens))
    lengths = torch.where(numbers % 7 == 0, 0, 2 + numbers * 17 % 15)
    padding = torch.arange(labels.shape[1]) >= lengths[:, None]
    return TensorDataset(tokens, labels.masked_fill(padding, -100))


class Adapted(nn.Module):
    """A frozen linear layer and a trained one of low rank (LoRA)."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.lower = nn.Linear(frozen.in_features, 2, bias=False)
        self.upper = nn.Linear(2, frozen.out_features, bias=False)
        nn.init.normal_(self.upper.weight, std=0.1)

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.frozen(values) + self.upper(self.lower(values))
        return out


def adapted_model() -> nn.Module:
    """The language model, frozen and tied, with an adapter in each block."""
    model = Decoder().requires_grad_(False)
    for block in model.blocks:
        block.out = Adapted(block.out)  # type: ignore[arg-type]
    return model


def adapted(seed: int = 0) -> Task:
    """Train the adapters alone."""
    return replace(decoder.task(seed), model=adapted_model)


def other_base() -> nn.Module:
    """The same model with one number of one frozen weight changed."""
    model = adapted_model()
    frozen = [p for p in model.parameters() if not p.requires_grad]
    frozen[-1].flatten()[-1] += 1
    return model


def on_other_base(seed: int = 0) -> Task:
    return replace(decoder.task(seed), model=other_base)


class Hungry(nn.Module):
    """A model of digits that needs memory by the megabyte, which it does not touch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        held = torch.empty(len(images), MEGABYTES_PER_SAMPLE << 20, dtype=torch.uint8)
        logits: Tensor = self.head(images.flatten(1))
        del held

        return logits


class Normed(nn.Module):
    """A model of digits with batch norm and dropout.

    It appends the statistics of batch norm at the first batch of each evaluation to a file of its
    rank.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(16, 10)
        self.was_training = False
        self.evaluations: list[list[Tensor]] = []

    def forward(self, images: Tensor) -> Tensor:
        if self.was_training and not self.training:
            self.evaluations.append([value.clone() for value in self.norm.buffers()])
            file = Path(f"statistics-{os.environ.get('RANK', '0')}.pt")
            torch.save(self.evaluations, file)
        self.was_training = self.training
        logits: Tensor = self.last(self.drop(self.norm(self.first(images.flatten(1))).relu()))

        return logits


def images(seed: int = 0) -> Task:
    """Images of bytes, which become numbers on the device, in front of a convolution."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (64, 1, 10, 10), generator=generator, dtype=torch.uint8)
    labels = torch.arange(64) % 10

    def model() -> nn.Module:
        layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
        return nn.Sequential(*layers)

    return Task(
        model=model,
        train=TensorDataset(pixels, labels),
        channels_last=True,
        on_device=lambda values: values.float() / 255,
    )
