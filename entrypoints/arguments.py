"""The trainer's arguments and where it writes. Standard library only: `--help` costs no torch import."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from cloudtrain_job import emit

HERE = Path(__file__).parent
_N = TypeVar("_N", int, float)
SECONDS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

EXAMPLES = """\
examples:
  python train.py                                        digits on this machine, one process
  torchrun --nproc-per-node 2 train.py --epochs 5        two processes: ddp is chosen by itself
  torchrun --nproc-per-node 8 train.py --batch-size 512 --accumulate 2 --amp bf16
  python train.py --checkpoint-every "2 min" --keep 5    run it again after a stop: it goes on where it was
  python train.py --no-resume --max-steps 20             a short look, from the beginning

It writes to $CLOUDTRAIN_MODEL_DIR, $CLOUDTRAIN_OUTPUT_DIR and $CLOUDTRAIN_CHECKPOINT_DIR, or else to
./cloudtrain-output/{model,output,checkpoints}. SIGTERM stops all ranks at one step, with a checkpoint.
"""


class Refused(Exception):
    """What was asked for cannot work here: why, and the way out. The process exits with 2."""


@dataclass(frozen=True)
class Options:
    """The command line, decoded. None means: the task's own default."""

    task: str
    strategy: str
    epochs: int | None
    batch_size: int | None
    """Samples per optimizer step over all ranks and all accumulated parts."""
    accumulate: int
    lr: float | None
    weight_decay: float | None
    seed: int
    amp: str
    max_steps: int | None
    eval_every: int
    target_accuracy: float | None
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


def names_in(folder: str) -> list[str]:
    """The choices that the files of a folder offer: `model_parallel.py` is called `model-parallel`."""
    return sorted(p.stem.replace("_", "-") for p in (HERE / folder).glob("*.py") if not p.stem.startswith("_"))


def parse(argv: list[str]) -> Options:
    """Decode the command line; raises `Refused`."""
    return Options(**vars(_parser().parse_args(argv)))


def refuse(reason: str) -> NoReturn:
    """End this rank with exit code 2. Rank 0 tells people why; launcher and torchrun hear it from all."""
    if _is_first_rank():
        sys.stdout.flush()
        os.write(2, f"train.py: error: {reason}\n".encode())
    if os.environ.get("CLOUDTRAIN_RESULT_FILE"):
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        # Rank 0 alone has said it in its log, so rank 0 is the one to look at.
        told = {"exception": "Refused", "message": f"refused: {reason}", "consequence": not _is_first_rank()}
        emit("error", attempt=attempt, **told)
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": reason, "timestamp": str(int(time.time()))}
        Path(path).write_text(json.dumps({"message": {"message": reason, "extraInfo": extra}}))
    sys.stderr.flush()
    os._exit(2)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message} (--help lists what there is)")

    def print_help(self, file: Any = None) -> None:
        if _is_first_rank():
            super().print_help(file)


def _parser() -> _Parser:
    env = os.environ
    distributed = int(env.get("WORLD_SIZE", "1")) > 1
    p = _Parser(
        prog="train.py",
        description="Train a task under a strategy: the program of one rank, under torchrun or alone.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = p.add_argument_group("what")
    what.add_argument("--task", choices=names_in("tasks"), default="digits", help="default: digits")
    what.add_argument(
        "--strategy",
        choices=names_in("strategies"),
        default="ddp" if distributed else "single",
        help="how ranks share the work; default: ddp when there are several processes, else single",
    )
    what.add_argument("--seed", type=_whole, default=0, metavar="N", help="weights, split, order, noise; default: 0")

    how = p.add_argument_group("how (defaults in brackets; [task]: the task's own)")
    how.add_argument("--epochs", type=_count, metavar="N", help="[task]")
    how.add_argument("--batch-size", type=_count, metavar="N", help="GLOBAL: samples per step over all ranks [task]")
    how.add_argument("--accumulate", type=_count, default=1, metavar="N", help="parts per rank and step [1]")
    how.add_argument("--lr", type=_positive, metavar="X", help="highest learning rate [task]")
    how.add_argument("--weight-decay", type=_not_negative, metavar="X", help="[task]")
    how.add_argument("--amp", type=_amp, default="no", metavar="no|bf16", help="mixed precision [no]")
    how.add_argument("--max-steps", type=_count, metavar="N", help="end after N steps, whatever the epochs")
    how.add_argument("--eval-every", type=_count, default=1, metavar="N", help="epochs between evaluations [1]")
    how.add_argument("--target-accuracy", type=_positive, metavar="X", help="end once val_accuracy reaches X")

    keep = p.add_argument_group("checkpoints")
    keep.add_argument(
        "--checkpoint-every",
        type=_seconds,
        default=env.get("CLOUDTRAIN_CHECKPOINT_EVERY") or "10 min",
        metavar="TIME",
        help='seconds, or "10 min"; default: $CLOUDTRAIN_CHECKPOINT_EVERY, else 10 min',
    )
    keep.add_argument("--checkpoint-every-steps", type=_count, metavar="N", help="besides, after every N steps")
    keep.add_argument(
        "--keep",
        type=_count,
        default=env.get("CLOUDTRAIN_CHECKPOINT_KEEP") or "3",
        metavar="N",
        help="newest ones to keep; default: $CLOUDTRAIN_CHECKPOINT_KEEP, else 3",
    )
    keep.add_argument(
        "--no-resume",
        dest="resume",
        action="store_false",
        help="start anew; what is there is set aside, not deleted",
    )
    return p


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _whole(text: str) -> int:
    return _number(int, text, "a whole number from 0 on", lambda n: 0 <= n < 2**31)


def _count(text: str) -> int:
    return _number(int, text, "a whole number from 1 on", lambda n: n >= 1)


def _positive(text: str) -> float:
    return _number(float, text, "a number above 0", lambda x: 0 < x < float("inf"))


def _not_negative(text: str) -> float:
    return _number(float, text, "a number from 0 on", lambda x: 0 <= x < float("inf"))


def _number(kind: Callable[[str], _N], text: str, meaning: str, fits: Callable[[_N], bool]) -> _N:
    try:
        value = kind(text)
        if fits(value):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected {meaning}, got {text!r}")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if not match or match[2] not in SECONDS or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a time such as 600 or '10 min', got {text!r}")
    return float(match[1]) * SECONDS[match[2]]


def _amp(text: str) -> str:
    if text in ("fp16", "float16", "16"):
        raise argparse.ArgumentTypeError("fp16 needs loss scaling, which this trainer does not do: use bf16, or no")
    if text not in ("no", "bf16"):
        raise argparse.ArgumentTypeError(f"expected no or bf16, got {text!r}")
    return text
