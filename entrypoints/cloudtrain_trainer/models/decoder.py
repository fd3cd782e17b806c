"""A small modern decoder: RMS norm before each part, rotary positions, SwiGLU, causal attention; no biases.

It is one `nn.Sequential`, so that it can be split into stages. Query, key and value are separate layers, so that tensor
parallelism gives each rank complete heads.

Sources: Zhang and Sennrich, arXiv:1910.07467 (RMS norm); Su et al., arXiv:2104.09864 (rotary positions); Shazeer,
arXiv:2002.05202 (SwiGLU); Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (initialisation).
FLOPs: Chowdhery et al., arXiv:2204.02311, appendix B.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_trainer.models.partition import split

ROTARY_BASE = 10_000.0
STANDARD_DEVIATION = 0.02


@dataclass(frozen=True)
class Shape:
    """The size of the model."""

    vocabulary: int
    """Number of different tokens."""
    context: int
    """Tokens per sequence."""
    width: int
    layers: int
    heads: int
    tied: bool = False
    """Whether embedding and head share one matrix: fewer parameters, but the model cannot be split over ranks."""

    @property
    def hidden(self) -> int:
        """Width of the feed-forward part: 8/3 of the model's width costs as much as 4 times without a gate."""
        return math.ceil(8 * self.width / 3 / 64) * 64

    @property
    def flops(self) -> float:
        """FLOPs of one sequence, forward and backward: 6 per token and weight of a matrix, plus the attention.

        The attention counts as if it were not causal, as usual in published MFU.
        """
        weights = self.layers * (4 * self.width**2 + 3 * self.width * self.hidden) + self.vocabulary * self.width
        return float(self.context * (6 * weights + 12 * self.layers * self.width * self.context))

    @property
    def tensor_limit(self) -> int:
        """The count of tensor-parallel ranks must divide this, the greatest common divisor of all that is split."""
        return math.gcd(self.heads, self.context, self.hidden, self.vocabulary)


class Attention(nn.Module):
    """Causal attention over the heads of this rank: (batch, sequence, width) -> the same shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.query, self.key, self.value, self.out = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """SwiGLU: (batch, sequence, width) -> the same shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """One layer: (batch, sequence, width) -> the same shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(shape.width, eps=1e-5), Attention(shape)
        self.feed_norm, self.feed = nn.RMSNorm(shape.width, eps=1e-5), FeedForward(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed(self.feed_norm(x))
        return out


def rotate(x: Tensor) -> Tensor:
    """Rotary position embedding: rotates pairs of features by an angle proportional to the position.

    `x`: (..., sequence, features), any floating-point dtype; the result has the same shape and dtype.

    The angles are computed each time, at almost no cost; as buffers they would be part of checkpoints.
    """
    tokens, half = x.shape[-2], x.shape[-1] // 2
    speed = ROTARY_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(tokens, device=x.device, dtype=torch.float32)[:, None] * speed
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


def decoder(shape: Shape) -> nn.Sequential:
    """A model of that shape: tokens (batch, sequence), int64 -> logits (batch, sequence, vocabulary)."""
    head = nn.Linear(shape.width, shape.vocabulary, bias=False)
    model = nn.Sequential(
        OrderedDict(
            embedding=nn.Embedding(shape.vocabulary, shape.width),
            layers=nn.Sequential(*(Block(shape) for _ in range(shape.layers))),
            norm=nn.RMSNorm(shape.width, eps=1e-5),
            head=head,
        )
    )
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            # Each layer adds twice to the residual stream: those weights are smaller, the more layers there are.
            is_residual = name.endswith(("attention.out.weight", "feed.down.weight"))
            scale = math.sqrt(2 * shape.layers) if is_residual else 1
            nn.init.normal_(parameter, std=STANDARD_DEVIATION / scale)
    if shape.tied:
        head.weight = model.get_submodule("embedding").weight  # type: ignore[assignment]
    return model


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """The list of the decoder's layers, in order."""
    return [module for module in model.modules() if isinstance(module, Block)]


def stages(model: nn.Module, count: int) -> Sequence[nn.Module]:
    """`count` stages of about equal cost: a matrix costs its parameter count, the embedding nothing.

    ValueError if there are fewer layers.
    """

    def cost(piece: nn.Module) -> float:
        return sum(p.numel() for p in piece.parameters()) if isinstance(piece, (Block, nn.Linear)) else 0

    return split(model, count, cost)


def tensor_plan(model: nn.Module) -> dict[str, Any]:
    """Each rank has complete heads and a share of the hidden width; between them each rank has a share of the tokens.

    Every parameter is in the plan, since an optimizer step cannot mix distributed with plain tensors. Source:
    Korthikanti et al., arXiv:2205.05198 (sequence parallelism).
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as styles

    plan: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            plan[name] = styles.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        elif isinstance(module, nn.RMSNorm):
            plan[name] = styles.SequenceParallel()
        elif isinstance(module, (Attention, FeedForward)):
            plan[name] = styles.PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            for part, _ in module.named_children():
                is_residual = part in ("out", "down")
                style = styles.RowwiseParallel(output_layouts=Shard(1)) if is_residual else styles.ColwiseParallel()
                plan[f"{name}.{part}"] = style
    plan["head"] = styles.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    return plan
