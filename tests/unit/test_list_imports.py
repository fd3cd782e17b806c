"""What commands that only look at ended runs load: neither plans nor providers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.runs.store import RunStore, summaries
from tests.support.samples import born

EVENTS = (
    {"type": "submitted", "time": 101.0, "ref": {"pid": 1}},
    {"type": "ended", "time": 109.0, "state": "succeeded"},
)
PROGRAM = """
import sys
from cloudtrain.cli import cli
cli.main(sys.argv[1:], standalone_mode=False)
print("loaded", *sys.modules)
"""
OF_PLANS = {"pydantic", "yaml", "cloudtrain.planning.plan", "cloudtrain.planning.launch"}
OF_STATES = {"cloudtrain.api.run", "cloudtrain.runs.state", "cloudtrain.providers.protocol"}


@pytest.mark.parametrize(
    ("words", "kept_away"),
    [
        ("list", OF_PLANS | OF_STATES),
        ("list --all", OF_PLANS | OF_STATES),
        ("logs a-1", OF_PLANS),
    ],
)
def test_commands_that_look_at_ended_runs_load_no_plans(
    tmp_path: Path, words: str, kept_away: set[str]
) -> None:
    store = RunStore(tmp_path)
    born(store, "a-1", *EVENTS)
    summaries(store)
    command = [sys.executable, "-c", PROGRAM, "--data-dir", str(tmp_path), *words.split()]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    loaded = result.stdout.rpartition("loaded ")[2]
    assert "a-1" in result.stdout + result.stderr
    assert not kept_away & set(loaded.split())
