"""How well a rehearsal foretells memory: for every task and strategy of the trainer, and for models that are not its.

Measured is what torch's CPU allocator handed out in real ranks (gloo), each allocation counted, kernels' own included;
estimated is what `cloudtrain check --memory` would say of the tensors. An estimate is held to be at most 15 % above
and 5 % below. Models of the package transformers are left out where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ABOVE, BELOW = 0.15, -0.05
SMALL = {
    "digits": [], "mnist": ["--data", "digits"], "keras-mnist": ["--data", "digits"],
    "resnet50": ["--size", "tiny", "--data", "synthetic"], "gpt": [],
}  # fmt: skip
GPT = ["--task", "gpt"]
ALONE = [
    *([["--task", name, *flags] for name, flags in SMALL.items()]),
    [*GPT, "--amp", "bf16"], [*GPT, "--accumulate", "4"], [*GPT, "--optimizer", "sgd"],
    [*GPT, "--optimizer", "adafactor"], [*GPT, "--optimizer", "muon"], [*GPT, "--recompute", "blocks"],
    [*GPT, "--recompute", "selective"], [*GPT, "--on-nan", "skip", "--clip-norm", "1"], [*GPT, "--strategy", "dp"],
    [*GPT, "--strategy", "model-parallel"], ["--task", "digits", "--strategy", "model-parallel"],
]  # fmt: skip
TWO = [
    *([["--task", name, *flags, "--strategy", "ddp"] for name, flags in SMALL.items()]),
    *([["--task", name, *flags, "--strategy", "fsdp"] for name, flags in SMALL.items() if name != "keras-mnist"]),
    *([["--task", name, *flags, "--strategy", "pipeline"] for name, flags in SMALL.items() if name != "keras-mnist"]),
    *([["--task", name, *SMALL[name], "--strategy", "tp"] for name in ("digits", "mnist", "gpt")]),
    [*GPT, "--strategy", "ddp", "--accumulate", "4"], [*GPT, "--strategy", "fsdp", "--amp", "bf16"],
    [*GPT, "--strategy", "fsdp", "--accumulate", "2"],
    [*GPT, "--strategy", "fsdp", "--accumulate", "2", "--gradient-sync", "last"],
    [*GPT, "--strategy", "fsdp", "--recompute", "blocks"], [*GPT, "--strategy", "context"],
    [*GPT, "--strategy", "pipeline", "--schedule", "gpipe"],
    [*GPT, "--strategy", "pipeline", "--schedule", "interleaved"],
    [*GPT, "--strategy", "pipeline", "--schedule", "zero-bubble"],
]  # fmt: skip
FOUR = [
    [*GPT, "--strategy", "hsdp", "--shard", "2"], [*GPT, "--strategy", "hybrid", "--tensor", "2"],
    [*GPT, "--strategy", "hybrid", "--stages", "2"], [*GPT, "--strategy", "hybrid", "--context-ranks", "2"],
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--only", metavar="WORD", default="", help="cases with this in their command line")
    parser.add_argument("--cases", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--estimate", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cases:
        _run(json.loads(options.cases.read_text()), options.estimate)
    found: list[dict[str, Any]] = []
    print("| ranks | case | measured MiB | estimated MiB | error |\n|---|---|---|---|---|")
    for ranks, cases in ((1, ALONE), (2, TWO), (4, FOUR), (1, _others())):
        chosen = [case for case in cases if options.only in " ".join(case)]
        found += _compared(ranks, chosen) if chosen else []
    good = [row["error"] for row in found if row["error"] is not None]
    missed = len(found) - sum(BELOW <= error <= ABOVE for error in good)
    print(
        f"\n{len(found)} cases: median error {statistics.median(map(abs, good)):.1%}, from {min(good):+.1%} to "
        f"{max(good):+.1%}; {missed} outside of {BELOW:+.0%} to {ABOVE:+.0%}"
    )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _others() -> list[list[str]]:
    from tests.bench import memory_models as models

    names = [model.__name__ for model in models.IMAGES + models.TEXTS]
    if find_spec("transformers"):
        names += models.HUGGING_FACE
    else:
        print("transformers is not installed: its models are left out (pip install transformers)", file=sys.stderr)
    return [["--task", f"tests.bench.memory_models:task_{name}"] for name in names]


def _compared(ranks: int, cases: list[list[str]]) -> list[dict[str, Any]]:
    """A row for each case, printed as well."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        path.write_text(json.dumps(cases))
        estimates = _launch(path, ranks, [0], "--estimate")[0]
        by_rank = _launch(path, ranks, list(range(ranks)))
    rows = []
    for number, case in enumerate(cases):
        peaks, estimate = [said[number] for said in by_rank], estimates[number]
        row: dict[str, Any] = {"ranks": ranks, "case": " ".join(case).replace("tests.bench.memory_models:task_", "")}
        if any(isinstance(value, str) for value in (*peaks, estimate)):
            row |= {"measured": peaks[0], "estimated": estimate, "error": None}
            print(f"| {ranks} | `{row['case']}` | {peaks[0]} | {estimate} | |", flush=True)
        else:
            peak = max(peaks)
            row |= {"measured": peak, "estimated": estimate, "error": estimate / peak - 1}
            shown = f"{peak / 2**20:.2f} | {estimate / 2**20:.2f} | {row['error']:+.1%}"
            print(f"| {ranks} | `{row['case']}` | {shown} |", flush=True)
        rows.append(row)
    return rows


def _launch(path: Path, ranks: int, numbers: list[int], *flags: str) -> list[list[Any]]:
    """What each of these ranks says of each case."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = [ROOT, ROOT / "entrypoints", ROOT / "entrypoints" / "job", *os.environ.get("PYTHONPATH", "").split(":")]
    env = {
        **os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in paths if str(p)), "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
        **({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if ranks > 1 else {}),
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", __file__, "--cases", str(path), *flags]
    started = [
        subprocess.Popen(
            command, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )
        for rank in numbers
    ]  # fmt: skip
    return [json.loads(process.communicate()[0].strip().splitlines()[-1]) for process in started]


def _run(cases: list[list[str]], estimate: bool) -> None:
    """As one rank: measure or estimate each case, print the list, and end."""
    from cloudtrain_trainer.memory.alone import World
    from cloudtrain_trainer.ranks import Ranks
    from tests.support.step_memory import estimated, measured

    size, port, said = int(os.environ["WORLD_SIZE"]), int(os.environ.get("MASTER_PORT", "0")), list[Any]()
    for number, case in enumerate(cases):
        if port:
            os.environ["MASTER_PORT"] = str(port + number)  # the store of the one before may not be gone yet
        try:
            said.append(estimated(case, World(size, size)) if estimate else measured(case, Ranks(600)))
        except Exception as error:  # noqa: BLE001  (the other cases are measured all the same)
            said.append(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}")
    print("\n" + json.dumps(said), flush=True)
    os._exit(0)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "entrypoints"), str(ROOT / "entrypoints" / "job")]
    sys.exit(main())
