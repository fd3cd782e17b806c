"""`.ci/run` with stand-ins for the linters and the engine: what it began it ends, however early it fails."""

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
    done = subprocess.run([".ci/run"], cwd=tmp_path, env=env, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 2
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[-2].startswith("test on unix:///nonexistent"), "first as on a bare machine"
    assert (tmp_path / "up").exists() == (docker == 0), "one that ran before goes on"
