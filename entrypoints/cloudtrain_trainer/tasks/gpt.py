"""A language model over bytes, of Python's own source or of an input; no download.

`--size gpt2-124m` is as large as the smallest GPT-2, for measurements: `--data synthetic` gives it
random tokens of GPT-2's vocabulary, from which nothing can be learned, and `--data tokens` those of
files (data/token_files.py).
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from cloudtrain_trainer.data.token_files import TokenFiles, token_data
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, Task
from cloudtrain_trainer.tasks.decoder import (
    Shape,
    blocks,
    decoder,
    stages,
    tensor_plan,
)

SIZES = {
    "tiny": Shape(vocabulary=256, context=64, width=64, layers=4, heads=4),
    "small": Shape(vocabulary=256, context=256, width=256, layers=6, heads=8),
    # GPT-2 has 50,257 tokens; as a multiple of 128 the head is faster on a GPU.
    "gpt2-124m": Shape(vocabulary=50_304, context=1024, width=768, layers=12, heads=12, tied=True),
}
LEARNING_RATES = {"tiny": 3e-3, "small": 1e-3, "gpt2-124m": 6e-4}
INPUT = "CLOUDTRAIN_INPUT_TEXT"
TOKENS_INPUT = "CLOUDTRAIN_INPUT_TOKENS"
STDLIB_BYTES = 1 << 20
"""Maximum bytes of Python's source."""
MAX_BYTES = 1 << 30
"""Maximum bytes of an input text: every rank holds it in memory."""
SYNTHETIC_TOKENS = 1 << 22
GPT2_TOKENS = 50_257
HELD_OUT = 10
"""The last of this many equal parts of the text is for validation."""


class Text:
    """Tokens (batch, sequence) and the next token of each, both int64, from one long text.

    With a seed, the sequences begin at other offsets in every epoch.
    """

    def __init__(self, tokens: Tensor, context: int, seed: int | None = None) -> None:
        self.tokens = tokens
        self.context = context
        self.seed = seed

    def __len__(self) -> int:
        """Return the number of sequences, one fewer if their beginnings move."""
        return (len(self.tokens) - 1) // self.context - (self.seed is not None)

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        first = torch.tensor(draw.indices) * self.context + self._offset(draw.epoch)
        tokens = self.tokens[first[:, None] + torch.arange(self.context + 1)].long()
        return tokens[:, :-1], tokens[:, 1:]

    def _offset(self, epoch: int) -> int:
        if self.seed is None:
            return 0
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return int(torch.randint(self.context, (), generator=generator))


def read(paths: Iterable[Path], limit: int) -> Tensor:
    """Return the bytes of the files, at most `limit`: (n,), uint8. OSError if one is unreadable."""
    text = bytearray()
    for path in paths:
        with path.open("rb") as content:
            text += content.read(limit - len(text))
        if len(text) >= limit:
            break
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def tokens(data: str, seed: int) -> Tensor:
    """Return all tokens, (n,): random int32, or the bytes (uint8) of a text.

    The text is an input's, or Python's standard library. Raise `Refused` if there is no text, or
    too much of it.
    """
    if data == "synthetic":
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(
            GPT2_TOKENS, (SYNTHETIC_TOKENS,), generator=generator, dtype=torch.int32
        )
    if os.environ.get(INPUT):
        folder = Path(os.environ[INPUT])
        text = read(sorted(path for path in folder.rglob("*") if path.is_file()), MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise Refused(
                f"{folder} has more than {MAX_BYTES >> 20} MiB, which every rank reads: use less"
                " text"
            )
    else:
        folder = Path(sysconfig.get_path("stdlib"))
        text = read(sorted(folder.glob("*.py")), STDLIB_BYTES)
    if not len(text):
        raise Refused(
            f"{folder} has no text to train on: give the job an input called text (${INPUT})"
        )
    return text


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
    train, validation = (
        _from_files(shape, seed) if data == "tokens" else _from_text(data, shape, seed)
    )

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
        unit="sequences",
        tokens=shape.context,
        flops=shape.flops,
        layers=blocks,
        tensor_plan=None if shape.tied else tensor_plan,
        tensor_limit=lambda model: shape.tensor_limit,  # noqa: ARG005
        stages=None if shape.tied else stages,
        max_stages=1 if shape.tied else shape.layers,
    )


def _from_text(data: str, shape: Shape, seed: int) -> tuple[Text, Text]:
    """Return training and validation data of `tokens`. Raise `Refused` if there are too few."""
    text = tokens(data, seed)
    held_out = len(text) // HELD_OUT
    if held_out <= shape.context:
        raise Refused(
            f"{len(text)} bytes of text are too few for sequences of {shape.context}: "
            f"give at least {HELD_OUT * (shape.context + 1)} bytes, or a smaller --context"
        )
    return Text(text[:-held_out], shape.context, seed), Text(text[-held_out:], shape.context)


def _from_files(shape: Shape, seed: int) -> tuple[TokenFiles, TokenFiles]:
    """Return training and validation data of the input tokens. Raise `Refused` without it."""
    if not os.environ.get(TOKENS_INPUT):
        raise Refused(
            f"--data tokens needs an input called tokens (${TOKENS_INPUT}), or use --data text"
        )
    return token_data(
        os.environ[TOKENS_INPUT], shape.context, seed=seed, vocabulary=shape.vocabulary
    )
