"""One sweep on this machine, rehearsed as a cloud, and in both clouds: the same trials, the same
values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cloud_life import POLL, SDK
from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import AzureCloud
from tests.support.aws_template import enforce
from tests.support.command_line import CommandLine

pytestmark = [pytest.mark.torchrun]

JOB = """
name: digits
args: {epochs: 1, seed: 7}
env: {OMP_NUM_THREADS: "1"}
limits: {max_runtime: 10 min}
sweep:
  objective: {metric: val_accuracy, goal: maximize}
  method: grid
  space: {lr: choice(1e-3, 1e-2)}
  parallel: 2
"""
WAYS = {
    "local": ("--provider", "local"),
    "as-aws": ("--provider", "local", "--as", "aws"),
    "aws": ("--provider", "aws"),
    "azure": ("--provider", "azure"),
}


def told_of(sweep: dict[str, Any]) -> dict[float, tuple[str, int, float]]:
    """For each learning rate: how its trial ended, how often it reported, and its last value."""
    return {
        trial["parameters"]["lr"]: (trial["state"], len(trial["curve"]), trial["value"])
        for trial in sweep["trials"]
    }


@pytest.mark.thorough
def test_a_grid_has_the_same_trials_with_the_same_values_wherever_it_runs(tmp_path: Path) -> None:
    with Cloud() as aws, AzureCloud() as azure:
        enforce(aws)
        env = {**aws.environment(), **azure.environment(), **POLL}
        cli = CommandLine(tmp_path / "workspace", env=env, modules=(SDK["azure"],))
        try:
            cli.write(job_yaml=JOB)
            results = {
                way: cli.run("sweep", *flags, "--sweep-id", way) for way, flags in WAYS.items()
            }
            statuses = {way: cli.json("status", way) for way in WAYS}
            listed = cli.run("list").out
        finally:
            cli.close()
    assert [(way, result.err) for way, result in results.items() if result.code] == []
    trials = {way: told_of(sweep) for way, sweep in statuses.items()}
    assert trials["local"].keys() == {1e-3, 1e-2}
    assert {state for state, *_ in trials["local"].values()} == {"completed"}
    assert all(trial == trials["local"] for trial in trials.values())
    assert statuses["aws"]["spent_usd"] > 0
    assert listed.count("2/2 trials") == len(WAYS)
