"""How far forecasts are from the end: real runs, each forecast from what it had reported after 30 s
of about 5 minutes.

    .venv/bin/python tests/bench/bench_forecast.py [--at-once 4] [--scale 0.2] [--keep FOLDER] [--json FILE]
    .venv/bin/python tests/bench/bench_forecast.py --replay FOLDER

Runs of the shared trainer and of a program of its own (forecast_programs.py), all with something
else that changes the time of their steps. Most wait where a GPU would compute, so that they slow
each other little. The forecast is made as `cloudtrain status` makes it, from the events that the
run had sent by then. `--keep` copies the events of the runs, and `--replay` forecasts from such
copies again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "entrypoints"), str(ROOT / "entrypoints" / "job")]

PROGRAMS = Path(__file__).with_name("forecast_programs.py")
PROGRAM_NAMES = "trainer", "script"
TRAINER = (
    "constant",
    "evaluation",
    "loader",
    "checkpoints",
    "frequent-evaluation",
    "busy",
    "lengths",
    "warm-up",
)
SCRIPT = (
    "constant",
    "announced",
    "lengths",
    "seldom",
    "checkpoints",
    "warm-up",
    "untold",
    "evaluation",
)
RUNS = [
    (program, kind)
    for pair in zip(TRAINER, SCRIPT, strict=True)
    for program, kind in zip(PROGRAM_NAMES, pair, strict=True)
]
HARD = [
    *(("trainer", kind) for kind in ("erratic-loader", "erratic-lengths")),
    *(("script", kind) for kind in ("growing", "sorted", "stalls", "erratic-lengths")),
]
"""What 30 s tell little of: steps that change later, and steps that differ by more than half of
their mean.
"""
LENGTH = 300.0
AT = 30.0
"""Seconds of a run, and of the part of it that is seen."""
CLOSE = 0.1
"""A forecast counts as right if it is off by so much of the time at most."""

ONE_SUBMITS = threading.Lock()
"""A submit imports modules under names of its own: not for several threads."""


@dataclass(frozen=True)
class Outcome:
    """One run, and its forecast."""

    program: str
    kind: str
    seconds: float
    """That it took, from its start to its end."""
    low: float = 0.0
    likely: float = 0.0
    """0: no forecast was made."""
    high: float = 0.0

    @property
    def error(self) -> float:
        """Of the likely time, as a part of the real one."""
        return self.likely / self.seconds - 1

    @property
    def is_inside(self) -> bool:
        """Whether the real time is in the interval."""
        return self.low <= self.seconds <= self.high


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="how many [20]")
    parser.add_argument(
        "--at-once", type=int, default=4, metavar="N", help="how many of them at a time [4]"
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="X",
        help="shorter runs and sights, for tries [1]",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the runs [0]")
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="only runs with this in their name"
    )
    parser.add_argument("--hard", action="store_true", help="runs of which 30 s tell little")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="copy the events of the runs there"
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FOLDER", help="run nothing: forecast from events kept there"
    )
    parser.add_argument(
        "--of-training",
        action="store_true",
        help="count those 30 s from the first step, not the start",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    if options.replay:
        found = [replayed(path, options) for path in sorted(options.replay.glob("*.jsonl"))]
    else:
        found = run_all(options)
    print(table(found))
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    return 0


def run_all(options: argparse.Namespace) -> list[Outcome]:
    """All runs, so many at a time; they end with this program."""
    from cloudtrain.providers.local.lifeline import runs_end_with_this_process

    wanted = [each for each in (HARD if options.hard else RUNS) if options.only in "-".join(each)]
    jobs = [(wanted[number % len(wanted)], options.seed + number) for number in range(options.runs)]
    found: list[Outcome] = []
    with (
        runs_end_with_this_process(),
        tempfile.TemporaryDirectory(
            prefix="cloudtrain-bench-forecast-", ignore_cleanup_errors=True
        ) as folder,
        ThreadPoolExecutor(options.at_once) as pool,
    ):
        for task in as_completed([pool.submit(run, Path(folder), job, options) for job in jobs]):
            found.append(task.result())
            print(row(found[-1]), file=sys.stderr, flush=True)
    return found


def run(folder: Path, job: tuple[tuple[str, str], int], options: argparse.Namespace) -> Outcome:
    """One run by the local provider, to its end. `job`: program, kind and seed."""
    import cloudtrain

    (program, kind), seed = job
    seconds = LENGTH * options.scale
    name = f"{program}-{kind}-{seed}"
    source = folder / name
    source.mkdir()
    shutil.copy(PROGRAMS, source / "programs.py")
    arguments = {"task": "programs:task", "strategy": "single"}
    if kind == "checkpoints":
        arguments["checkpoint-every"] = f"{max(1, round(seconds / 20))} s"
    spec = {
        **({"args": arguments} if program == "trainer" else {"entrypoint": "programs.py"}),
        "name": "forecast",
        "resources": {"gpus": 0, "processes": 1},
        "env": {
            "FORECAST_KIND": kind, "FORECAST_SECONDS": str(seconds), "FORECAST_SEED": str(seed), "OMP_NUM_THREADS": "1",
        },
    }  # fmt: skip
    (source / "job.yaml").write_text(json.dumps(spec))
    with ONE_SUBMITS:
        plan = cloudtrain.plan(
            cloudtrain.load(source / "job.yaml"), "local", data_dir=str(folder / "data")
        )
        submitted = cloudtrain.submit(plan)
    state = submitted.wait()
    if state.state != "succeeded":
        raise SystemExit(f"{name}: {state.state}: {state.reason}")
    events = submitted.folder.events_file
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(events, options.keep / f"{name}-{int(time.time())}.jsonl")
    return outcome_of(program, kind, events, AT * options.scale, options.of_training)


def replayed(path: Path, options: argparse.Namespace) -> Outcome:
    """The forecast from events that were kept, after as long as their runs were seen."""
    program, _, rest = path.stem.partition("-")
    return outcome_of(
        program, rest.rsplit("-", 2)[0], path, AT * options.scale, options.of_training
    )


def outcome_of(program: str, kind: str, path: Path, at: float, of_training: bool) -> Outcome:
    """What was forecast after `at` seconds of a run, or of its training, and what it took."""
    from cloudtrain.runs.events import parse
    from cloudtrain.runs.fold import fold
    from cloudtrain.runs.forecast import forecast

    events = [event for event in map(parse, path.read_bytes().splitlines()) if event is not None]
    whole = fold("run", events)
    now = at + (whole.laps.first if of_training else whole.started)
    made = forecast(fold("run", (event for event in events if event.time <= now)), now=now)
    seconds = whole.ended - whole.started
    if made is None:
        return Outcome(program, kind, seconds)
    return Outcome(program, kind, seconds, made.total.low, made.total.likely, made.total.high)


def row(each: Outcome) -> str:
    """A line of the table."""
    forecast = (
        f"{each.likely:.1f} s | {each.low:.1f} to {each.high:.1f} | {each.error:+.1%} | "
        if each.likely
        else ""
    )
    inside = "yes" if each.is_inside else "no"
    return (
        f"| {each.program} {each.kind} | {each.seconds:.1f} s |"
        f" {forecast or 'none | | | '}{inside} |"
    )


def table(found: list[Outcome]) -> str:
    """All runs, and how many were right."""
    lines = [
        "| run | took | forecast | interval | error | inside |",
        "|---|---|---|---|---|---|",
        *map(row, found),
    ]
    close = sum(bool(each.likely) and abs(each.error) <= CLOSE for each in found)
    inside = sum(each.is_inside for each in found)
    widths = sorted((each.high - each.low) / each.likely for each in found if each.likely)
    width = f"; median width {widths[len(widths) // 2]:.0%} of the forecast" if widths else ""
    return "\n".join(
        [*lines, "", f"{close} of {len(found)} within 10 %, {inside} in the interval{width}"]
    )


if __name__ == "__main__":
    sys.exit(main())
