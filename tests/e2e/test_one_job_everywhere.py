"""One job.yaml, untouched, on this machine, rehearsed as either cloud, and in both clouds: the same parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cloud_life import DIGITS
from tests.e2e.workbench import Bench
from tests.loopback.aws.cloud import Cloud
from tests.loopback.azure.cloud import AzureCloud

pytestmark = [pytest.mark.torchrun]

JOB = DIGITS.replace("processes: 2", "processes: 1") + 'env: {OMP_NUM_THREADS: "1"}\n'
"""The number of threads decides in which order sums are taken, and machines differ in their cores."""

WAYS = {
    "local": ("--provider", "local"),
    "as-aws": ("--provider", "local", "--as", "aws"),
    "as-azure": ("--provider", "local", "--as", "azure"),
    "aws": ("--provider", "aws"),
    "azure": ("--provider", "azure"),
}


def test_one_job_trains_the_same_parameters_wherever_it_runs(tmp_path: Path) -> None:
    with Cloud() as aws, AzureCloud() as azure:
        bench = Bench(tmp_path / "bench", env={**aws.environment(), **azure.environment()})
        try:
            bench.write(job_yaml=JOB)
            codes = {way: bench.run("submit", *flags, "--run-id", f"run-{way}") for way, flags in WAYS.items()}
            assert {way: said.code for way, said in codes.items()} == dict.fromkeys(WAYS, 0)
            status = {way: bench.json("status", f"run-{way}") for way in WAYS}
            contracts = {way: told["contract"] for way, told in status.items()}
            results = {told["result"]["parameters_sha256"] for told in status.values()}
        finally:
            bench.close()
    assert contracts == {
        "local": "plain",
        "as-aws": "sagemaker",
        "as-azure": "azureml",
        "aws": "sagemaker",
        "azure": "azureml",
    }
    assert len(results) == 1
