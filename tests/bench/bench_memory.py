"""How well a rehearsal foretells memory: for every task and strategy of the trainer, and for models
that are not its.

Measured is what torch's CPU allocator handed out in real ranks (gloo), each allocation counted,
kernels' own included; estimated is what `cloudtrain check --memory` would say of the tensors. An
estimate is held to be at most 15 % above and 5 % below. Each rank of each case is a process of its
own, forked from one that has imported torch; a case that is not done in time is ended and said to
be so. gloo's threads free what they have sent when they are next scheduled: on a busy machine ranks
that shard a small model hold up to a tenth more, which `--rounds 3` shows. Models of the package
transformers are left out where it is not installed.

    .venv/bin/python tests/bench/bench_memory.py --parts two four --only fsdp
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ABOVE = 0.15
BELOW = -0.05
SECONDS = 180
"""How long the ranks of a case may take, the estimate as well; usually some seconds."""
SMALL = {
    "digits": [], "mnist": ["--data", "digits"], "keras-mnist": ["--data", "digits"],
    "resnet50": ["--size", "tiny", "--data", "synthetic"], "gpt": [],
}  # fmt: skip
GPT = ["--task", "gpt"]
MIDDLE = [*GPT, "--size", "small", "--batch-size", "8"]
"""4.9 million parameters, and 256 tokens per sequence."""
STAGED = ("digits", "mnist", "resnet50", "gpt")
ALONE = [
    *([["--task", name, *flags] for name, flags in SMALL.items()]), MIDDLE,
    [*GPT, "--amp", "bf16"], [*GPT, "--accumulate", "4"], [*GPT, "--optimizer", "sgd"],
    [*GPT, "--optimizer", "adafactor"], [*GPT, "--recompute", "blocks"],
    [*GPT, "--recompute", "selective"], [*GPT, "--on-nan", "skip", "--clip-norm", "1"], [*GPT, "--strategy", "dp"],
    [*GPT, "--strategy", "model-parallel"], ["--task", "digits", "--strategy", "model-parallel"],
    [*MIDDLE, "--strategy", "model-parallel"], [*MIDDLE, "--recompute", "blocks"],
]  # fmt: skip
SHARED = [
    *([["--task", name, *flags, "--strategy", "ddp"] for name, flags in SMALL.items()]),
    *([["--task", name, *SMALL[name], "--strategy", "fsdp"] for name in STAGED]),
    *([["--task", name, *SMALL[name], "--strategy", "pipeline"] for name in STAGED]),
    *([["--task", name, *SMALL[name], "--strategy", "tp"] for name in ("digits", "mnist", "gpt")]),
    *([[*MIDDLE, "--strategy", name] for name in ("ddp", "fsdp", "pipeline", "tp")]),
]
"""Of two ranks and of four."""
TWO = [
    *SHARED, [*GPT, "--strategy", "ddp", "--accumulate", "4"], [*GPT, "--strategy", "fsdp", "--amp", "bf16"],
    [*GPT, "--strategy", "fsdp", "--accumulate", "2"],
    [*GPT, "--strategy", "fsdp", "--accumulate", "2", "--gradient-sync", "last"],
    [*GPT, "--strategy", "fsdp", "--recompute", "blocks"],
    [*MIDDLE, "--strategy", "fsdp", "--amp", "bf16", "--recompute", "blocks"],
    [*GPT, "--strategy", "pipeline", "--schedule", "gpipe"],
]  # fmt: skip
FOUR = [
    *SHARED,
    *([[*size, "--strategy", "hsdp", "--shard", "2"] for size in (GPT, MIDDLE)]),
    *([[*size, "--strategy", "hybrid", *flags] for size in (GPT, MIDDLE) for flags in
       (["--tensor", "2"], ["--stages", "2"])]),
    [*GPT, "--strategy", "hsdp", "--shard", "2", "--accumulate", "2"],
]  # fmt: skip


def main() -> int:
    options = _options()
    warnings.simplefilter("ignore")
    parts: dict[str, tuple[int, list[list[str]]]] = {
        "one": (1, ALONE), "two": (2, TWO), "four": (4, FOUR), "models": (1, []),
    }  # fmt: skip
    if "models" in options.parts:
        parts["models"] = 1, _others()
    found: list[dict[str, Any]] = []
    print(
        "| ranks | case | measured MiB | estimated MiB | error | seconds"
        " |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for part in options.parts:
        ranks, cases = parts[part]
        chosen = [case for case in cases if options.only in " ".join(case)]
        found += [_compared(ranks, case, options.rounds, options.seconds) for case in chosen]
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    _print_summary(found)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures there, after each part"
    )
    parser.add_argument(
        "--only", metavar="WORD", default="", help="cases with this in their command line"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=["one", "two", "four", "models"], default=["one", "two", "four", "models"],
        help="tasks and strategies with so many ranks, and models that are not the trainer's; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="that a case may take (%(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="measurements of a case; their median counts (1)"
    )
    return parser.parse_args()


def _print_summary(found: Sequence[dict[str, Any]]) -> None:
    for ranks in sorted({row["ranks"] for row in found}):
        errors = [
            row["error"] for row in found if row["ranks"] == ranks and row["error"] is not None
        ]
        count = sum(row["ranks"] == ranks for row in found)
        outside = sum(not BELOW <= error <= ABOVE for error in errors)
        said = f"\n{ranks} ranks, {count} cases"
        if errors:
            said += (
                f": median error {statistics.median(errors):+.1%}, from {min(errors):+.1%} to"
                f" {max(errors):+.1%}"
            )
        print(
            f"{said}; {outside} outside of {BELOW:+.0%} to {ABOVE:+.0%}, {count - len(errors)}"
            " without a figure"
        )


def _others() -> list[list[str]]:
    from tests.bench import memory_models as models

    names = [model.__name__ for model in models.IMAGES + models.TEXTS]
    if find_spec("transformers"):
        names += models.HUGGING_FACE
    else:
        print(
            "transformers is not installed: its models are left out (pip install transformers)",
            file=sys.stderr,
        )
    return [["--task", f"tests.bench.memory_models:task_{name}"] for name in names]


def _compared(ranks: int, case: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    """A row of the table, printed as well."""
    began = time.monotonic()
    estimate = _answers(1, ranks, case, _estimate, seconds)[0]
    by_round = [_answers(ranks, ranks, case, _measure, seconds) for _ in range(rounds)]
    said = " ".join(case).replace("tests.bench.memory_models:task_", "")
    row: dict[str, Any] = {
        "ranks": ranks,
        "case": said,
        "measured": by_round,
        "estimated": estimate,
        "error": None,
    }
    failed = [
        value
        for value in (estimate, *(peak for peaks in by_round for peak in peaks))
        if isinstance(value, str)
    ]
    if failed:
        shown = f"{failed[0]} | | "
    else:
        measured = statistics.median(max(peaks) for peaks in by_round)
        row["error"] = estimate / measured - 1
        shown = f"{measured / 2**20:.2f} | {estimate / 2**20:.2f} | {row['error']:+.1%}"
    print(f"| {ranks} | `{said}` | {shown} | {time.monotonic() - began:.0f} |", flush=True)
    return row


def _answers(
    count: int, size: int, case: list[str], work: Callable[..., int], seconds: float
) -> list[Any]:
    """What each of the first `count` of `size` ranks returns, or why it did not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    ends = list[Connection]()
    started = list[Any]()
    for rank in range(count):
        here, there = fork.Pipe(duplex=False)
        process = fork.Process(
            target=_run, args=(there, rank, size, port if count > 1 else 0, case, work)
        )
        process.start()
        there.close()
        ends.append(here)
        started.append(process)
    answers = list(_received(ends, time.monotonic() + seconds))
    for process in started:
        process.kill()  # what has answered has nothing left to do
        process.join()
    return answers


def _received(ends: Sequence[Connection], deadline: float) -> Iterator[Any]:
    for end in ends:
        try:
            yield (
                end.recv()
                if end.poll(max(0.0, deadline - time.monotonic()))
                else "not done in time"
            )
        except EOFError:
            yield "ended without an answer"


def _run(
    answer: Connection, rank: int, size: int, port: int, case: list[str], work: Callable[..., int]
) -> None:
    """As one rank: measure or estimate, and end."""
    os.environ |= {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    if port:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        answer.send(work(case, size))
    except Exception as error:  # noqa: BLE001  (the other cases are measured all the same)
        answer.send(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}")
    answer.close()
    os._exit(0)


def _estimate(case: list[str], size: int) -> int:
    from cloudtrain_trainer.memory.alone import World
    from tests.support.step_memory import estimated

    return estimated(case, World(size, size))


def _measure(case: list[str], _: int) -> int:
    from cloudtrain_trainer.ranks import Ranks
    from tests.support.step_memory import measured

    return measured(case, Ranks(SECONDS))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "entrypoints"), str(ROOT / "entrypoints" / "job")]
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    sys.exit(main())
