"""`.ci/run` and `.ci/versions` with stand-ins: what they begin they end, and a failure is theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.limits import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
ENGINE = """#!/bin/sh
case "$1" in
  start) sleep 1; touch up ;;
  stop) [ -e up ] && rm up ;;
esac
"""


MAKE = """#!/bin/sh
echo "$* on ${DOCKER_HOST:-the engine}" >> calls
[ "$1" != types ] || exit 2
"""
"""Fails while the engine is being started."""


@pytest.mark.parametrize("docker", [0, 1])
def test_an_engine_that_was_still_starting_is_ended(tmp_path: Path, docker: int) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    programs = {".ci/engine": ENGINE, "make": MAKE, "docker": f"#!/bin/sh\nexit {docker}\n"}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    del env["DOCKER_HOST"]
    process = subprocess.run([".ci/run"], cwd=tmp_path, env=env, timeout=HANG_SECONDS, check=False)
    assert process.returncode == 2
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-2].startswith("test on unix:///nonexistent"), "first as on a bare machine"
    assert (tmp_path / "up").exists() == (docker == 0), "one that ran before goes on"


@pytest.mark.parametrize("code", [0, 2])
def test_other_pythons_are_tested_where_they_are_installed(tmp_path: Path, code: int) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "versions", tmp_path / ".ci" / "versions")
    programs = {
        "make": f'#!/bin/sh\nmkdir -p .versions/3.12\necho "$*" >> calls\nexit {code}\n',
        "python3.12": "#!/bin/sh\nexit 0\n",
        "python3.13": "#!/bin/sh\nexit 127\n",  # as a stand-in of pyenv
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYENV_ROOT": str(tmp_path)}
    argv = [".ci/versions", "3.12", "3.13"]
    process = subprocess.run(
        argv,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )

    assert process.returncode == bool(code)
    assert ("failed on Python 3.12" in process.stderr) == bool(code)
    assert "Python 3.13 is not installed" in process.stdout
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("test PYTHON=python3.12 VENV=.versions/3.12 TESTS=tests/")
    assert not (tmp_path / ".versions").exists()
