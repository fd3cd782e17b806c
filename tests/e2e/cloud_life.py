"""The whole life of jobs in a cloud, the same for every cloud: what test_aws_life.py and test_azure_life.py run.

A cloud is imitated on loopback; the command line, its SDK and torchrun are the real ones.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.limits import HANG_SECONDS
from tests.support.waiting import eventually
from tests.support.workbench import Bench, Result

DIGITS = """
name: digits
args: {task: digits, strategy: ddp, epochs: 1}
resources: {nodes: 2, processes: 2}
checkpoints: {every: 1 s, keep: 2}
limits: {max_runtime: 1 h}
tags: {team: vision}
"""
LONG = ("--set", "resources.processes=1", "--set", "args.epochs=3000")
"""Of two ranks, to be ended before its end: four wait for two cores, mostly."""
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
TOKEN = "hunter2-never-write-this-down"


def whole_checkpoints(names: list[str]) -> list[str]:
    """Of names in storage the folders that hold the parts of both ranks of a `LONG` job."""
    parts = {"manifest.json", *(f"rank-{rank}.pt" for rank in range(2))}
    folders = {name.rpartition("/")[0] for name in names}
    return [folder for folder in folders if all(f"{folder}/{part}" in names for part in parts)]


class Life:
    """One cloud's jobs from submit to fetch. Fixtures of the module: `cloud`, `bench`, `digits` (the submit of one)."""

    provider: ClassVar[str]
    machines: ClassVar[str]
    """How the default machine is shown, with its place."""
    usd_per_hour: ClassVar[float]
    """Of one machine, by our table."""
    training: ClassVar[str] = "training"
    """The phase in which a job runs."""

    def keep_secret(self, cloud: Any) -> str:
        """Put TOKEN where the cloud keeps secrets; how a spec names it."""
        raise NotImplementedError

    def saved(self, cloud: Any, run_id: str) -> list[str]:
        """What is in the cloud's storage among a run's checkpoints."""
        raise NotImplementedError

    def told(self, cloud: Any) -> str:
        """All that the cloud was told of the failing job, and tells of it."""
        raise NotImplementedError

    def look_at_the_failed(self, bench: Bench, cloud: Any, run_id: str) -> None:
        """What else is to be seen of a run that failed."""

    def look_at_the_stopped(self, bench: Bench, cloud: Any, run_id: str) -> None:
        """What else is to be seen of a run that was stopped."""

    def test_submit_follows_to_the_end(self, digits: Result) -> None:
        assert digits.code == 0, digits.err
        assert self.machines in digits.err
        assert self.training in digits.err
        assert "epoch 1" in digits.err
        assert "succeeded in" in digits.err
        assert "USD at list price" in digits.err

    def test_the_logs_of_both_nodes_are_there(self, bench: Bench, digits: Result) -> None:
        for node in ("0", "1"):
            said = bench.run("logs", "digits-1", "--node", node)
            assert f"[node {node}] succeeded after" in said.out
        assert "::cloudtrain::" not in bench.run("logs", "digits-1").out

    def test_status_tells_metrics_and_money(self, bench: Bench, digits: Result) -> None:
        status = bench.json("status", "digits-1")
        assert (status["state"], status["nodes"], status["processes"], status["ranks"]) == ("succeeded", 2, 2, 4)
        assert status["metrics"]["val_accuracy"] > 0.5
        bill = status["billing"]
        seconds = bill.get("billable_seconds", bill["training_seconds"])
        # Whole seconds are shown, parts of them cost.
        assert bill["usd"] == pytest.approx(seconds / 3600 * self.usd_per_hour * 2, abs=2 * self.usd_per_hour / 3600)

    def test_fetch_brings_the_model(self, bench: Bench, digits: Result) -> None:
        said = bench.run("fetch", "digits-1", "../result", "--checkpoints")
        assert said.code == 0, said.err
        for name in ("model", "checkpoints"):
            assert any((bench.folder / "result" / name).iterdir())

    def test_another_machine_adopts_the_run_and_its_logs(
        self, bench: Bench, digits: Result, cloud: Any, tmp_path: Path
    ) -> None:
        other = Bench(tmp_path / "other", env=cloud.environment())
        other.write(job_yaml=DIGITS)
        assert "digits-1" in [run["run"] for run in other.json("list", "--provider", self.provider)]
        assert other.json("status", "digits-1")["metrics"] == bench.json("status", "digits-1")["metrics"]
        assert other.json("status", "digits-1")["billing"] == bench.json("status", "digits-1")["billing"]
        assert other.run("fetch", "digits-1", "../result").code == 0
        said = other.run("rerun", "digits-1")
        assert said.code == 2
        assert "was started on another machine" in said.err
        assert other.run("status", "nobody-knows", CLOUDTRAIN_PROVIDER=self.provider).code == 2

    def test_a_failing_job_names_the_rank_the_reason_and_keeps_the_secret(self, bench: Bench, cloud: Any) -> None:
        place = self.keep_secret(cloud)
        bench.write(job_yaml=f'{JOB}secrets: {{TOKEN: {{{self.provider}: "{place}"}}}}\n', train_py=FAILING)
        said = bench.run("submit", "--provider", self.provider, "--run-id", "dog-1")
        assert said.code == 1, said.err
        assert "dog-1 failed after" in said.err
        assert "rank 3 (node 1) raised ValueError: the dog ate shard 3" in said.err
        assert f"hello from 3 {TOKEN[:5]}" in bench.run("logs", "dog-1", "--rank", "3").out
        assert TOKEN not in self.told(cloud)
        for path in bench.run_folder("dog-1").rglob("*"):
            if path.is_file():
                assert TOKEN.encode() not in path.read_bytes(), path
        self.look_at_the_failed(bench, cloud, "dog-1")

    def test_a_stop_leaves_a_checkpoint_in_the_cloud_and_a_second_job_resumes_from_it(
        self, bench: Bench, cloud: Any
    ) -> None:
        bench.write(job_yaml=DIGITS)
        bench.run("submit", "--provider", self.provider, "--run-id", "long-1", "--detach", *LONG)
        follower = bench.begin("logs", "long-1", "-f")
        watcher = bench.begin("wait", "long-1")
        bench.await_event("long-1", lambda event: event["type"] == "progress" and event.get("epoch", 0) >= 2)
        stopped = bench.run("stop", "long-1")
        assert stopped.code == 5, stopped.err
        out, _ = follower.communicate(timeout=HANG_SECONDS)
        assert "[node 0] stopped after" in out
        assert "[node 1] stopped after" in out
        assert watcher.wait(timeout=HANG_SECONDS) == 5
        step = bench.json("status", "long-1")["checkpoint"]["step"]
        steps = {re.search(r"/step-\d+/", name) for name in self.saved(cloud, "long-1")}
        assert 1 <= len({found[0] for found in steps if found}) <= 2, "what is asked to be kept, and no more"
        self.look_at_the_stopped(bench, cloud, "long-1")
        again = bench.run("rerun", "long-1", "--set", "args.epochs=3", "--detach").out.strip()
        watcher = bench.begin("wait", again)
        resumed = bench.await_event(again, lambda event: event["type"] == "resumed")
        assert resumed["step"] == step
        watcher.wait(timeout=HANG_SECONDS)

    def test_after_a_spot_interruption_training_goes_on_from_the_checkpoint(self, bench: Bench, cloud: Any) -> None:
        bench.write(job_yaml=DIGITS)
        spot = ("--set", "resources.spot=true", *LONG)
        bench.run("submit", "--provider", self.provider, "--run-id", "spot-1", "--detach", *spot)
        watcher = bench.begin("wait", "spot-1")
        eventually(lambda: whole_checkpoints(self.saved(cloud, "spot-1")))
        cloud.service.interrupt("spot-1")
        resumed = bench.await_event("spot-1", lambda event: event["type"] == "resumed")
        assert resumed["step"] > 0
        assert bench.run("stop", "spot-1").code == 5
        assert watcher.wait(timeout=HANG_SECONDS) == 5
