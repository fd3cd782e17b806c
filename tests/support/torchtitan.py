"""A step of a Llama model as torchtitan trains one, written by hand from its published structure.

What decides about kernels there: query, key, value, gate and up are matrices of their own; rotary
positions are complex numbers in float32; the head is not tied; the loss is taken of float32 logits;
autocast in bf16 on one GPU; all gradients are clipped by their norm; one fused AdamW for all
parameters. Where it compiles, each layer is a graph, and so is the loss. Sizes are those of the
model that it is compared with; its own head makes it 38 million parameters more.

Source: github.com/pytorch/torchtitan, models/llama3 and train.py of August 2026, as described; no
code is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.gpt2 import CONTEXT, HEADS, VOCABULARY, WIDTH

HIDDEN = 2048
"""Two thirds of four times the width, as Llama has it."""


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Queries or keys (batch, sequence, heads, features) turned by complex numbers (sequence,
    features / 2).
    """
    numbers = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(numbers * turns[None, :, None]).flatten(-2).type_as(x)


class Attention(nn.Module):
    """(batch, sequence, width) -> the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (HEADS, -1)) for part in (self.query, self.key, self.value)
        )
        query = turned(query, turns)
        key = turned(key, turns)
        heads = [part.transpose(1, 2) for part in (query, key, value)]
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).contiguous().flatten(2))
        return out


class Layer(nn.Module):
    """(batch, sequence, width) -> the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_feed = (nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.attention = Attention()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), turns)
        attended = self.before_feed(x)
        out: Tensor = x + self.down(F.silu(self.gate(attended)) * self.up(attended))
        return out


class Llama(nn.Module):
    """Tokens (batch, sequence) -> logits (batch, sequence, vocabulary)."""

    turns: Tensor

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.last = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        shape = CONTEXT, WIDTH // HEADS // 2
        self.register_buffer("turns", torch.ones(shape, dtype=torch.complex64), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.turns)
        out: Tensor = self.head(self.last(x))
        return out


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all tokens, shape ()."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def compiled(model: Llama, backend: Callable[..., Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """Forward pass and loss with each layer compiled, and the loss."""
    for layer in model.layers:
        layer.compile(backend=backend)
    return partial(_forward, model, torch.compile(loss, backend=backend))


def forward(model: Llama) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the output of the plain version."""
    return partial(_forward, model, loss)


def _forward(
    model: Llama, loss: Callable[[Tensor, Tensor], Tensor], tokens: Tensor, targets: Tensor
) -> Tensor:
    return loss(model(tokens), targets)


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """All parameters in one group."""
    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
