"""A language model over bytes, of Python's own source or of an input; no download.

`--size gpt2-124m` is as large as the smallest GPT-2, for measurements: `--data synthetic` gives it
random tokens of GPT-2's vocabulary, from which nothing can be learned.

The model is a small modern decoder: RMS norm, rotary positions, SwiGLU, causal attention, no biases.
It is one `nn.Sequential`, so that it can be split into stages. Query, key and value are one matrix
whose rows are ordered by head, and gate and up one whose rows are ordered by group, so that tensor
parallelism gives each rank complete heads and pairs. Under autocast in bf16 all activations are
bf16, as under FSDP.

Sources: Zhang and Sennrich, arXiv:1910.07467 (RMS norm); Su et al., arXiv:2104.09864 (rotary
positions); Shazeer, arXiv:2002.05202 (SwiGLU); Radford et al., "Language Models are Unsupervised
Multitask Learners", 2019 (initialisation). FLOPs: Chowdhery et al., arXiv:2204.02311, appendix B.
"""

from __future__ import annotations

import math
import os
import sysconfig
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_trainer import partition
from cloudtrain_trainer.data.token_files import TokenFiles, split
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task

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
    """True if embedding and head share one matrix: the model cannot be split over ranks."""

    @property
    def hidden(self) -> int:
        """Width of the feed-forward part: 8/3 of the model's costs as much as 4 without a gate."""
        return math.ceil(8 * self.width / 3 / 64) * 64

    @property
    def flops(self) -> float:
        """FLOPs of a sequence, forward and backward: 6 per token and weight, plus the attention.

        The attention counts as if it were not causal, as usual in published MFU.
        """
        weights = (
            self.layers * (4 * self.width**2 + 3 * self.width * self.hidden)
            + self.vocabulary * self.width
        )
        return float(self.context * (6 * weights + 12 * self.layers * self.width * self.context))

    @property
    def tensor_limit(self) -> int:
        """The number of tensor-parallel ranks must divide this.

        It is the greatest common divisor of all dimensions that are split.
        """
        return math.gcd(self.heads, self.context, self.hidden, self.vocabulary)


class Norm(nn.RMSNorm):
    """RMS norm in the dtype of its input; sums are in float32 inside the kernel.

    Autocast would convert to float32.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype == torch.float32:
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Embedding(nn.Embedding):
    """Tokens (batch, sequence) -> (batch, sequence, width), in bf16 under autocast in bf16."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = super().forward(tokens)
        device = tokens.device.type
        has_autocast = torch.amp.is_autocast_available(device)  # not so of the meta device
        if (
            has_autocast
            and torch.is_autocast_enabled(device)
            and torch.get_autocast_dtype(device) == torch.bfloat16
        ):
            return x.to(torch.bfloat16)
        return x


class Rotary:
    """Rotary position embedding: rotate pairs of features by an angle that grows with the position.

    The table of angles is made once per shape, and shared by all layers. It is not a buffer, which
    DDP would broadcast in each step and checkpoints would contain, and which would become bf16 with
    the model: angles and products are float32.
    """

    def __init__(self) -> None:
        self._tables: dict[tuple[int, int, torch.device], Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """Return `x` rotated: (batch, sequence, ..., features), in its shape and dtype."""
        half = x.shape[-1] // 2
        table = self._table(x).view(x.shape[1], *(1 for _ in x.shape[3:]), 2, 2, half)
        rotated: Tensor = (x.view(*x.shape[:-1], 1, 2, half) * table).sum(-2)
        return rotated.to(x.dtype).flatten(-2)

    def _table(self, x: Tensor) -> Tensor:
        key = x.shape[1], x.shape[-1], x.device
        if torch.compiler.is_compiling():  # fused with what uses it
            return rotations(*key)
        if key not in self._tables:
            with torch.no_grad():
                self._tables[key] = rotations(*key)
        return self._tables[key]


def rotations(tokens: int, features: int, device: torch.device) -> Tensor:
    """Return the matrix of each pair at each position: (tokens, 2, 2, features / 2), float32.

    The second dimension belongs to the result, the third to the input.
    """
    half = features // 2
    speed = ROTARY_BASE ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angle = torch.arange(tokens, device=device, dtype=torch.float32)[:, None] * speed
    cos = angle.cos()
    sin = angle.sin()
    return torch.stack((cos, -sin, sin, cos), dim=1).view(tokens, 2, 2, half)


class Attention(nn.Module):
    """Causal attention over the heads of this rank: (batch, sequence, width) -> the same shape."""

    def __init__(self, shape: Shape, rotary: Rotary) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.rotary = rotary
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        """Its rows are (heads, 3, head_width): query, key and value of a head are neighbours."""
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query_key, value = self.qkv(x).unflatten(-1, (-1, 3, self.head_width)).split((2, 1), dim=-2)
        query, key = self.rotary(query_key).transpose(1, 2).unbind(-2)
        value = value.squeeze(-2).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """SwiGLU: (batch, sequence, width) -> the same shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.group = shape.hidden // shape.tensor_limit
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        """Its rows are (tensor_limit, 2, group): gate and up of a group are neighbours."""
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).unflatten(-1, (-1, 2, self.group)).unbind(-2)
        out: Tensor = self.down((F.silu(gate) * up).flatten(-2))
        return out


class Block(nn.Module):
    """One layer: (batch, sequence, width) -> the same shape."""

    def __init__(self, shape: Shape, rotary: Rotary) -> None:
        super().__init__()
        self.attention_norm = Norm(shape.width, eps=1e-5)
        self.attention = Attention(shape, rotary)
        self.feed_norm = Norm(shape.width, eps=1e-5)
        self.feed = FeedForward(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed(self.feed_norm(x))
        return out


def decoder(shape: Shape) -> nn.Sequential:
    """Return a model: tokens (batch, sequence), int64 -> logits (batch, sequence, vocabulary)."""
    head = nn.Linear(shape.width, shape.vocabulary, bias=False)
    rotary = Rotary()
    model = nn.Sequential(
        OrderedDict(
            embedding=Embedding(shape.vocabulary, shape.width),
            layers=nn.Sequential(*(Block(shape, rotary) for _ in range(shape.layers))),
            norm=Norm(shape.width, eps=1e-5),
            head=head,
        )
    )
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            # Each layer adds twice to the residual stream: those weights are smaller, the more
            # layers there are.
            is_residual = name.endswith(("attention.out.weight", "feed.down.weight"))
            scale = math.sqrt(2 * shape.layers) if is_residual else 1
            nn.init.normal_(parameter, std=STANDARD_DEVIATION / scale)
    if shape.tied:
        head.weight = model.get_submodule("embedding").weight  # type: ignore[assignment]
    return model


def stages(model: nn.Module, count: int) -> Sequence[nn.Module]:
    """Return `count` stages of about equal cost: a matrix costs its number of parameters.

    The embedding costs nothing. ValueError if there are fewer layers.
    """

    def cost(piece: nn.Module) -> float:
        return (
            sum(p.numel() for p in piece.parameters())
            if isinstance(piece, (Block, nn.Linear))
            else 0
        )

    return partition.split(model, count, cost)


def tensor_plan(model: nn.Module) -> dict[str, Any]:
    """Return a plan: each rank has complete heads and a share of the hidden width.

    Between them each rank has a share of the tokens. Every parameter is in the plan, since an
    optimizer step cannot mix distributed with plain tensors. Source: Korthikanti et al.,
    arXiv:2205.05198 (sequence parallelism).
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
            plan[name] = styles.PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            )
            for part, _ in module.named_children():
                is_residual = part in ("out", "down")
                style = (
                    styles.RowwiseParallel(output_layouts=Shard(1))
                    if is_residual
                    else styles.ColwiseParallel()
                )
                plan[f"{name}.{part}"] = style
    # Logits stay split over the vocabulary: they would be the largest activation.
    plan["head"] = styles.ColwiseParallel(
        input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
    )
    return plan


SIZES = {
    "tiny": Shape(vocabulary=256, context=64, width=64, layers=4, heads=4),
    "small": Shape(vocabulary=256, context=256, width=256, layers=6, heads=8),
    # GPT-2 has 50,257 tokens; as a multiple of 128 the head is faster on a GPU.
    "gpt2-124m": Shape(vocabulary=50_304, context=1024, width=768, layers=12, heads=12, tied=True),
}
LEARNING_RATES = {"tiny": 3e-3, "small": 1e-3, "gpt2-124m": 6e-4}
INPUT = "CLOUDTRAIN_INPUT_TEXT"
STDLIB_FILES = 40
"""Files of Python's source: about 1 MiB."""
SYNTHETIC_TOKENS = 1 << 22
GPT2_TOKENS = 50_257


def text_files() -> list[Path]:
    """Return the files of the input text, or else some of Python's source.

    Raise `Refused` if there are none.
    """
    if not os.environ.get(INPUT):
        sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        return [path for path in sources if path.stat().st_size][:STDLIB_FILES]
    folder = Path(os.environ[INPUT])
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    if not files:
        raise Refused(
            f"{folder} has no text to train on: give the job an input called text (${INPUT})"
        )
    return sorted(files)


def loss(logits: Tensor, next_tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy over tokens in nats, shape ().

    `logits`: (batch, sequence, vocabulary). `next_tokens`: (batch, sequence), int64.
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), next_tokens.flatten())


def correct(logits: Tensor, next_tokens: Tensor) -> Tensor:
    """Return the sum over the sequences of the fraction of correct tokens, shape ().

    `logits`: (batch, sequence, vocabulary). `next_tokens`: (batch, sequence).
    """
    return (logits.argmax(-1) == next_tokens).float().mean(1).sum()


def build(
    seed: int,
    size: str = "tiny",
    context: int | None = None,
    data: str = "text",
    tied: bool | None = None,
) -> Task:
    """Return the task. `context`: tokens per sequence; None: the size's.

    Raise `Refused` if the text is too short for it.
    """
    shape = SIZES[size]
    shape = replace(
        shape, context=context or shape.context, tied=shape.tied if tied is None else tied
    )

    if data != "text":
        shape = replace(shape, vocabulary=SIZES["gpt2-124m"].vocabulary)
    train, validation = _data(data, shape, seed)

    return Task(
        model=partial(decoder, shape),
        loss=loss,
        correct=correct,
        train=train,
        validation=validation,
        epochs=1,
        batch_size=32,
        lr=LEARNING_RATES[size],
        weight_decay=0.1,
        workers=0,
        unit="sequences",
        tokens=shape.context,
        flops=shape.flops,
        tensor_plan=None if shape.tied else tensor_plan,
        tensor_limit=shape.tensor_limit,
        stages=None if shape.tied else stages,
        max_stages=1 if shape.tied else shape.layers,
    )


def _data(data: str, shape: Shape, seed: int) -> tuple[TokenFiles, TokenFiles]:
    """Return training and validation data: bytes of text or random tokens.

    Raise `Refused` if the text is too short for one sequence.
    """
    if data == "text":
        return split(text_files(), shape.context, seed=seed)

    tokens = np.random.default_rng(seed).integers(GPT2_TOKENS, size=SYNTHETIC_TOKENS)
    return split([tokens.astype(np.uint16)], shape.context, seed=seed)
