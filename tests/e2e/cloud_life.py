"""The whole life of jobs in a cloud, the same for every cloud: what test_aws_life.py and
test_azure_life.py run.

A cloud is imitated on loopback; the command line, its SDK and torchrun are the real ones.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.command_line import CommandLine, CommandResult
from tests.support.waiting import HANG_SECONDS, eventually

DIGITS = """
name: digits
args: {task: digits, strategy: ddp, epochs: 1}
resources: {nodes: 2, processes: 2}
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
"""
"""Saves as the trainer does, a part by each rank, keeps two, and goes on from there; most of its
time it sleeps.
"""
FAILING = """
import os, time
from cloudtrain_job import log_metrics
print("hello from", os.environ["RANK"], os.environ["TOKEN"][:5], flush=True)
log_metrics(step=1, loss=0.5)
os.makedirs("outputs", exist_ok=True)
open(f"outputs/{os.environ['RANK']}.txt", "w").write("beside the code")
if os.environ["RANK"] == "3":
    raise ValueError("the dog ate shard 3")
time.sleep(600)
"""
JOB = """
name: dog
entrypoint: train.py
resources: {nodes: 2, processes: 2}
limits: {max_runtime: 1 h}
"""
POLL = {"CLOUDTRAIN_AWS_POLL": "0.5", "CLOUDTRAIN_AZURE_POLL": "0.5"}
"""Seconds between two looks: client and cloud share the cores with the training."""
SDK = {"aws": "cloudtrain.providers.aws.client", "azure": "cloudtrain.providers.azure.client"}
"""Modules that import the SDKs of the clouds, by provider."""
TOKEN = "hunter2-never-write-this-down"


def whole_checkpoints(names: list[str]) -> list[str]:
    """Of names in storage the folders that hold the parts of both ranks of a `LONG` job."""
    parts = {"manifest.json", *(f"rank-{rank}.pt" for rank in range(2))}
    folders = {name.rpartition("/")[0] for name in names}
    return [folder for folder in folders if all(f"{folder}/{part}" in names for part in parts)]


class Life:
    """One cloud's jobs from submit to fetch. Fixtures of the module: `cloud`, `cli`, `digits` (the
    submit of one).
    """

    provider: ClassVar[str]
    machines: ClassVar[str]
    """How the default machine is shown, with its place."""
    usd_per_hour: ClassVar[float]
    """Of one machine, by our table."""

    def keep_secret(self, cloud: Any) -> str:
        """Put TOKEN where the cloud keeps secrets; how a spec names it."""
        raise NotImplementedError

    def saved(self, cloud: Any, run_id: str) -> list[str]:
        """Return the files among a run's checkpoints in the cloud's storage."""
        raise NotImplementedError

    def told(self, cloud: Any) -> str:
        """Return everything that the cloud received and returns about the failing job."""
        raise NotImplementedError

    def look_at_the_failed(self, cli: CommandLine, cloud: Any, run_id: str) -> None:
        """Check further facts of a failed run."""

    def look_at_the_stopped(self, cli: CommandLine, cloud: Any, run_id: str) -> None:
        """Check further facts of a stopped run."""

    def look_at_the_interrupted(self, cli: CommandLine, cloud: Any, run_id: str) -> None:
        """Check further facts of a run on spot machines that was interrupted, resumed and stopped."""

    def test_a_job_is_followed_to_its_end_and_its_model_fetched(
        self, cli: CommandLine, digits: CommandResult
    ) -> None:
        assert digits.code == 0, digits.err
        for words in (self.machines, "training", "epoch 1", "succeeded in", "USD at list price"):
            assert words in digits.err
        for node in ("0", "1"):
            assert f"[node {node}] succeeded after" in cli.run("logs", "digits-1").out
        assert "::cloudtrain::" not in cli.run("logs", "digits-1").out

        status = cli.json("status", "digits-1")
        size = [status[name] for name in ("state", "nodes", "processes", "ranks")]
        assert size == ["succeeded", 2, 2, 4]
        assert status["metrics"]["val_accuracy"] > 0.5
        bill = status["billing"]
        seconds = bill.get("billable_seconds", bill["training_seconds"])
        # Whole seconds are shown, parts of them cost.
        usd_per_second = 2 * self.usd_per_hour / 3600
        assert bill["usd"] == pytest.approx(seconds * usd_per_second, abs=usd_per_second)

        result = cli.run("fetch", "digits-1", "../result", "--checkpoints")
        assert result.code == 0, result.err
        for name in ("model", "checkpoints"):
            assert any((cli.folder / "result" / name).iterdir())

    def test_another_machine_imports_the_run_and_its_logs(
        self, cli: CommandLine, digits: CommandResult, cloud: Any, tmp_path: Path
    ) -> None:
        folder = tmp_path / "other"
        other = CommandLine(folder, env=cloud.environment(), modules=(SDK[self.provider],))
        other.write(job_yaml=DIGITS)
        listed = other.json("list", "--provider", self.provider)
        assert "digits-1" in [run["run"] for run in listed]
        here, there = (line.json("status", "digits-1") for line in (cli, other))
        for fact in ("metrics", "billing"):
            assert there[fact] == here[fact]
        assert other.run("fetch", "digits-1", "../result").code == 0
        result = other.run("rerun", "digits-1")
        assert result.code == 2
        assert "was started on another machine" in result.err
        unknown = other.run("status", "nobody-knows", CLOUDTRAIN_PROVIDER=self.provider)
        assert unknown.code == 2

    def test_a_failing_job_names_the_rank_the_reason_and_keeps_the_secret(
        self, cli: CommandLine, cloud: Any
    ) -> None:
        place = self.keep_secret(cloud)
        cli.write(
            job_yaml=f'{JOB}secrets: {{TOKEN: {{{self.provider}: "{place}"}}}}\n', train_py=FAILING
        )
        result = cli.run("submit", "--provider", self.provider, "--run-id", "dog-1")
        assert result.code == 1, result.err
        assert "dog-1 failed after" in result.err
        assert "rank 3 (node 1) raised ValueError: the dog ate shard 3" in result.err
        assert f"hello from 3 {TOKEN[:5]}" in cli.run("logs", "dog-1", "--rank", "3").out
        assert TOKEN not in self.told(cloud)
        for path in cli.run_folder("dog-1").rglob("*"):
            if path.is_file():
                assert TOKEN.encode() not in path.read_bytes(), path
        self.look_at_the_failed(cli, cloud, "dog-1")

    def test_a_stop_leaves_a_checkpoint_in_the_cloud_and_a_second_job_resumes_from_it(
        self, cli: CommandLine, cloud: Any
    ) -> None:
        cli.write(job_yaml=LONG, train_py=SLOW)
        cli.run("submit", "--provider", self.provider, "--run-id", "long-1", "--detach")
        follower = cli.start("logs", "long-1", "-f")
        watcher = cli.start("wait", "long-1")
        cli.wait_for_event("long-1", lambda event: event["type"] == "checkpoint")
        stopped = cli.run("stop", "long-1")
        assert stopped.code == 0, stopped.err
        out, _ = follower.communicate(timeout=HANG_SECONDS)
        assert "[node 0] stopped after" in out
        assert "[node 1] stopped after" in out
        assert watcher.wait(timeout=HANG_SECONDS) == 5
        step = cli.json("status", "long-1")["checkpoint"]["step"]
        steps = {re.search(r"/step-\d+/", name) for name in self.saved(cloud, "long-1")}
        assert 1 <= len({step[0] for step in steps if step}) <= 2, (
            "what is asked to be kept, and no more"
        )
        self.look_at_the_stopped(cli, cloud, "long-1")
        new_run = cli.run("rerun", "long-1", "--set", "args=[once]", "--detach").out.strip()
        watcher = cli.start("wait", new_run)
        resumed = cli.wait_for_event(new_run, lambda event: event["type"] == "resumed")
        assert resumed["step"] == step
        watcher.wait(timeout=HANG_SECONDS)

    def test_after_a_spot_interruption_training_goes_on_from_the_checkpoint(
        self, cli: CommandLine, cloud: Any
    ) -> None:
        cli.write(job_yaml=LONG, train_py=SLOW)
        spot = ("--set", "resources.spot=true")
        cli.run("submit", "--provider", self.provider, "--run-id", "spot-1", "--detach", *spot)
        watcher = cli.start("wait", "spot-1")
        eventually(lambda: whole_checkpoints(self.saved(cloud, "spot-1")))
        cloud.service.interrupt("spot-1")
        resumed = cli.wait_for_event("spot-1", lambda event: event["type"] == "resumed")
        assert resumed["step"] > 0
        assert cli.run("stop", "spot-1").code == 0
        assert watcher.wait(timeout=HANG_SECONDS) == 5
        self.look_at_the_interrupted(cli, cloud, "spot-1")
