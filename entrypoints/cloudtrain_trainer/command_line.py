"""The command line: flags, their defaults, types and help. Standard library only."""

from __future__ import annotations

import argparse
import os
from typing import Any, NoReturn

from cloudtrain_trainer.options import (
    betas,
    decay,
    factory,
    name_or_factory,
    non_negative_int,
    not_negative,
    positive,
    positive_int,
    seconds,
    share,
    still_built_in,
)
from cloudtrain_trainer.rules import DIGITS, OPTIMIZERS, STRATEGIES, Refused

EXAMPLES = """\
examples:
  python train.py                                        digits on this machine, one process
  torchrun --nproc-per-node 2 train.py --epochs 5        two processes: ddp is the default
  python train.py --checkpoint-every "2 min" --keep 5    run it again after a stop: it resumes
  python train.py --no-resume --max-steps 20             a short run from scratch

It writes to $CLOUDTRAIN_MODEL_DIR, $CLOUDTRAIN_OUTPUT_DIR and $CLOUDTRAIN_CHECKPOINT_DIR, or else to
./cloudtrain-output/{model,output,checkpoints}. SIGTERM stops all ranks after the same step, with a checkpoint.
"""


class Parser(argparse.ArgumentParser):
    """Raises `Refused` instead of ending the process; only rank 0 prints the help."""

    def error(self, message: str) -> NoReturn:
        """Raise `Refused`. `message`: what argparse found wrong."""
        raise Refused(f"{message} (train.py --help lists all options)")

    def print_help(self, file: Any = None) -> None:
        """Print the help on rank 0. `file`: None is standard output."""
        if is_first_rank():
            super().print_help(file)


def build_parser() -> Parser:
    """Return the parser of all flags, whose values are the fields of `Options`."""
    parser = Parser(
        prog="train.py",
        description="Train a task, as one rank of torchrun or alone.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_what(parser)
    _add_distribution(parser)
    training = parser.add_argument_group("training (defaults in brackets; [task]: the task's own)")
    _add_optimization(training)
    _add_performance(training)
    _add_duration(training)
    _add_checkpoints(parser)

    return parser


def is_first_rank() -> bool:
    """Return whether this process is rank 0 by $RANK; also true without torchrun."""
    return os.environ.get("RANK", "0") == "0"


def _add_what(parser: Parser) -> None:
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    group = parser.add_argument_group("what")
    group.add_argument(
        "--task",
        type=name_or_factory([DIGITS]),
        metavar=DIGITS + "|MODULE:FACTORY",
        help="default: digits; a function of yours returns a whole Task",
    )

    group.add_argument(
        "--model",
        type=factory,
        metavar="MODULE:FACTORY",
        help=(
            "your function or class: returns a model for --data or for the data of --task, or a"
            " whole Task"
        ),
    )

    group.add_argument(
        "--data",
        type=factory,
        metavar="MODULE:FACTORY",
        help="your function: returns training data, or training and validation data",
    )

    group.add_argument(
        "--strategy",
        type=still_built_in,
        choices=STRATEGIES,
        default="ddp" if distributed else "single",
        help="how training is distributed; default: ddp with several processes, else single",
    )

    group.add_argument(
        "--seed",
        type=non_negative_int,
        default=0,
        metavar="N",
        help="of weights, data split, order and noise; default: 0",
    )


def _add_count(
    group: argparse._ArgumentGroup, flag: str, meaning: str, default: int | str | None = None
) -> None:
    """Add an option whose value is a whole number of 1 or more."""
    group.add_argument(flag, type=positive_int, metavar="N", default=default, help=meaning)


def _add_distribution(parser: Parser) -> None:
    group = parser.add_argument_group("distribution")
    group.add_argument("--backend", choices=["auto", "nccl", "gloo"], default="auto", help="[auto]")
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        help=(
            "how long ranks wait for each other in a step before the job fails [10 min on GPUs,"
            " else as in the start]"
        ),
    )

    group.add_argument(
        "--start-timeout",
        type=seconds,
        default="30 min",
        metavar="TIME",
        help="the same until the first step is done, in which models are compiled [30 min]",
    )

    group.add_argument(
        "--no-network-check",
        dest="network_check",
        action="store_false",
        help="on GPUs of several nodes: do not measure the network for up to 5 s before training",
    )


def _add_optimization(group: argparse._ArgumentGroup) -> None:
    _add_count(group, "--epochs", "[task]")
    _add_count(group, "--batch-size", "global: samples per step over all ranks [task]")

    _add_count(group, "--accumulate", "gradient accumulation steps [1]", 1)

    group.add_argument(
        "--optimizer",
        type=name_or_factory(OPTIMIZERS),
        default="adamw",
        metavar="{" + ",".join(OPTIMIZERS) + "}|MODULE:FACTORY",
        help="a built-in one, or your function that returns one [adamw]",
    )
    group.add_argument("--lr", type=positive, metavar="X", help="peak learning rate [task]")
    group.add_argument(
        "--lr-schedule", choices=["cosine", "constant"], default="cosine", help="[cosine]"
    )
    group.add_argument(
        "--min-lr",
        type=not_negative,
        default=0.0,
        metavar="X",
        help="learning rate at the end of the cosine schedule [0]",
    )

    group.add_argument(
        "--betas",
        type=betas,
        metavar="X,X",
        help="adamw: decay rates of its means, such as 0.9,0.95 [0.9,0.999]",
    )

    group.add_argument(
        "--warm-up", type=share, default=0.1, metavar="X", help="share of all steps [0.1]"
    )
    group.add_argument(
        "--clip-norm", type=positive, metavar="X", help="largest norm of the gradients [none]"
    )
    group.add_argument(
        "--ema",
        type=decay,
        metavar="X",
        help="evaluate and save a moving average of the weights, of this decay: 0.999 [none]",
    )
    group.add_argument("--weight-decay", type=not_negative, metavar="X", help="[task]")


def _add_performance(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--amp",
        choices=["auto", "no", "bf16", "fp16"],
        default="auto",
        help=("mixed precision; auto: bf16 if the GPU supports it [auto]"),
    )

    group.add_argument(
        "--compile",
        nargs="?",
        choices=["auto", "yes", "no"],
        const="yes",
        default="auto",
        help=(
            "torch.compile: a slow start, then faster steps; auto: on GPUs, where a compiler is"
            " installed [auto]"
        ),
    )

    group.add_argument(
        "--deterministic",
        action="store_true",
        help=(
            "on GPUs: the same result in each run on the same machines, if slower; fails where"
            " torch has no such way"
        ),
    )

    group.add_argument(
        "--recompute",
        choices=["none", "blocks"],
        default="none",
        help="blocks: save memory by computing the activations of layers twice [none]",
    )

    group.add_argument(
        "--workers",
        type=non_negative_int,
        metavar="N",
        help="data loader processes per rank [task, or by cores]",
    )

    group.add_argument(
        "--probe-memory",
        choices=["auto", "yes", "no"],
        default="auto",
        help="before training, find the largest micro-batch that fits; auto: on GPUs [auto]",
    )


def _add_duration(group: argparse._ArgumentGroup) -> None:
    _add_count(group, "--max-steps", "end after N steps, regardless of --epochs")

    _add_count(group, "--eval-every", "epochs between evaluations [1]", 1)

    _add_count(group, "--eval-every-steps", "evaluate also after every N steps")

    group.add_argument(
        "--eval-only",
        action="store_true",
        help=(
            "evaluate the newest checkpoint, or else a model of yours as it is made: nothing is"
            " trained or written"
        ),
    )

    _add_count(group, "--patience", "end after N evaluations without a lower val_loss")


def _add_checkpoints(parser: Parser) -> None:
    env = os.environ
    group = parser.add_argument_group("checkpoints")
    group.add_argument(
        "--checkpoint-every",
        type=seconds,
        default=env.get("CLOUDTRAIN_CHECKPOINT_EVERY") or "10 min",
        metavar="TIME",
        help='seconds, or "10 min"; default: $CLOUDTRAIN_CHECKPOINT_EVERY, else 10 min',
    )

    _add_count(group, "--checkpoint-every-steps", "also after every N steps")
    _add_count(
        group,
        "--keep",
        "how many to keep; default: $CLOUDTRAIN_CHECKPOINT_KEEP, else 3",
        env.get("CLOUDTRAIN_CHECKPOINT_KEEP") or "3",
    )

    group.add_argument(
        "--save-frozen",
        choices=["auto", "yes", "no"],
        default="auto",
        help=(
            "keep frozen weights in checkpoints and in the model file; auto: unless they are more"
            " than half of the parameters, as with adapters [auto]"
        ),
    )

    group.add_argument(
        "--mlflow-model",
        action="store_true",
        help="make the model's folder a model of MLflow, too, as Azure ML serves it",
    )

    group.add_argument(
        "--no-resume",
        dest="resume",
        action="store_false",
        help=(
            "start from scratch: earlier checkpoints are moved, not deleted (a run restarted by its"
            " platform resumes)"
        ),
    )
