"""The trainer's command line. Standard library only, so that `--help` does not import torch."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from cloudtrain_job import emit_event
from cloudtrain_launcher.events import Error
from cloudtrain_trainer import rules
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks.options import OPTIONS

PACKAGE_DIR = Path(__file__).parent
_N = TypeVar("_N", int, float)
SECONDS_PER_UNIT = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

EXAMPLES = """\
examples:
  python train.py                                        digits on this machine, one process
  torchrun --nproc-per-node 2 train.py --epochs 5        two processes: ddp is the default
  torchrun --nproc-per-node 8 train.py --batch-size 512 --accumulate 2
  python train.py --checkpoint-every "2 min" --keep 5    run it again after a stop: it resumes
  python train.py --no-resume --max-steps 20             a short run from scratch

It writes to $CLOUDTRAIN_MODEL_DIR, $CLOUDTRAIN_OUTPUT_DIR and $CLOUDTRAIN_CHECKPOINT_DIR, or else to
./cloudtrain-output/{model,output,checkpoints}. SIGTERM stops all ranks after the same step, with a checkpoint.
"""


def strategy_names() -> list[str]:
    """The values of `--strategy`: the file model_parallel.py is `model-parallel`."""
    return sorted(
        p.stem.replace("_", "-") for p in (PACKAGE_DIR / "strategies").glob("*.py") if not p.stem.startswith("_")
    )


def parse(argv: list[str]) -> Options:
    """Decode a rank's command line, for as many ranks as $WORLD_SIZE says, $LOCAL_WORLD_SIZE of them per node.

    Raises `Refused` for invalid options, and for options that cannot work on so many ranks.
    """
    given = vars(_parser().parse_args(argv))
    given["task"] = given["task"] or (rules.USER_TASK if given["model"] else "digits")
    given["task_options"] = _task_options(given["task"], given)
    options = Options(**given)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rules.check(options, size, int(os.environ.get("LOCAL_WORLD_SIZE", str(size))))
    return options


def _task_options(task: str, given: dict[str, Any]) -> dict[str, Any]:
    """Decode the options that belong to tasks; the same option may mean something else in each task."""
    values = {}
    for name in {name for options in OPTIONS.values() for name in options}:
        text = given.pop(_task_option_dest(name))
        if text is None:
            continue
        if name not in OPTIONS.get(task, {}):
            others = " or ".join(other for other, options in OPTIONS.items() if name in options)
            raise Refused(f"--{name} is an option of --task {others}, not of this one: leave it out")
        try:
            values[name.replace("-", "_")] = OPTIONS[task][name].reader(text)
        except argparse.ArgumentTypeError as error:
            raise Refused(f"argument --{name}: {error} (train.py --help lists all options)") from None
    return values


def _task_option_dest(name: str) -> str:
    return f"task option {name}"


def refuse(reason: str) -> NoReturn:
    """End this rank with exit code 2. Only rank 0 prints the reason; all ranks report it to torchrun and the
    launcher.
    """
    exit_with_error(2, "Refused", f"refused: {reason}", reason, prints=_is_first_rank())


def exit_with_error(code: int, exception: str, message: str, printed: str = "", *, prints: bool = True) -> NoReturn:
    """End this rank with an exit code, and report why to the log, the launcher and torchrun.

    `printed`: the text for the log, if it differs from `message`. `prints`: whether this rank prints it; the errors of
    ranks that do not are marked as consequences, so that the launcher names one that does.
    """
    printed = printed or message
    sys.stdout.flush()
    if prints:
        os.write(2, f"train.py: error: {printed}\n".encode())
    if os.environ.get("CLOUDTRAIN_RESULT_FILE"):
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        emit_event(Error(attempt=attempt, exception=exception, message=message, consequence=not prints))
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": printed, "timestamp": str(int(time.time()))}
        Path(path).write_text(json.dumps({"message": {"message": printed, "extraInfo": extra}}))
    sys.stderr.flush()
    os._exit(code)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message} (train.py --help lists all options)")

    def print_help(self, file: Any = None) -> None:
        if _is_first_rank():
            super().print_help(file)


def _parser() -> _Parser:
    env = os.environ
    distributed = int(env.get("WORLD_SIZE", "1")) > 1
    p = _Parser(
        prog="train.py",
        description="Train a task under a strategy, as one rank of torchrun or alone.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = p.add_argument_group("what")
    what.add_argument("--task", choices=sorted(OPTIONS), help="default: digits")
    what.add_argument(
        "--model",
        metavar="MODULE:FACTORY",
        help="your function: returns a model for the data of --task, or a whole Task without --task",
    )
    what.add_argument(
        "--strategy",
        choices=strategy_names(),
        default="ddp" if distributed else "single",
        help="how training is distributed; default: ddp with several processes, else single",
    )
    what.add_argument(
        "--seed",
        type=_non_negative_int,
        default=0,
        metavar="N",
        help="of weights, data split, order and noise; default: 0",
    )

    own = p.add_argument_group("options of some tasks")
    for name in sorted({name for options in OPTIONS.values() for name in options}):
        meaning = "; ".join(f"{task}: {options[name].help}" for task, options in OPTIONS.items() if name in options)
        own.add_argument(f"--{name}", dest=_task_option_dest(name), metavar="X", help=meaning)

    dist = p.add_argument_group("distribution (cloudtrain_trainer/strategies/*.py say when to use which strategy)")
    dist.add_argument("--shard", type=_positive_int, metavar="N", help="hsdp: ranks per shard group [those of a node]")
    dist.add_argument("--tensor", type=_positive_int, metavar="N", help="hybrid: ranks per tensor-parallel group")
    dist.add_argument("--stages", type=_positive_int, metavar="N", help="hybrid, model-parallel: pipeline stages")
    dist.add_argument("--schedule", choices=["gpipe", "1f1b"], default="1f1b", help="of a pipeline [1f1b]")
    dist.add_argument("--microbatches", type=_positive_int, metavar="N", help="of a pipeline [2 x its stages]")
    dist.add_argument("--backend", choices=["auto", "nccl", "gloo", "mpi"], default="auto", help="[auto]")

    how = p.add_argument_group("training (defaults in brackets; [task]: the task's own)")
    how.add_argument("--epochs", type=_positive_int, metavar="N", help="[task]")
    how.add_argument(
        "--batch-size", type=_positive_int, metavar="N", help="global: samples per step over all ranks [task]"
    )
    how.add_argument("--accumulate", type=_positive_int, default=1, metavar="N", help="gradient accumulation steps [1]")
    how.add_argument("--lr", type=_positive, metavar="X", help="peak learning rate [task]")
    how.add_argument("--lr-schedule", choices=["cosine", "linear", "constant"], default="cosine", help="[cosine]")
    how.add_argument("--warm-up", type=_share, default=0.1, metavar="X", help="share of all steps [0.1]")
    how.add_argument("--clip-norm", type=_positive, metavar="X", help="largest norm of the gradients [none]")
    how.add_argument("--weight-decay", type=_not_negative, metavar="X", help="[task]")
    how.add_argument(
        "--on-nan",
        choices=["stop", "skip"],
        default="stop",
        help="at a loss or gradient that is NaN or infinite: stop and fail, or skip the step [stop]",
    )
    how.add_argument(
        "--amp",
        choices=["auto", "no", "bf16", "fp16"],
        default="auto",
        help="mixed precision; auto: bf16 where the GPU supports it [auto]",
    )
    how.add_argument("--compile", action="store_true", help="use torch.compile: a slow start, then faster steps")
    how.add_argument(
        "--workers", type=_non_negative_int, metavar="N", help="data loader processes per rank [task, or by cores]"
    )
    how.add_argument(
        "--probe-memory",
        choices=["auto", "yes", "no"],
        default="auto",
        help="before training, find the largest micro-batch that fits; auto: on GPUs [auto]",
    )
    how.add_argument("--max-steps", type=_positive_int, metavar="N", help="end after N steps, regardless of --epochs")
    how.add_argument("--eval-every", type=_positive_int, default=1, metavar="N", help="epochs between evaluations [1]")
    how.add_argument(
        "--patience", type=_positive_int, metavar="N", help="end after N evaluations without a lower val_loss"
    )
    how.add_argument("--target-accuracy", type=_positive, metavar="X", help="end once val_accuracy reaches X")

    keep = p.add_argument_group("checkpoints")
    keep.add_argument(
        "--checkpoint-every",
        type=_seconds,
        default=env.get("CLOUDTRAIN_CHECKPOINT_EVERY") or "10 min",
        metavar="TIME",
        help='seconds, or "10 min"; default: $CLOUDTRAIN_CHECKPOINT_EVERY, else 10 min',
    )
    keep.add_argument("--checkpoint-every-steps", type=_positive_int, metavar="N", help="also after every N steps")
    keep.add_argument(
        "--keep",
        type=_positive_int,
        default=env.get("CLOUDTRAIN_CHECKPOINT_KEEP") or "3",
        metavar="N",
        help="how many to keep; default: $CLOUDTRAIN_CHECKPOINT_KEEP, else 3",
    )
    keep.add_argument(
        "--no-resume",
        dest="resume",
        action="store_false",
        help="start from scratch: earlier checkpoints are moved, not deleted (a run restarted by its platform resumes)",
    )
    return p


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _non_negative_int(text: str) -> int:
    return _number(int, text, "a whole number of 0 or more", lambda n: 0 <= n < 2**31)


def _positive_int(text: str) -> int:
    return _number(int, text, "a whole number of 1 or more", lambda n: n >= 1)


def _positive(text: str) -> float:
    return _number(float, text, "a number greater than 0", lambda x: 0 < x < float("inf"))


def _not_negative(text: str) -> float:
    return _number(float, text, "a number of 0 or more", lambda x: 0 <= x < float("inf"))


def _share(text: str) -> float:
    return _number(float, text, "a number from 0 to 1", lambda x: 0 <= x <= 1)


def _number(kind: Callable[[str], _N], text: str, expected: str, fits: Callable[[_N], bool]) -> _N:
    try:
        value = kind(text)
        if fits(value):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if not match or match[2] not in SECONDS_PER_UNIT or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a time such as 600 or '10 min', got {text!r}")
    return float(match[1]) * SECONDS_PER_UNIT[match[2]]
