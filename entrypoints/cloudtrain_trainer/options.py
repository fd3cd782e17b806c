"""What a training is told: its options, and where it writes. Standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Options:
    """The command line, decoded. None means: the task's own default."""

    task: str
    task_options: dict[str, Any]
    """Those of the task's own that were given, as its `build` takes them."""
    model: str | None
    """package.module:factory of a user's model, or of a whole task."""
    strategy: str
    backend: str
    """auto: nccl on GPUs, else gloo."""
    shard: int | None
    """Ranks per group of hsdp."""
    tensor: int | None
    """Ranks that cut each matrix, under hybrid."""
    stages: int | None
    """Under hybrid and model-parallel."""
    schedule: str
    microbatches: int | None
    """Per part of a step, in a pipeline."""
    epochs: int | None
    batch_size: int | None
    """Samples per optimizer step over all ranks and all accumulated parts."""
    accumulate: int
    lr: float | None
    lr_schedule: str
    warm_up: float
    """The share of all steps."""
    weight_decay: float | None
    clip_norm: float | None
    seed: int
    on_nan: str
    """stop or skip: at a loss or a gradient that is not a finite number."""
    amp: str
    compile: bool
    workers: int | None
    probe_memory: str
    max_steps: int | None
    eval_every: int
    target_accuracy: float | None
    patience: int | None
    """Evaluations without a lower val_loss, after which training ends."""
    checkpoint_every: float
    """Seconds."""
    checkpoint_every_steps: int | None
    keep: int
    resume: bool


@dataclass(frozen=True)
class Folders:
    """Where the results go; durable folders inside a job."""

    model: Path
    output: Path
    checkpoints: Path

    @classmethod
    def from_environment(cls) -> Folders:
        here = Path("cloudtrain-output")
        return cls(
            model=Path(os.environ.get("CLOUDTRAIN_MODEL_DIR") or here / "model"),
            output=Path(os.environ.get("CLOUDTRAIN_OUTPUT_DIR") or here / "output"),
            checkpoints=Path(os.environ.get("CLOUDTRAIN_CHECKPOINT_DIR") or here / "checkpoints"),
        )
