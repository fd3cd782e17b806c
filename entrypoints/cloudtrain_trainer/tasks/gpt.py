"""A language model over bytes, of Python's own source or of an input; no download.

`--size gpt2-124m` is as large as the smallest GPT-2, for measurements: `--data synthetic` gives it
random tokens of GPT-2's vocabulary, from which nothing can be learned, and `--data tokens` those of
files (data/token_files.py).
"""

from __future__ import annotations

import os
import sysconfig
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from cloudtrain_trainer.data.token_files import TokenFiles, split, token_data
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.tasks.decoder import (
    Shape,
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
    """Return training and validation data: bytes of text, tokens of an input, or random tokens.

    Raise `Refused` without the input, or if it has too little for one sequence.
    """
    if data == "text":
        return split(text_files(), shape.context, seed=seed, dtype="uint8")
    if data == "synthetic":
        tokens = np.random.default_rng(seed).integers(GPT2_TOKENS, size=SYNTHETIC_TOKENS)
        return split([tokens.astype(np.uint16)], shape.context, seed=seed)
    if not os.environ.get(TOKENS_INPUT):
        raise Refused(
            f"--data tokens needs an input called tokens (${TOKENS_INPUT}), or use --data text"
        )
    return token_data(
        os.environ[TOKENS_INPUT], shape.context, seed=seed, vocabulary=shape.vocabulary
    )
