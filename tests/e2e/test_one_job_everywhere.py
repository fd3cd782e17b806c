"""One job and one sweep, untouched, on this machine, rehearsed, and in both clouds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_cloud_life import DIGITS, POLL
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
        cli = CommandLine(
            tmp_path / "workspace", env=env, modules=("cloudtrain.providers.azure.client",)
        )
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


PREPARED = """
name: prepared
entrypoint: train.py
args: {fail: 1}
setup:
  - echo prepared >> "$CLOUDTRAIN_OUTPUT_DIR/setup.txt"
  - test -d "$CLOUDTRAIN_MODEL_DIR" && echo both ready
limits: {restarts: 1}
"""
FAILS_ONCE = """
import os, sys
assert os.path.exists(os.environ["CLOUDTRAIN_OUTPUT_DIR"] + "/setup.txt")
sys.exit(0 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" else 3)
"""


@pytest.mark.parametrize("way", HERE)
def test_setup_lines_run_once_per_node_and_not_at_a_restart(cli: CommandLine, way: str) -> None:
    cli.write(job_yaml=PREPARED, train_py=FAILS_ONCE)
    result = cli.run("submit", *HERE[way], "--run-id", way)
    assert result.code == 0, result.err
    assert "restart 1 of 1" in cli.run("logs", way).out
    assert "[node 0] both ready" in cli.run("logs", way).out
    assert (cli.run_folder(way) / "output" / "setup.txt").read_text() == "prepared\n"


def test_a_failed_setup_line_is_named_with_its_output(cli: CommandLine) -> None:
    lines = '["true", "echo no such compiler; exit 4", "touch never"]'
    cli.write(job_yaml=f"entrypoint: train.py\nsetup: {lines}\n", train_py=FAILS_ONCE)
    result = cli.run("submit", "--run-id", "broken", "--provider", "local")
    assert result.code == 1
    assert "'echo no such compiler; exit 4' exited with code 4" in result.out + result.err
    assert cli.json("status", "broken")["error"]["message"].endswith("code 4\nno such compiler")


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
        cli = CommandLine(
            tmp_path / "workspace", env=env, modules=("cloudtrain.providers.azure.client",)
        )
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
