"""The whole life of jobs on SageMaker, imitated on loopback, by the real command line, boto3 and torchrun."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.workbench import Bench, Result
from tests.loopback.cloud import Cloud

pytestmark = [pytest.mark.torchrun]

DIGITS = """
name: digits
args: {task: digits, strategy: ddp, epochs: 1}
resources: {nodes: 2, processes: 2}
checkpoints: {every: 1 s, keep: 2}
limits: {max_runtime: 1 h}
tags: {team: vision}
"""
FAILING = """
import os, time
from cloudtrain_job import log_metrics
print("hello from", os.environ["RANK"], os.environ["TOKEN"][:5], flush=True)
log_metrics(step=1, loss=0.5)
if os.environ["RANK"] == "3":
    raise ValueError("the dog ate shard 3")
time.sleep(600)
"""
JOB = """
name: dog
entrypoint: train.py
resources: {nodes: 2, processes: 2}
limits: {max_runtime: 1 h}
secrets: {TOKEN: {aws: "secretsmanager:token"}}
"""
TOKEN = "hunter2-never-write-this-down"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud() as made:
        yield made


@pytest.fixture(scope="module")
def bench(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("aws") / "a folder with spaces", env=cloud.environment())
    yield made
    made.close()


@pytest.fixture(scope="module")
def digits(bench: Bench) -> Result:
    bench.write(job_yaml=DIGITS)
    return bench.run("submit", "--provider", "aws", "--run-id", "digits-1")


def test_submit_follows_to_the_end(digits: Result) -> None:
    assert digits.code == 0, digits.err
    assert "2 x ml.m5.xlarge, us-east-1" in digits.err
    assert "training" in digits.err
    assert "epoch 1" in digits.err
    assert "succeeded in" in digits.err
    assert "billed, " in digits.err


def test_the_logs_of_both_nodes_are_there(bench: Bench, digits: Result) -> None:
    for node in ("0", "1"):
        said = bench.run("logs", "digits-1", "--node", node)
        assert f"[node {node}] succeeded after" in said.out
    assert "::cloudtrain::" not in bench.run("logs", "digits-1").out


def test_status_tells_metrics_money_and_places(bench: Bench, digits: Result) -> None:
    status = bench.json("status", "digits-1")
    assert (status["state"], status["nodes"], status["processes"], status["ranks"]) == ("succeeded", 2, 2, 4)
    assert status["metrics"]["val_accuracy"] > 0.5
    seconds = status["billing"]["billable_seconds"]
    assert status["billing"]["usd"] == pytest.approx(seconds / 3600 * 0.23 * 2, abs=1e-4)
    assert status["results"]["model"].endswith("/cloudtrain/runs/digits-1/output/model.tar.gz")


def test_fetch_brings_the_model(bench: Bench, digits: Result) -> None:
    said = bench.run("fetch", "digits-1", "../result", "--checkpoints")
    assert said.code == 0, said.err
    assert any((bench.folder / "result" / "model").iterdir())
    assert any((bench.folder / "result" / "checkpoints").iterdir())


def test_the_parameters_are_those_of_a_local_run(bench: Bench, digits: Result) -> None:
    bench.write(job_yaml=DIGITS)
    assert bench.run("submit", "--provider", "local", "--run-id", "local-1").code == 0
    local, remote = (bench.json("status", run)["result"] for run in ("local-1", "digits-1"))
    assert local["parameters_sha256"] == remote["parameters_sha256"]


def test_another_machine_adopts_the_run_and_its_logs(
    bench: Bench, digits: Result, cloud: Cloud, tmp_path: Path
) -> None:
    other = Bench(tmp_path / "other", env=cloud.environment())
    other.write(job_yaml=DIGITS)
    assert "digits-1" in [run["run"] for run in other.json("list", "--provider", "aws")]
    assert other.json("status", "digits-1")["metrics"] == bench.json("status", "digits-1")["metrics"]
    assert other.run("fetch", "digits-1", "../result").code == 0
    said = other.run("rerun", "digits-1")
    assert said.code == 2
    assert "was started on another machine" in said.err
    assert other.run("status", "nobody-knows", CLOUDTRAIN_PROVIDER="aws").code == 2


def test_a_failing_job_names_the_rank_the_reason_and_keeps_the_secret(bench: Bench, cloud: Cloud) -> None:
    cloud.client("secretsmanager").create_secret(Name="token", SecretString=TOKEN)
    bench.write(job_yaml=JOB, train_py=FAILING)
    said = bench.run("submit", "--provider", "aws", "--run-id", "dog-1")
    assert said.code == 1
    assert "dog-1 failed after" in said.err
    assert "rank 3 (node 1) raised ValueError: the dog ate shard 3" in said.err
    described = cloud.client("sagemaker").describe_training_job(TrainingJobName="dog-1")
    assert "the dog ate shard 3" in described["FailureReason"]
    assert f"hello from 3 {TOKEN[:5]}" in bench.run("logs", "dog-1", "--rank", "3").out
    assert TOKEN not in json.dumps(described, default=str)
    for path in bench.run_folder("dog-1").rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path


def test_a_stop_leaves_a_checkpoint_in_s3_and_a_second_job_resumes_from_it(bench: Bench, cloud: Cloud) -> None:
    bench.write(job_yaml=DIGITS)
    bench.run("submit", "--provider", "aws", "--run-id", "long-1", "--detach", "--set", "args.epochs=3000")
    follower = bench.begin("logs", "long-1", "-f")
    watcher = bench.begin("wait", "long-1")
    bench.await_event("long-1", lambda event: event["type"] == "progress" and event.get("epoch", 0) >= 2)
    stopped = bench.run("stop", "long-1")
    assert stopped.code == 5, stopped.err
    out, _ = follower.communicate(timeout=60)
    assert "[node 0] stopped after" in out
    assert "[node 1] stopped after" in out
    assert watcher.wait(timeout=60) == 5
    step = bench.json("status", "long-1")["checkpoint"]["step"]
    assert cloud.objects("cloudtrain/runs/long-1/checkpoints/")
    again = bench.run("rerun", "long-1", "--set", "args.epochs=3", "--detach").out.strip()
    watcher = bench.begin("wait", again)
    resumed = bench.await_event(again, lambda event: event["type"] == "resumed")
    assert resumed["step"] == step
    watcher.wait(timeout=90)


def test_after_a_spot_interruption_training_goes_on_from_the_checkpoint(bench: Bench, cloud: Cloud) -> None:
    bench.write(job_yaml=DIGITS)
    flags = ("--set", "resources.spot=true", "--set", "args.epochs=3000")
    bench.run("submit", "--provider", "aws", "--run-id", "spot-1", "--detach", *flags)
    watcher = bench.begin("wait", "spot-1")
    bench.await_event("spot-1", lambda event: event["type"] == "checkpoint")
    cloud.service.interrupt("spot-1")
    resumed = bench.await_event("spot-1", lambda event: event["type"] == "resumed")
    assert resumed["step"] > 0
    assert bench.run("stop", "spot-1").code == 5
    assert watcher.wait(timeout=60) == 5
    bill = bench.json("status", "spot-1")["billing"]
    assert bill["billable_seconds"] < bill["training_seconds"]


def test_a_quota_a_role_and_an_image_that_fail_are_answered_with_what_to_do(bench: Bench, cloud: Cloud) -> None:
    bench.write(job_yaml=DIGITS)
    cloud.account.quotas["ml.m5.xlarge"] = 1
    try:
        said = bench.run("submit", "--provider", "aws")
    finally:
        cloud.account.quotas.clear()
    assert said.code == 4
    assert "ResourceLimitExceeded" in said.err
    assert "Service Quotas > Amazon SageMaker > 'ml.m5.xlarge for training job usage'" in said.err
    role = "arn:aws:iam::123456789012:role/untrusted"
    said = bench.run("submit", "--provider", "aws", "--set", f"aws.role={role}")
    assert said.code == 4
    assert "must trust sagemaker.amazonaws.com" in said.err
    said = bench.run("submit", "--provider", "aws", "--set", "aws.bucket=nobodys-bucket")
    assert said.code == 4
    assert "look at aws.bucket" in said.err
