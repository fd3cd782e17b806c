"""The trainer's command line, read. Standard library only: `--help` costs no torch import."""

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

from cloudtrain_job import tell
from cloudtrain_launcher.events import Error
from cloudtrain_trainer import rules
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks.options import OPTIONS

HERE = Path(__file__).parent
_N = TypeVar("_N", int, float)
SECONDS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

EXAMPLES = """\
examples:
  python train.py                                        digits on this machine, one process
  torchrun --nproc-per-node 2 train.py --epochs 5        two processes: ddp is chosen by itself
  torchrun --nproc-per-node 8 train.py --batch-size 512 --accumulate 2
  python train.py --checkpoint-every "2 min" --keep 5    run it again after a stop: it goes on where it was
  python train.py --no-resume --max-steps 20             a short look, from the beginning

It writes to $CLOUDTRAIN_MODEL_DIR, $CLOUDTRAIN_OUTPUT_DIR and $CLOUDTRAIN_CHECKPOINT_DIR, or else to
./cloudtrain-output/{model,output,checkpoints}. SIGTERM stops all ranks at one step, with a checkpoint.
"""


def names_in(folder: str) -> list[str]:
    """The choices that the files of a folder offer: `model_parallel.py` is called `model-parallel`."""
    return sorted(p.stem.replace("_", "-") for p in (HERE / folder).glob("*.py") if not p.stem.startswith("_"))


def parse(argv: list[str]) -> Options:
    """Decode the command line for a job of $WORLD_SIZE ranks, $LOCAL_WORLD_SIZE per node; raises `Refused`."""
    given = vars(_parser().parse_args(argv))
    given["task"] = given["task"] or (rules.USERS if given["model"] else "digits")
    given["task_options"] = _task_options(given["task"], given)
    options = Options(**given)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rules.check(options, size, int(os.environ.get("LOCAL_WORLD_SIZE", str(size))))
    return options


def _task_options(task: str, given: dict[str, Any]) -> dict[str, Any]:
    """Read the words given for options of tasks, which may mean something else in each of them."""
    values = {}
    for name in {name for options in OPTIONS.values() for name in options}:
        text = given.pop(_own(name))
        if text is None:
            continue
        if name not in OPTIONS.get(task, {}):
            having = " or ".join(other for other, options in OPTIONS.items() if name in options)
            raise Refused(f"--{name} is an option of --task {having}, not of this one: leave it out")
        try:
            values[name.replace("-", "_")] = OPTIONS[task][name].reader(text)
        except argparse.ArgumentTypeError as error:
            raise Refused(f"argument --{name}: {error} (train.py --help lists what there is)") from None
    return values


def _own(name: str) -> str:
    return f"task option {name}"


def refuse(reason: str) -> NoReturn:
    """End this rank with exit code 2. Rank 0 tells people why; launcher and torchrun hear it from all."""
    # Rank 0 alone has said it in its log, so rank 0 is the one to look at.
    end(2, "Refused", f"refused: {reason}", reason, speaks=_is_first_rank())


def end(code: int, exception: str, message: str, said: str = "", *, speaks: bool = True) -> NoReturn:
    """Leave at once with a code and a reason, for people, the launcher and torchrun."""
    said = said or message
    sys.stdout.flush()
    if speaks:
        os.write(2, f"train.py: error: {said}\n".encode())
    if os.environ.get("CLOUDTRAIN_RESULT_FILE"):
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        tell(Error(attempt=attempt, exception=exception, message=message, consequence=not speaks))
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": said, "timestamp": str(int(time.time()))}
        Path(path).write_text(json.dumps({"message": {"message": said, "extraInfo": extra}}))
    sys.stderr.flush()
    os._exit(code)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message} (train.py --help lists what there is)")

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
    what.add_argument("--task", choices=sorted(OPTIONS), help="default: digits")
    what.add_argument(
        "--model",
        metavar="MODULE:FACTORY",
        help="a function of yours: its model learns the data of --task; without --task it returns a whole Task",
    )
    what.add_argument(
        "--strategy",
        choices=names_in("strategies"),
        default="ddp" if distributed else "single",
        help="how ranks share the work; default: ddp when there are several processes, else single",
    )
    what.add_argument("--seed", type=_whole, default=0, metavar="N", help="weights, split, order, noise; default: 0")

    own = p.add_argument_group("of some tasks")
    for name in sorted({name for options in OPTIONS.values() for name in options}):
        meaning = "; ".join(f"{task}: {options[name].help}" for task, options in OPTIONS.items() if name in options)
        own.add_argument(f"--{name}", dest=_own(name), metavar="X", help=meaning)

    spread = p.add_argument_group("how the model is spread (cloudtrain_trainer/strategies/*.py tell when to use which)")
    spread.add_argument("--shard", type=_count, metavar="N", help="hsdp: ranks that share one copy [those of a node]")
    spread.add_argument("--tensor", type=_count, metavar="N", help="hybrid: ranks that cut each matrix")
    spread.add_argument("--stages", type=_count, metavar="N", help="hybrid, model-parallel: parts in a row")
    spread.add_argument("--schedule", choices=["gpipe", "1f1b"], default="1f1b", help="of a pipeline [1f1b]")
    spread.add_argument("--microbatches", type=_count, metavar="N", help="of a pipeline [2 x its stages]")
    spread.add_argument("--backend", choices=["auto", "nccl", "gloo", "mpi"], default="auto", help="[auto]")

    how = p.add_argument_group("how (defaults in brackets; [task]: the task's own)")
    how.add_argument("--epochs", type=_count, metavar="N", help="[task]")
    how.add_argument("--batch-size", type=_count, metavar="N", help="GLOBAL: samples per step over all ranks [task]")
    how.add_argument("--accumulate", type=_count, default=1, metavar="N", help="parts per rank and step [1]")
    how.add_argument("--lr", type=_positive, metavar="X", help="highest learning rate [task]")
    how.add_argument("--lr-schedule", choices=["cosine", "linear", "constant"], default="cosine", help="[cosine]")
    how.add_argument("--warm-up", type=_share, default=0.1, metavar="X", help="share of all steps [0.1]")
    how.add_argument("--clip-norm", type=_positive, metavar="X", help="the most that the gradients' norm may be [none]")
    how.add_argument("--weight-decay", type=_not_negative, metavar="X", help="[task]")
    how.add_argument(
        "--on-nan",
        choices=["stop", "skip"],
        default="stop",
        help="at a loss or gradient that is not a finite number: stop and fail, or leave the step out [stop]",
    )
    how.add_argument(
        "--amp",
        choices=["auto", "no", "bf16", "fp16"],
        default="auto",
        help="mixed precision; auto: bf16 where the GPU computes in it [auto]",
    )
    how.add_argument("--compile", action="store_true", help="through torch.compile: slow to start, then faster")
    how.add_argument("--workers", type=_whole, metavar="N", help="loader processes per rank [task, or the machine]")
    how.add_argument(
        "--probe-memory",
        choices=["auto", "yes", "no"],
        default="auto",
        help="before training, find the largest part of a batch that fits; auto: on GPUs [auto]",
    )
    how.add_argument("--max-steps", type=_count, metavar="N", help="end after N steps, whatever the epochs")
    how.add_argument("--eval-every", type=_count, default=1, metavar="N", help="epochs between evaluations [1]")
    how.add_argument("--patience", type=_count, metavar="N", help="end after N evaluations without a lower val_loss")
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
        help="start anew; what is there is set aside, not deleted (the same run goes on when its platform restarts it)",
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


def _share(text: str) -> float:
    return _number(float, text, "a number from 0 to 1", lambda x: 0 <= x <= 1)


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
