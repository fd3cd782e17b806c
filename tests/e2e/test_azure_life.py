"""The whole life of jobs on Azure ML, imitated on loopback, by the real command line, azure-ai-ml
and torchrun.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cloud_life import DIGITS, POLL, SDK, TOKEN, Life
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.containers import Container
from tests.support.command_line import CommandLine, CommandResult

pytestmark = [pytest.mark.torchrun]

SAVES_ON_SIGTERM = """
import os, signal
from pathlib import Path
from cloudtrain_job import emit
def save(*_):
    place = Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "step-7")
    place.write_text("of step 7")
    emit("checkpoint", step=7, path=str(place))
    raise SystemExit
signal.signal(signal.SIGTERM, save)
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def cloud() -> Iterator[AzureCloud]:
    Container.forked = True
    with AzureCloud() as made:
        yield made
    Container.forked = False
    assert not made.account.unexpected_errors, "\n".join(made.account.unexpected_errors)


@pytest.fixture(scope="module")
def cli(cloud: AzureCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("azure") / "a folder with spaces"
    made = CommandLine(folder, env=cloud.environment() | POLL, modules=(SDK["azure"],))
    yield made
    made.close()


@pytest.fixture(scope="module")
def digits(cli: CommandLine) -> CommandResult:
    cli.write(job_yaml=DIGITS)
    return cli.run("submit", "--provider", "azure", "--run-id", "digits-1")


class TestAzureML(Life):
    provider = "azure"
    machines = "2 x Standard_DS3_v2, eastus"
    usd_per_hour = 0.29

    def keep_secret(self, cloud: Any) -> str:
        cloud.account.secrets["token"] = TOKEN
        return f"keyvault:{cloud.vault}/secrets/token"

    def saved(self, cloud: Any, run_id: str) -> list[str]:
        return list(cloud.blobs(f"cloudtrain/runs/{run_id}/checkpoints/"))

    def told(self, cloud: Any) -> str:
        details = cloud.service.jobs["dog-1"].details(cloud.account)
        assert "exited with status code 1" in json.dumps(details)
        return json.dumps([details, *(body for _, body in cloud.endpoint.sent)], default=str)

    def look_at_the_failed(self, cli: CommandLine, cloud: Any, run_id: str) -> None:
        """Only its files in ./outputs and ./logs of its working folder are stored."""
        artifacts = cloud.account.storage.create("azureml")
        top = f"ExperimentRun/dcid.{run_id}/"
        names = artifacts.names(f"{top}outputs/")
        assert f"{top}outputs/3.txt" in names
        assert artifacts.names(top) == sorted([*names, *artifacts.names(f"{top}user_logs/")])
        assert cli.run("fetch", run_id, "../dog").code == 0
        assert (
            cli.folder / "dog" / "output" / "outputs" / "3.txt"
        ).read_text() == "beside the code"

    def look_at_the_stopped(self, cli: CommandLine, cloud: Any, run_id: str) -> None:
        """It is not a failure, and fetch does not bring the file that tells the nodes to stop."""
        status = cli.json("status", run_id)
        assert (status["state"], status["reason"], status["error"]) == (
            "stopped",
            "stop was asked",
            None,
        )
        blobs = cloud.blobs(f"cloudtrain/runs/{run_id}/output/")
        assert [name for name in blobs if name.endswith(".cloudtrain-stop")]
        assert cli.run("fetch", run_id, "../stopped", "--checkpoints").code == 0
        assert list((cli.folder / "stopped").rglob("*cloudtrain-stop*")) == []


def test_verbose_shows_what_the_sdk_says(cli: CommandLine, digits: CommandResult) -> None:
    result = cli.run(
        "-v", "list", "--provider", "azure", CLOUDTRAIN_DATA_DIR=str(cli.folder / "elsewhere")
    )
    assert "Request URL" in result.err


def test_a_job_stops_with_a_checkpoint_before_its_time_limit(cli: CommandLine) -> None:
    cli.write(job_yaml="entrypoint: train.py\n", train_py=SAVES_ON_SIGTERM)
    for seconds in (25, 250):  # a busy machine takes long until it listens
        run = f"late-{seconds}"
        limit = f"limits.max_runtime={seconds} s"
        result = cli.run("submit", "--provider", "azure", "--run-id", run, "--set", limit)
        assert result.code == 5, result.err
        status = cli.json("status", run)
        if status["checkpoint"]:
            break
    assert "the time limit is over" in status["reason"]
    assert status["checkpoint"]["step"] == 7
    assert "the time limit is near: stopping with a checkpoint" in cli.run("logs", run).out


def test_a_cluster_that_the_workspace_lacks_is_named(cli: CommandLine) -> None:
    cli.write(job_yaml=DIGITS)
    submit = ("submit", "--provider", "azure", "--detach")
    result = cli.run(*submit, "--set", "azure.compute=no-such-cluster")
    assert result.code == 3
    assert "has no compute no-such-cluster" in result.err
    assert "nothing was started" in result.err
