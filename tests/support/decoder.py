"""A language model of plain torch and its data, of any size: a model of their own that owners bring
to the trainer.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from cloudtrain_trainer.tasks import Task


class Shape(NamedTuple):
    """Sizes of a model."""

    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int
    tied: bool = True
    """One matrix for embedding and head."""

    @property
    def flops(self) -> float:
        """Return the operations of a sequence, forward and backward: 6 for each weight and token,
        and the products of attention.
        """
        weights = 12 * self.layers * self.width**2 + self.vocabulary * self.width
        attention = 12 * self.layers * self.width * self.context
        return float(self.context * (6 * weights + attention))


SMALL = Shape(vocabulary=64, context=16, width=32, layers=4, heads=4)
GPT2 = Shape(vocabulary=50304, context=1024, width=768, layers=12, heads=12)
"""GPT-2 with 124 million parameters."""


class Block(nn.Module):
    """Attention and a feed-forward network: (batch, tokens, width) -> the same shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.between = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        batch, tokens, width = values.shape
        parts = self.qkv(self.before(values)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = parts.transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        added: Tensor = self.down(F.gelu(self.up(self.between(values))))

        return values + added


class Decoder(nn.Module):
    """Tokens (batch, tokens), int64 -> logits of the next ones (batch, tokens, vocabulary)."""

    def __init__(self, shape: Shape = SMALL) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            values = block(values)
        logits: Tensor = self.head(self.norm(values))

        return logits


def sequences(shape: Shape, count: int, seed: int) -> TensorDataset:
    """Return sequences of tokens, each with its next tokens: every next one is twice the last, or
    one more.
    """
    generator = Random(seed)
    rows = []
    for _ in range(count):  # in Python, since each operation on fake tensors takes a millisecond
        row = [generator.randrange(shape.vocabulary)]
        for step in generator.choices((0, 1), k=shape.context):
            following = row[-1] + 1 if step else 2 * row[-1]
            row.append(following % shape.vocabulary)
        rows.append(row)

    tokens = torch.tensor(rows)
    return TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def task(seed: int = 0, shape: Shape = SMALL, samples: int = 320) -> Task:
    """Return a task that the trainer completes: the loss is its default for classes."""
    return Task(
        model=partial(Decoder, shape),
        train=sequences(shape, samples, seed),
        validation=sequences(shape, 64, seed + 1),
        lr=3e-3,
        unit="sequences",
        tokens=shape.context,
        flops=shape.flops,
    )


def gpt2(seed: int = 0) -> Task:
    """Return the task of a model of the size of GPT-2."""
    return task(seed, GPT2)
