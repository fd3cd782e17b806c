"""Values of the options, and which of them work together.

Standard library only: `--help` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain_trainer.options import Options

DIGITS = "digits"
"""The built-in task, the default of `--task`."""
USER_TASK = "model"
"""The value of `Options.task` if `--model` is given without `--task`."""

STRATEGIES = ("ddp", "dp", "single")
"""Values of `--strategy`."""
ONE_PROCESS = {"single": "trains in one process", "dp": "drives all GPUs from one process"}
"""Strategies that run in a single process, and its work."""
OPTIMIZERS = ("adamw", "sgd")
"""Built-in values of `--optimizer`."""

PROGRAMS = {
    "fsdp": "parallelism/fsdp2",
    "hsdp": "parallelism/fsdp2",
    "hybrid": "parallelism/hybrid",
    "model-parallel": "parallelism/model-parallel",
    "pipeline": "parallelism/pipeline",
    "tp": "parallelism/tensor",
    "gpt": "language-model",
    "keras-mnist": "parallelism/keras",
    "mnist": "images",
}
"""Strategies and tasks of earlier versions, and the folders of examples/ that show each."""


class Refused(Exception):
    """The options cannot work here. The process exits with code 2.

    The message gives the reason and what to do instead.
    """


class RefusedData(Refused):
    """A problem in data that perhaps only one rank has met: that rank prints the message."""


def is_own(options: Options) -> bool:
    """Return whether the task, its model or its data is the user's."""
    return bool(options.model or options.data) or options.task != DIGITS


def can_compile(options: Options) -> bool:
    """Return whether `--compile` works with the strategy: dp copies layers in every step."""
    return options.strategy != "dp"


def check(options: Options, ranks: int) -> None:
    """Raise `Refused` if the options cannot work together on this many ranks."""
    strategy = options.strategy

    if strategy in ONE_PROCESS and ranks > 1:
        raise Refused(
            f"--strategy {strategy} {ONE_PROCESS[strategy]}; each of {ranks} processes would train"
            " alone: use --strategy ddp, or start one process (resources.processes: 1,"
            " --nproc-per-node 1)"
        )

    if options.recompute != "none" and strategy == "dp":
        raise Refused("--recompute is not offered with --strategy dp, which copies layers: use ddp")
    if options.compile == "yes" and not can_compile(options):
        raise Refused(
            f"--compile is not offered with --strategy {strategy}: leave it out, or use ddp"
        )

    if options.betas and options.optimizer != "adamw":
        raise Refused("--betas is for --optimizer adamw: leave it out, or set them in your factory")
    if options.min_lr and options.lr_schedule != "cosine":
        raise Refused(
            f"--min-lr ends --lr-schedule cosine, not {options.lr_schedule}: leave one of them out"
        )

    if options.eval_only and not options.resume:
        raise Refused(
            "--no-resume is about training, which --eval-only leaves out: leave out one of them"
        )
