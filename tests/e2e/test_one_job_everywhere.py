"""One job and one sweep, untouched, on this machine, rehearsed, and in both clouds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cloud_life import DIGITS, POLL, SDK
from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import AzureCloud
from tests.support.aws_template import enforce
from tests.support.command_line import CommandLine

# One job.yaml, untouched, on this machine, rehearsed as either cloud, and in both clouds: the same
# parameters.

pytestmark = [pytest.mark.torchrun]

JOB = DIGITS.replace("nodes: 2", "nodes: 1") + 'env: {OMP_NUM_THREADS: "1"}\n'
"""The number of threads decides in which order sums are taken, and machines differ in their cores.
"""

HERE = {
    "local": ("--provider", "local"),
    "as-aws": ("--provider", "local", "--as", "aws"),
    "as-azure": ("--provider", "local", "--as", "azure"),
}


@pytest.mark.thorough
def test_one_job_trains_the_same_parameters_wherever_it_runs(tmp_path: Path) -> None:
    """In the clouds it is started as the end of each rehearsal says."""
    with Cloud() as aws, AzureCloud() as azure:
        env = {**aws.environment(), **azure.environment(), **POLL}
        cli = CommandLine(tmp_path / "workspace", env=env, modules=(SDK["azure"],))
        try:
            cli.write(job_yaml=JOB)
            results = {
                way: cli.run("submit", *flags, "--run-id", way) for way, flags in HERE.items()
            }
            assert {way: result.code for way, result in results.items()} == dict.fromkeys(HERE, 0)
            pay = {
                way: re.search(r"or pay: cloudtrain (.+)", results[way].err)
                for way in ("as-aws", "as-azure")
            }
            paid = [cli.json(*words[1].split())["run"] for words in pay.values() if words]
            status = [cli.json("status", run) for run in (*HERE, *paid)]
        finally:
            cli.close()
    contracts = [(entry["provider"], entry["contract"]) for entry in status]
    assert contracts == [
        ("local", "plain"),
        ("local", "sagemaker"),
        ("local", "azureml"),
        ("aws", "sagemaker"),
        ("azure", "azureml"),
    ]
    assert len({entry["result"]["parameters_sha256"] for entry in status}) == 1


# One sweep on this machine, rehearsed as a cloud, and in both clouds: the same trials, the same
# values.

SWEEP_JOB = """
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
            cli.write(job_yaml=SWEEP_JOB)
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
