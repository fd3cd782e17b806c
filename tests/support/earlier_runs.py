"""Run folders as version 0.1.0 wrote them, put where a test's client finds them.

They were written by that version itself: two local runs, two rehearsals, and on imitations of both
clouds a job that was still in its queue and one that had succeeded; each cloud's jobs once more as
another machine has taken them up. What only made sense on that machine (locks, process ids) is left
out.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

STORED = Path(__file__).resolve().parents[1] / "data" / "runs_of_0_1_0"


def earlier_runs(kind: str, data_dir: Path, job: Path) -> str:
    """Put the runs of a kind (`local`, `aws`, `aws-adopted`, …) into a data folder, which is
    returned as text.

    `job`: the folder that they were submitted from; the program and the input that they name are
    made there.
    """
    shutil.copytree(STORED / kind, data_dir / "runs")
    values = {"@DATA@": str(data_dir), "@JOB@": str(job), "@PYTHON@": sys.executable}
    for file in (data_dir / "runs").rglob("*"):
        if file.is_file():
            text = file.read_text()
            for placeholder, value in values.items():
                text = text.replace(placeholder, value)
            file.write_text(text)
    (job / "data").mkdir(parents=True, exist_ok=True)
    (job / "data" / "a.txt").write_text("1\n")
    (job / "train.py").write_text("print('never run')\n")
    return str(data_dir)
