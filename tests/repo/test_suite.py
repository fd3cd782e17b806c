"""The suite itself: ids of tests are the same everywhere, and a test that hangs or loops fails
alone, by its name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import pytest_make_parametrize_id
from tests.repo.tools import ROOT
from tests.support import machine
from tests.support.limits import HANG_SECONDS


@pytest.mark.parametrize(
    "value", [b"\x1f\x8b", bytearray(2), Path("folder")], ids=["bytes", "bytearray", "path"]
)
def test_a_parameter_whose_own_id_may_differ_between_workers_is_refused(value: object) -> None:
    """pytest-xdist checks in every run that all workers, each with its hash seed, collect the same."""
    with pytest.raises(pytest.UsageError, match="write ids for the parameter content"):
        pytest_make_parametrize_id(value, "content")
    pytest_make_parametrize_id("a text", "content")


def test_only_container_tests_see_the_engine_of_the_machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.environ["DOCKER_HOST"] == machine.NO_ENGINE
    assert "DOCKER_CONTEXT" not in os.environ

    monkeypatch.setattr(
        machine, "_MACHINE_VARIABLES", {"DOCKER_HOST": "unix:///run/an-engine.sock"}
    )
    request.node.add_marker("docker")
    machine.show_engine(request.node)
    assert os.environ["DOCKER_HOST"] == "unix:///run/an-engine.sock"


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
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "1",
        "-p",
        "tests.support.limits",
        "-p",
        "no:cacheprovider",
    ]
    argv += ["-o", f"timeout={HANG_SECONDS}", "-o", "timeout_method=signal", "test_here.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    process = subprocess.run(
        argv,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert "FAILED test_here.py::test_waits - Failed: Timeout (>1.0s)" in process.stdout
    assert (
        "FAILED test_here.py::test_loops - Failed: test_here.py::test_loops has taken 1 s of CPU"
        " time" in process.stdout
    )
    assert (
        "ERROR test_here.py::test_leaves_the_loop_to_another - Failed: took 2 s of CPU time with"
        " its processes" in process.stdout
    )
    assert "2 failed, 2 passed" in process.stdout, "no worker was lost, and the innocent ran"
