"""The trainer's options and the folders that it writes to. Standard library only."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cloudtrain_trainer.rules import PROGRAMS

_N = TypeVar("_N", int, float)
SECONDS_PER_UNIT = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Options:
    """The decoded command line. None means the task's own default."""

    task: str
    """digits, or `package.module:factory` of a whole task; "model" for `--model` alone."""
    model: str | None
    """`package.module:factory` of a user's model or whole task; None: the task's own model."""
    data: str | None
    """`package.module:factory` of a user's data; None: the task's own data."""
    strategy: str
    backend: str
    """auto, nccl or gloo; auto is nccl on GPUs and gloo on CPUs."""
    timeout: float | None
    """Seconds for a collective in training; None: `ranks.TRAINING_SECONDS` on GPUs.

    On CPUs None is `start_timeout`.
    """
    start_timeout: float
    """The same until the first step is done."""
    network_check: bool
    """True to measure the network between GPUs of several nodes before training."""
    epochs: int | None
    batch_size: int | None
    """Samples per optimizer step over all ranks and all accumulation steps."""
    accumulate: int
    """Gradient accumulation steps per optimizer step."""
    optimizer: str
    """adamw, sgd, or `package.module:factory`."""
    lr: float | None
    """The highest learning rate of the schedule."""
    lr_schedule: str
    """cosine or constant."""
    min_lr: float
    """The learning rate at the end of the cosine."""
    betas: tuple[float, float] | None
    """AdamW's decay rates; None: torch's."""
    warm_up: float
    """Share of all steps during which the learning rate rises, 0 to 1."""
    weight_decay: float | None
    ema: float | None
    """Decay of the moving average of the weights; None: no average."""
    clip_norm: float | None
    """Largest norm of the gradients; None: no clipping."""
    seed: int
    deterministic: bool
    """True if GPUs compute with deterministic algorithms only, as CPUs always do."""
    amp: str
    """auto, no, bf16 or fp16."""
    compile: str
    """auto, yes or no."""
    recompute: str
    """none or blocks: layers whose activations are computed again in the backward pass."""
    workers: int | None
    """Data loader processes per rank."""
    probe_memory: str
    """auto, yes or no: look for the largest micro-batch that fits before training."""
    max_steps: int | None
    eval_every: int
    """Epochs between evaluations."""
    eval_every_steps: int | None
    """Steps between further evaluations within an epoch."""
    eval_only: bool
    """True to evaluate the newest checkpoint instead of training."""
    patience: int | None
    """Evaluations without a lower val_loss after which training ends."""
    checkpoint_every: float
    """Seconds between checkpoints."""
    checkpoint_every_steps: int | None
    """Steps between checkpoints, besides `checkpoint_every`."""
    keep: int
    """Number of checkpoints to keep."""
    save_frozen: str
    """auto, yes or no: keep frozen weights in checkpoints and in the model file.

    auto: unless they are more than half of the parameters.
    """
    mlflow_model: bool
    """True to make the model's folder a model of MLflow, too."""
    resume: bool


@dataclass(frozen=True)
class Folders:
    """Folders for results. In a job they are kept after it ends."""

    model: Path
    output: Path
    checkpoints: Path

    @classmethod
    def from_environment(cls) -> Folders:
        """Return $CLOUDTRAIN_{MODEL,OUTPUT,CHECKPOINT}_DIR, else ./cloudtrain-output.

        The folders may not exist.
        """
        base = Path("cloudtrain-output")
        return cls(
            model=Path(os.environ.get("CLOUDTRAIN_MODEL_DIR") or base / "model"),
            output=Path(os.environ.get("CLOUDTRAIN_OUTPUT_DIR") or base / "output"),
            checkpoints=Path(os.environ.get("CLOUDTRAIN_CHECKPOINT_DIR") or base / "checkpoints"),
        )


def still_built_in(text: str) -> str:
    """Return the name of a strategy or task, unless it became a separate program."""
    if text in PROGRAMS:
        raise argparse.ArgumentTypeError(
            f"{text} is no longer part of the trainer: examples/{PROGRAMS[text]} shows it as a"
            " program of its own"
        )
    return text


def factory(text: str) -> str:
    """Return a `package.module:factory`."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", text):
        raise argparse.ArgumentTypeError(f"expected package.module:factory, got {text!r}")
    return text


def name_or_factory(names: Iterable[str]) -> Callable[[str], str]:
    """Return a reader of one of the names, or of `module:factory`."""

    def read(text: str) -> str:
        if text in names or ":" in text:
            if text in names:
                return text

            return factory(text)

        still_built_in(text)
        choices = ", ".join(map(repr, sorted(names)))
        raise argparse.ArgumentTypeError(
            f"invalid choice: {text!r} (choose from {choices}), or name your own: module:factory"
        )

    return read


def _reader(
    kind: Callable[[str], _N], expected: str, fits: Callable[[_N], bool]
) -> Callable[[str], _N]:
    """Return a reader of numbers that fit."""

    def read(text: str) -> _N:
        with suppress(ValueError):
            value = kind(text)
            if fits(value):
                return value

        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")

    return read


non_negative_int = _reader(int, "a whole number of 0 or more", lambda n: 0 <= n < 2**31)
positive_int = _reader(int, "a whole number of 1 or more", lambda n: n >= 1)
positive = _reader(float, "a number greater than 0", lambda x: 0 < x < math.inf)
not_negative = _reader(float, "a number of 0 or more", lambda x: 0 <= x < math.inf)
share = _reader(float, "a number from 0 to 1", lambda x: 0 <= x <= 1)
decay = _reader(float, "a number between 0 and 1", lambda x: 0 < x < 1)


def betas(text: str) -> tuple[float, float]:
    """Read two numbers of at least 0 and less than 1, with a comma between them."""
    first, _, second = text.partition(",")
    expected = "two numbers of at least 0 and less than 1, such as 0.9,0.95"
    read = _reader(float, expected, lambda x: 0 <= x < 1)
    return read(first), read(second)


def seconds(text: str) -> float:
    """Return the seconds of `600` or `10 min`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if not match or match[2] not in SECONDS_PER_UNIT or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a time such as 600 or '10 min', got {text!r}")

    return float(match[1]) * SECONDS_PER_UNIT[match[2]]
