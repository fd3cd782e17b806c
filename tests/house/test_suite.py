"""The suite itself: every worker collects the same tests, and a test that hangs or loops fails alone, by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.house.collected import UNWRITTEN
from tests.house.tools import ROOT
from tests.support.limits import HANG_SECONDS


def collect(folder: Path, hash_seed: int) -> list[str]:
    """The ids that one worker of that hash seed would collect."""
    folder.mkdir()
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "tests.house.collected"]
    argv += ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), str(ROOT / "tests")]
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    errors = [line for line in done.stdout.splitlines() if ".py: " not in line]
    assert done.returncode == 0, "\n".join(errors) + done.stderr
    ids: list[str] = json.loads((folder / "collected.json").read_text())
    return ids


def test_all_workers_collect_the_same_tests_and_every_id_is_written(tmp_path: Path) -> None:
    began = time.time()
    first = collect(tmp_path / "first", hash_seed=1)
    assert time.time() - began > 1, "the second collection must begin in another second of the clock"
    second = collect(tmp_path / "second", hash_seed=2)
    assert first == second
    assert [name for name in first if UNWRITTEN in name or tempfile.gettempdir() in name or str(ROOT) in name] == []
    assert len(first) == len(set(first)) > 1000


TESTS = """
import subprocess, sys, time
import pytest

@pytest.mark.timeout(1)
def test_waits(): time.sleep(600)

@pytest.mark.cpu_seconds(1)
def test_loops():
    while True: pass

@pytest.mark.cpu_seconds(1)
def test_leaves_the_loop_to_another():
    loop = "import time\\nwhile time.process_time() < 2: pass"
    subprocess.run([sys.executable, "-c", loop])

def test_within_its_limits_passes(): pass
"""


def test_what_hangs_or_loops_fails_by_name_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "test_here.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "tests.support.limits", "-p", "no:cacheprovider"]
    argv += ["-o", f"timeout={HANG_SECONDS}", "-o", "timeout_method=signal", "test_here.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(
        argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert "FAILED test_here.py::test_waits - Failed: Timeout (>1.0s)" in done.stdout
    assert "FAILED test_here.py::test_loops - Failed: test_here.py::test_loops has taken 1 s of CPU time" in done.stdout
    assert (
        "ERROR test_here.py::test_leaves_the_loop_to_another - Failed: took 2 s of CPU time with its processes"
        in done.stdout
    )
    assert "2 failed, 2 passed" in done.stdout, "no worker was lost, and the innocent ran"
