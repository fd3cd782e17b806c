"""`cloudtrain list` and `list --all` with 10,000 ended runs against reading one file per run: `python
tests/bench/bench_list.py`.

The reference is strict: it reads one short line per run (the values that the list shows), imports
only json and os, and prints nothing. The first call finds no index. Later calls find an index of
all runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cloudtrain.api import jobs as api
from cloudtrain.runs.files import as_text
from cloudtrain.runs.fold import fold
from cloudtrain.runs.store import RunStore
from cloudtrain.runs.summary import summary_of
from tests.bench.measure import (
    BIN,
    Comparison,
    Cost,
    Counted,
    compare,
    cost,
    count,
    options,
    report,
    workplace,
)
from tests.support.samples import write_events

RUNS = 10_000
BAR = 0.5
LIMITS = {"list": 0.5, "list --all": 1.85}
"""Of instructions."""
READ = """import json
import os
import sys

found = []
with os.scandir(sys.argv[1]) as entries:
    for entry in entries:
        with open(f"{entry.path}/summary.json", "rb") as file:
            found.append(json.loads(file.read()))
assert len(found) == int(sys.argv[2])
"""


def fill(data_dir: Path, runs: int = RUNS) -> None:
    """Run folders as a short training of two ranks leaves them, and a one-line file in each for the
    reference.
    """
    job = api.load({"name": "digits", "entrypoint": "-m train", "resources": {"processes": 2}})
    plan = api.plan(job, "local", run_id="digits-0", data_dir=str(data_dir))
    store = RunStore(data_dir)
    documents = {"spec.yaml": plan.spec_text, "plan.json": as_text(plan.to_json())}
    documents["request.json"] = as_text(dict(api.render(plan).document))
    for number in range(runs):
        run_id = f"digits-{number:05}"
        time = 1.7e9 + 60 * number
        folder = store.create(run_id, documents)
        start = {
            "name": "digits",
            "provider": "local",
            "contract": "plain",
            "nodes": 1,
            "processes": 2,
            "arguments": {"epochs": 5, "lr": number / RUNS},
        }
        ranks = [
            {"type": "rank_started", "time": time + 3, "rank": rank, "local_rank": rank}
            for rank in range(2)
        ]
        metrics = [
            {
                "type": "metrics",
                "time": time + 4 + step,
                "rank": 0,
                "step": step,
                "values": {"loss": 1 / (step + 1)},
            }
            for step in range(5)
        ]
        write_events(
            folder,
            {"type": "submitting", "time": time, **start},
            {"type": "submitted", "time": time + 1, "ref": {"pid": number}},
            {"type": "node_started", "time": time + 2, "rank": -1, "node": 0},
            *ranks,
            *metrics,
            {
                "type": "ended",
                "time": time + 30,
                "state": ("succeeded", "failed", "stopped")[number % 3],
            },
        )
        line = json.dumps(summary_of(fold(run_id, folder.events())), separators=(",", ":"))
        (folder.path / "summary.json").write_text(line + "\n")


def measure(place: Path, env: dict[str, str], parsed: argparse.Namespace) -> list[Comparison]:
    """The rows: without an index, then with one."""
    data_dir = place / "data"
    fill(data_dir)
    (place / "read.py").write_text(READ)
    list_command: list[str | Path] = [sys.executable, BIN / "cloudtrain", "list", "--all"]
    read_command: list[str | Path] = [
        sys.executable,
        place / "read.py",
        data_dir / "runs",
        str(RUNS),
    ]

    def cold() -> Cost:
        (data_dir / "index.jsonl").unlink(missing_ok=True)
        return cost(list_command, env, place)

    def reference() -> Cost:
        return cost(read_command, env, place)

    label = f"`cloudtrain list --all`, {RUNS} runs"
    bars = {"wall": BAR, "cpu": BAR}
    first = Comparison(f"{label}, first call (no index)", "reading one line per run", bars)
    later = Comparison(f"{label}, later calls", "reading one line per run", bars)
    return [
        compare(later, lambda: cost(list_command, env, place), reference, parsed.rounds),
        compare(first, cold, reference, max(3, parsed.rounds // 2), warm_ups=1),
    ]


def main() -> None:
    """Print the rows."""
    parsed = options(rounds=16)
    with workplace() as (place, env):
        if parsed.count:
            fill(place / "data")
            (place / "read.py").write_text(READ)
            theirs = (place / "read.py", place / "data" / "runs", str(RUNS))
            # Two lists at once that find no index would both write it.
            cost([sys.executable, BIN / "cloudtrain", "list"], env, place)
            rows = []
            for words, limit in LIMITS.items():
                what = f"`cloudtrain {words}`, {RUNS} runs"
                ours: list[str | Path] = [BIN / "cloudtrain", *words.split()]
                rows.append(Counted(what, tuple(ours), theirs, limit, BAR))

            sys.exit(count(rows, env, place))

        comparisons = measure(place, env, parsed)
    report(comparisons, parsed.json)


if __name__ == "__main__":
    main()
