"""One job.yaml, untouched, on this machine, rehearsed as either cloud, and in both clouds: the same
parameters.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.cloud_life import DIGITS, POLL, SDK
from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import AzureCloud
from tests.support.command_line import CommandLine

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
