"""The whole life of jobs in both clouds, imitated on loopback: the command line, the clouds' SDKs and
torchrun are the real ones.

Who submits to SageMaker, and jobs there, have only the rights that infra/aws grants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.containers import Container
from tests.support.aws_template import enforce
from tests.support.command_line import CommandLine, CommandResult
from tests.support.waiting import HANG_SECONDS, eventually

pytestmark = [pytest.mark.torchrun]

DIGITS = """
name: digits
args: {task: digits, strategy: ddp, epochs: 1}
resources: {nodes: 2, processes: 1}
checkpoints: {every: 1 s, keep: 2}
limits: {max_runtime: 1 h}
tags: {team: vision}
"""
LONG = """
name: long
entrypoint: train.py
resources: {nodes: 2, processes: 1}
limits: {max_runtime: 1 h}
"""
SLOW = """
import os, shutil, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from cloudtrain_job import emit
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"])
whole = [path for path in sorted(folder.glob("step-*")) if len(list(path.iterdir())) == 3]
step = int((whole[-1] / f"rank-{rank}.pt").read_text()) if whole else 0
if step and rank == 0:
    emit("resumed", step=step, epoch=0)
asked = torch.full((1,), float("once" in sys.argv))
signal.signal(signal.SIGTERM, lambda *_: asked.fill_(1))
ends = False
while not ends:
    step += 1
    time.sleep(0.05)
    stop = asked.clone()
    dist.all_reduce(stop)
    ends = bool(stop)
    if ends or step % 20 == 0:
        place = folder / f"step-{step:06}"
        place.mkdir(exist_ok=True)
        (place / f"rank-{rank}.pt").write_text(str(step))
        dist.barrier()
        if rank == 0:
            (place / "manifest.json").write_text("{}")
            emit("checkpoint", step=step, path=str(place))
        for old in sorted(folder.glob("step-*"))[:-2]:
            shutil.rmtree(old, ignore_errors=True)
while not asked:  # torchrun would wait for the other node, deaf to SIGTERM
    time.sleep(0.05)
dist.barrier()
Path(os.environ["CLOUDTRAIN_MODEL_DIR"], f"rank-{rank}").write_text(str(step))
"""
"""Saves as the trainer does, a part by each rank, keeps two, and goes on from there; most of its
time it sleeps.
"""
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


POLL = {"CLOUDTRAIN_AWS_POLL": "0.5", "CLOUDTRAIN_AZURE_POLL": "0.5"}
"""Seconds between two looks: client and cloud share the cores with the training."""
MACHINES = {"aws": ("ml.m5.xlarge, us-east-1", 0.23), "azure": ("Standard_DS3_v2, eastus", 0.29)}
"""The default machine with its place as they are shown, and its price by the hour."""


@dataclass(frozen=True)
class Life:
    """A cloud, a user of it, and the submit of a job."""

    provider: str
    cloud: Any
    cli: CommandLine
    digits: CommandResult

    def saved(self, run_id: str) -> list[str]:
        """Return the files among a run's checkpoints in the cloud's storage."""
        place = f"cloudtrain/runs/{run_id}/checkpoints/"
        return list(self.cloud.keys(place) if self.is_aws else self.cloud.blobs(place))

    @property
    def is_aws(self) -> bool:
        """Return whether it is SageMaker."""
        return self.provider == "aws"


@pytest.fixture(scope="module", params=["aws", "azure"])
def life(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Life]:
    """One cloud after the other."""
    provider = request.param
    Container.forked = True
    with Cloud() if provider == "aws" else AzureCloud() as cloud:
        if isinstance(cloud, Cloud):
            enforce(cloud)
        cli = new_command_line(provider, cloud, tmp_path_factory.mktemp(provider))
        cli.write(job_yaml=DIGITS)
        options = ("--set", "aws.tensorboard=true") if provider == "aws" else ()
        digits = cli.run("submit", "--provider", provider, "--run-id", "digits-1", *options)
        yield Life(provider, cloud, cli, digits)
        cli.close()
    Container.forked = False


def new_command_line(provider: str, cloud: Any, folder: Path) -> CommandLine:
    """Return the command line of a user of a cloud."""
    sdk = f"cloudtrain.providers.{provider}.client"
    environment = cloud.environment() | POLL
    return CommandLine(folder / "a folder with spaces", env=environment, modules=(sdk,))


def whole_checkpoints(names: list[str]) -> list[str]:
    """Of names in storage the folders that hold the parts of both ranks of a `LONG` job."""
    parts = {"manifest.json", *(f"rank-{rank}.pt" for rank in range(2))}
    folders = {name.rpartition("/")[0] for name in names}
    return [folder for folder in folders if all(f"{folder}/{part}" in names for part in parts)]


def test_a_job_is_followed_to_its_end_and_its_model_fetched(life: Life) -> None:
    cli = life.cli
    digits = life.digits
    machine, usd_per_hour = MACHINES[life.provider]
    assert digits.code == 0, digits.err
    for words in (f"2 x {machine}", "training", "epoch 1", "succeeded in", "USD at list price"):
        assert words in digits.err
    for node in ("0", "1"):
        assert f"[node {node}] succeeded after" in cli.run("logs", "digits-1").out
    assert "::cloudtrain::" not in cli.run("logs", "digits-1").out

    status = cli.json("status", "digits-1")
    size = [status[name] for name in ("state", "nodes", "processes", "ranks")]
    assert size == ["succeeded", 2, 1, 2]
    assert status["metrics"]["val_accuracy"] > 0.5
    bill = status["billing"]
    seconds = bill.get("billable_seconds", bill["training_seconds"])
    # Whole seconds are shown, parts of them cost.
    usd_per_second = 2 * usd_per_hour / 3600
    assert bill["usd"] == pytest.approx(seconds * usd_per_second, abs=usd_per_second)

    result = cli.run("fetch", "digits-1", "../result", "--checkpoints")
    assert result.code == 0, result.err
    for name in ("model", "checkpoints"):
        assert any((cli.folder / "result" / name).iterdir())


def test_another_machine_imports_the_run_and_its_logs(life: Life, tmp_path: Path) -> None:
    cli = life.cli
    other = new_command_line(life.provider, life.cloud, tmp_path)
    other.write(job_yaml=DIGITS)
    listed = other.json("list", "--provider", life.provider)
    assert "digits-1" in [run["run"] for run in listed]
    here, there = (line.json("status", "digits-1") for line in (cli, other))
    for fact in ("metrics", "billing"):
        assert there[fact] == here[fact]
    assert other.run("fetch", "digits-1", "../result").code == 0
    result = other.run("rerun", "digits-1")
    assert result.code == 2
    assert "was started on another machine" in result.err
    unknown = other.run("status", "nobody-knows", CLOUDTRAIN_PROVIDER=life.provider)
    assert unknown.code == 2


def test_an_interrupted_and_a_stopped_job_go_on_from_their_checkpoints(life: Life) -> None:
    cli = life.cli
    cli.write(job_yaml=LONG, train_py=SLOW)
    spot = ("--set", "resources.spot=true")
    files = ("--set", "aws.compress_output=false") if life.is_aws else ()
    cli.run("submit", "--provider", life.provider, "--run-id", "long-1", "--detach", *spot, *files)
    follower = cli.start("logs", "long-1", "-f")
    watcher = cli.start("wait", "long-1")
    eventually(lambda: whole_checkpoints(life.saved("long-1")))
    life.cloud.service.interrupt("long-1")
    resumed = cli.wait_for_event("long-1", lambda event: event["type"] == "resumed")
    assert resumed["step"] > 0

    stopped = cli.run("stop", "long-1")
    assert stopped.code == 0, stopped.err
    out, _ = follower.communicate(timeout=HANG_SECONDS)
    for node in (0, 1):
        assert f"[node {node}] stopped after" in out
    assert watcher.wait(timeout=HANG_SECONDS) == 5
    step = cli.json("status", "long-1")["checkpoint"]["step"]
    steps = {re.search(r"/step-\d+/", name) for name in life.saved("long-1")}
    kept = {match[0] for match in steps if match}
    assert 1 <= len(kept) <= 2, "what is asked to be kept, and no more"
    if life.is_aws:
        bill = cli.json("status", "long-1")["billing"]
        assert bill["billable_seconds"] < bill["training_seconds"], "spot is billed at less"
    else:  # nobody gets the file that tells the nodes to stop
        assert cli.json("status", "long-1")["reason"] == "stop requested"
        blobs = life.cloud.blobs("cloudtrain/runs/long-1/output/")
        assert [name for name in blobs if name.endswith(".cloudtrain-stop")]
    assert cli.run("fetch", "long-1", "../stopped", "--checkpoints").code == 0
    assert list((cli.folder / "stopped").rglob("*cloudtrain-stop*")) == []
    assert (cli.folder / "stopped" / "model" / "rank-0").read_text() == str(step)
    if life.is_aws:
        assert life.cloud.keys("cloudtrain/runs/long-1/output/model/")

    once = ("--set", "args=[once]", "--set", "resources.spot=false")
    new_run = cli.run("rerun", "long-1", *once, "--detach").out.strip()
    watcher = cli.start("wait", new_run)
    resumed = cli.wait_for_event(new_run, lambda event: event["type"] == "resumed")
    assert resumed["step"] == step
    watcher.wait(timeout=HANG_SECONDS)


def test_what_a_cloud_alone_does_with_a_job(life: Life) -> None:
    if life.is_aws:
        results = life.cli.json("status", "digits-1")["results"]
        assert results["model"].endswith("/cloudtrain/runs/digits-1/output/model.tar.gz")
        pytest.importorskip("tensorboard")
        board = life.cloud.keys("cloudtrain/runs/digits-1/tensorboard/")
        assert any("events.out.tfevents" in name for name in board)
    else:
        elsewhere = str(life.cli.folder / "elsewhere")
        words = ("-v", "list", "--provider", "azure")
        result = life.cli.run(*words, CLOUDTRAIN_DATA_DIR=elsewhere)
        assert "Request URL" in result.err, "the SDK's own lines"


def test_a_job_stops_with_a_checkpoint_before_its_time_limit(life: Life) -> None:
    if life.is_aws:
        pytest.skip("SageMaker itself ends a job with a notice")
    cli = life.cli
    cli.write(job_yaml="entrypoint: train.py\n", train_py=SAVES_ON_SIGTERM)
    for seconds in (10, 50, 250):  # a busy machine takes long until it listens
        run = f"late-{seconds}"
        limit = f"limits.max_runtime={seconds} s"
        words = ("submit", "--provider", "azure", "--run-id", run, "--set", limit)
        result = cli.run(*words)
        assert result.code == 5, result.err
        status = cli.json("status", run)
        if status["checkpoint"] and "cut off" not in status["reason"]:
            break
    assert "the time limit is over" in status["reason"]
    assert status["checkpoint"]["step"] == 7
    assert "the time limit is near: stopping with a checkpoint" in cli.run("logs", run).out


def test_a_cluster_that_the_workspace_lacks_is_named(life: Life) -> None:
    if life.is_aws:
        pytest.skip("SageMaker has no clusters of this kind")
    cli = life.cli
    cli.write(job_yaml=DIGITS)
    submit = ("submit", "--provider", "azure", "--detach")
    result = cli.run(*submit, "--set", "azure.compute=no-such-cluster")
    assert result.code == 3
    assert "has no compute no-such-cluster" in result.err
    assert "nothing was started" in result.err


def test_a_quota_a_role_and_an_image_that_fail_are_answered_with_what_to_do(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not life.is_aws:
        pytest.skip("Azure ML's refusals: tests/providers/azure")
    cli = life.cli
    cloud = life.cloud
    # Else these are denied, before anything is looked at.
    monkeypatch.setattr(cloud.account, "caller_policy", None)
    cli.write(job_yaml=DIGITS)
    cloud.account.quotas["ml.m5.xlarge"] = 1
    try:
        result = cli.run("submit", "--provider", "aws")
    finally:
        cloud.account.quotas.clear()
    assert result.code == 4
    assert "ResourceLimitExceeded" in result.err
    assert "Service Quotas > Amazon SageMaker > 'ml.m5.xlarge for training job usage'" in result.err
    role = "arn:aws:iam::123456789012:role/untrusted"
    result = cli.run("submit", "--provider", "aws", "--set", f"aws.role={role}")
    assert result.code == 4
    assert "must trust sagemaker.amazonaws.com" in result.err
    result = cli.run("submit", "--provider", "aws", "--set", "aws.bucket=nobodys-bucket")
    assert result.code == 4
    assert "check aws.bucket" in result.err
