"""Every benchmark starts as `make bench` and its README start it: by its path alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.tools import ROOT
from tests.support.limits import HANG_SECONDS

BENCHES = sorted((ROOT / "tests" / "bench").glob("bench_*.py"))


@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_a_benchmark_starts_by_its_path(bench: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, str(bench), "--help"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "--json" in result.stdout


@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_the_readme_says_what_a_benchmark_measures(bench: Path) -> None:
    assert f"| `{bench.name}` |" in (bench.parent / "README.md").read_text()
