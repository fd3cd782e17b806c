"""Cost of a printed line: two ranks print 60 MB, against torchrun, which also keeps and shows the
output: `python tests/bench/bench_output.py`.

Then `cloudtrain logs --rank 1` of that run against grep. Both write into a file.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import BIN, Comparison, compare, cost, options, report, workplace

LINES = 200_000
"""Lines of each rank, of about 150 bytes."""
SCRIPT = f"""for number in range({LINES}):
    print(number, "x" * 140)
"""
JOB = "name: output\nentrypoint: train.py\nresources: {processes: 2}\n"
RUN = "output-1"


def measure(place: Path, env: dict[str, str], parsed: argparse.Namespace) -> list[Comparison]:
    """Return the rows."""
    job = place / "job"
    job.mkdir()
    (job / "train.py").write_text(SCRIPT)
    (job / "job.yaml").write_text(JOB)
    submit: list[str | Path] = [BIN / "cloudtrain", "submit"]
    torchrun: list[str | Path] = [BIN / "torchrun", "--standalone", "--nproc-per-node=2"]
    torchrun += ["--tee", "3", "--log-dir", place / "tee", "train.py"]

    reference = partial(cost, torchrun, env, job)
    rows = []
    for what, words, bar in (("attached", [], 1.5), ("detached", ["--detach"], 1.2)):
        command = [*submit, *words]
        row = Comparison(f"two ranks print 60 MB, {what}", "`torchrun --tee 3`", {"cpu": bar})
        rows.append(compare(row, partial(cost, command, env, job), reference, parsed.rounds))

    cost([*submit, "--run-id", RUN], env, job)
    log = place / "data" / "runs" / RUN / "logs" / "node-0.log"
    logs: list[str | Path] = [BIN / "cloudtrain", "logs", RUN, "--rank", "1"]
    grep: list[str | Path] = ["grep", "-F", "[rank 1]", log]
    row = Comparison("`logs --rank 1` of it", "`grep` of the file", {"cpu": None})
    rows.append(compare(row, partial(cost, logs, env, job), partial(cost, grep, env, job), 3))
    return rows


def main() -> None:
    """Print the rows."""
    parsed = options(rounds=5)
    with workplace() as (place, env):
        rows = measure(place, env, parsed)
    report(rows, parsed.json)


if __name__ == "__main__":
    main()
