"""A small modern decoder: RMS norm before each part, rotary positions, SwiGLU, causal attention; no biases.

It is one `nn.Sequential`, so that it can be cut into stages; query, key and value are layers of their own, so that
tensor parallelism gives each rank whole heads.

Sources: Zhang and Sennrich, arXiv:1910.07467 (RMS norm); Su et al., arXiv:2104.09864 (rotary positions); Shazeer,
arXiv:2002.05202 (SwiGLU); Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (the start of
the weights). FLOPs: Chowdhery et al., arXiv:2204.02311, appendix B.
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
    """How large the model is."""

    vocabulary: int
    context: int
    """Tokens per sequence."""
    width: int
    layers: int
    heads: int
    tied: bool = False
    """One matrix for embedding and head: fewer parameters, but it cannot be split over ranks."""

    @property
    def hidden(self) -> int:
        """Width inside the feed-forward part: 8/3 of the width costs as much as 4 times without a gate."""
        return math.ceil(8 * self.width / 3 / 64) * 64

    @property
    def flops(self) -> float:
        """Of one sequence, forward and backward: 6 per token and weight that multiplies, and the attention.

        The attention is counted as if it were not causal, as is the custom in published MFU.
        """
        weights = self.layers * (4 * self.width**2 + 3 * self.width * self.hidden) + self.vocabulary * self.width
        return float(self.context * (6 * weights + 12 * self.layers * self.width * self.context))

    @property
    def tensor_limit(self) -> int:
        """All that tensor parallelism shards is a multiple of this."""
        return math.gcd(self.heads, self.context, self.hidden, self.vocabulary)


class Attention(nn.Module):
    """Causal, over all heads that this rank holds: (n, tokens, width) -> the same shape."""

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
    """SwiGLU: (n, tokens, width) -> the same shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """One layer: (n, tokens, width) -> the same shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(shape.width, eps=1e-5), Attention(shape)
        self.feed_norm, self.feed = nn.RMSNorm(shape.width, eps=1e-5), FeedForward(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed(self.feed_norm(x))
        return out


def rotate(x: Tensor) -> Tensor:
    """Turn each pair of features by an angle that grows with the position: (..., tokens, features).

    The angles are computed anew each time, which costs next to nothing: as buffers they would be kept in checkpoints.
    """
    tokens, half = x.shape[-2], x.shape[-1] // 2
    speed = ROTARY_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(tokens, device=x.device, dtype=torch.float32)[:, None] * speed
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


def decoder(shape: Shape) -> nn.Sequential:
    """Tokens (n, tokens) -> logits (n, tokens, vocabulary)."""
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
            # What is added to the residual stream, twice in each layer, is made smaller the more layers there are.
            adds = name.endswith(("attention.out.weight", "feed.down.weight"))
            nn.init.normal_(parameter, std=STANDARD_DEVIATION / (math.sqrt(2 * shape.layers) if adds else 1))
    if shape.tied:
        head.weight = model.get_submodule("embedding").weight  # type: ignore[assignment]
    return model


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    return [module for module in model.modules() if isinstance(module, Block)]


def stages(model: nn.Module, count: int) -> Sequence[nn.Module]:
    """The embedding only looks up, and each matrix costs in proportion to its parameters."""

    def cost(piece: nn.Module) -> float:
        return sum(p.numel() for p in piece.parameters()) if isinstance(piece, (Block, nn.Linear)) else 0

    return split(model, count, cost)


def tensor_plan(model: nn.Module) -> dict[str, Any]:
    """Whole heads and shares of the hidden width on each rank; between them each rank holds a share of the tokens.

    Every parameter is in the plan: an optimizer step cannot mix what is distributed with what is not.
    Source: Korthikanti et al., arXiv:2205.05198 (sequence parallelism).
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
                adds = part in ("out", "down")
                style = styles.RowwiseParallel(output_layouts=Shard(1)) if adds else styles.ColwiseParallel()
                plan[f"{name}.{part}"] = style
    plan["head"] = styles.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    return plan
