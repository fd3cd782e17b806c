"""Steps of every rehearsal, for any cloud: shared by test_rehearsal.py and test_azure_rehearsal.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.command_line import CommandLine, CommandResult

TRAINER = "args: {task: digits, strategy: ddp, epochs: 1}"
TRAINING = f"""
name: digits
{TRAINER}
resources: {{nodes: 2, processes: 1}}
checkpoints: {{every: 1 s, keep: 2}}
limits: {{max_runtime: 1 h}}
"""
UNTIL_STOPPED = """
import os, signal, time
from pathlib import Path
from cloudtrain_job import emit, log_progress
kept, rank, stop = Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"], "step"), os.environ["RANK"], []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
step = int(kept.read_text()) if kept.exists() else 0
if step and rank == "0":
    emit("resumed", step=step, epoch=0)
while not stop:
    step += 1
    log_progress(step=step)
    time.sleep(0.05)
if rank == "0":
    kept.write_text(str(step))
    emit("checkpoint", step=step, path=str(kept))
"""
"""Each rank by itself, without torch: what it saves when it is stopped is where it goes on."""
MY_TOKEN = "hunter2-never-write-this-down"


@pytest.fixture(scope="module", name="cli")
def cli_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Provide the command, with two inputs beside its folder."""
    made = CommandLine(
        tmp_path_factory.mktemp("rehearsal") / "a folder with spaces", modules=("warm_jobs",)
    )
    (made.folder / "data").mkdir()
    (made.folder / "data" / "x.txt").write_text("input data")
    (made.folder / "data" / "t.csv").write_text("a,b")
    yield made
    made.close()


class Rehearsal:
    """Fixtures of the module: `cli` above, and `digits`, the submit of run digits-1 with job.yaml
    as `job` says.
    """

    cloud: ClassVar[str]
    platform: ClassVar[str]
    contract: ClassVar[str]
    job: ClassVar[str]
    """The digits job with the cloud's account facts."""

    def without_changing_tags(self, document: dict[str, Any]) -> dict[str, Any]:
        """The request less the tags that say when it was planned, and that it was rehearsed."""
        raise NotImplementedError

    def test_it_succeeds_and_names_the_contract(
        self, cli: CommandLine, digits: CommandResult
    ) -> None:
        assert digits.code == 0, digits.err
        assert f"on this machine, as {self.platform} would run it" in digits.err
        assert f"or pay: cloudtrain rerun digits-1 --provider {self.cloud}" in digits.err
        assert cli.json("status", "digits-1")["contract"] == self.contract

    def test_it_executed_the_very_request_that_the_cloud_would_get(
        self, cli: CommandLine, digits: CommandResult
    ) -> None:
        cli.write(job_yaml=self.job)
        for_cloud = cli.json(
            "submit", "--provider", self.cloud, "--run-id", "digits-1", "--dry-run"
        )
        executed = cli.document("digits-1", "request.json")
        assert self.without_changing_tags(executed) == self.without_changing_tags(for_cloud)
        assert "cloudtrain-rehearsed" in json.dumps(for_cloud), (
            "a submit knows that this was its rehearsal"
        )

    def test_model_and_checkpoints_are_where_people_look(
        self, cli: CommandLine, digits: CommandResult
    ) -> None:
        places = cli.json("status", "digits-1")["results"]
        assert any(Path(places["model"]).iterdir())
        assert any(Path(places["checkpoints"]).iterdir())

    def test_a_stop_leaves_a_checkpoint_from_which_a_rerun_goes_on(self, cli: CommandLine) -> None:
        cli.write(
            job_yaml=self.job.replace(TRAINER, "entrypoint: train.py"), train_py=UNTIL_STOPPED
        )
        cli.run("submit", "--as", self.cloud, "--run-id", "long-1", "--detach")
        cli.wait_for_event(
            "long-1", lambda event: event["type"] == "progress" and event["step"] >= 2
        )
        stopped = cli.run("stop", "long-1")
        assert stopped.code == 0, stopped.err
        step = cli.json("status", "long-1")["checkpoint"]["step"]
        new_run = cli.run("rerun", "long-1", "--detach").out.strip()
        resumed = cli.wait_for_event(new_run, lambda event: event["type"] == "resumed")
        assert resumed["step"] == step
        assert cli.run("stop", new_run).code == 0
        assert cli.processes() == []

    def test_a_rehearsal_stays_here_whatever_the_settings_say(self, cli: CommandLine) -> None:
        cli.write(job_yaml=self.job)
        result = cli.run("plan", "--as", self.cloud, CLOUDTRAIN_PROVIDER=self.cloud)
        assert f"on this machine, as {self.platform} would run it" in result.out
        assert "nothing: it runs here" in result.out


def leaves_no_secret(cli: CommandLine, run: str) -> None:
    """No file of the run holds the secret."""
    for path in cli.run_folder(run).rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert MY_TOKEN.encode() not in path.read_bytes(), path
