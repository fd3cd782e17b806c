"""Drills of real jobs: faults, scorecards, and complete removal."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.waiting import HANG_SECONDS, eventually

pytestmark = [pytest.mark.torchrun, pytest.mark.linux("processes are found in /proc")]

COUNTER = """
import json, os, sys, time
from pathlib import Path
from cloudtrain_job import log_metrics

folder = Path(os.environ["CLOUDTRAIN_CHECKPOINT_DIR"])
saved = folder / "state.json"
is_drilled = not saved.exists() and len(list(folder.parents[1].glob("*/checkpoints"))) > 1
state = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "value": 1}
while state["step"] < STEPS:
    state = {"step": state["step"] + 1, "value": state["value"] * 31 % 1009}
    time.sleep(0.01)
    if state["step"] % 5 == 0:
        (folder / "state.tmp").write_text(json.dumps(state))
        (folder / "state.tmp").replace(saved)
        # Whatever has been reported has been saved: a kill loses no reported step.
        log_metrics(step=state["step"], value=state["value"])
    while is_drilled and state["step"] >= 20:
        time.sleep(0.01)
Path(os.environ["CLOUDTRAIN_MODEL_DIR"], "model.json").write_text(json.dumps(state["value"]))
"""
"""A job for drills: one process without torch, which learns nothing and resumes.

A drilled run waits for its fault after the fourth checkpoint, however late that comes.
"""

JOB = "name: count\nentrypoint: train.py\nlimits: {restarts: 1}\n"


def drills(cli: CommandLine) -> Path:
    return cli.data / "drills" / "count"


def by_name(card: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {drill["drill"]: drill for drill in card["drills"]}


def test_ready_job_recovers_and_a_reader_of_half_a_checkpoint_fails(
    cli: CommandLine,
) -> None:
    cli.write(job_yaml=JOB, train_py=COUNTER.replace("STEPS", "40"))
    result = cli.run("drill", "--only", "checkpoint-torn,rank-killed", "--json")
    card = json.loads(result.out)
    assert (result.code, card["ok"]) == (0, True), result.err
    killed = by_name(card)["rank-killed"]
    torn = by_name(card)["checkpoint-torn"]
    assert killed["verdict"] == "recovered to the same parameters"
    assert killed["compared_by"] == "the files of the model"
    # With its step, unless the report of it takes longer than the drill waits.
    assert killed["injected"].startswith("SIGKILL of rank 0")
    assert "rank 0 (node 0) was killed by SIGKILL" in killed["seen"]
    assert (killed["rerun"], killed["steps_lost"]) == (False, 0)
    assert torn["verdict"] == "failed by name"
    assert "state.json cut from" in torn["injected"]
    assert "rank 0 (node 0) raised JSONDecodeError" in torn["seen"]
    assert any("the checkpoint before the newest" in text for text in torn["change"])
    assert killed["remedy"] is None, "nobody is to look for who sent the signal: the drill did"
    assert card["reference"]["steps"] == 40
    assert cli.processes() == []
    assert cli.json("list") == [], "runs of drills are not among the others"
    looked = cli.run("--data-dir", str(drills(cli)), "diagnose", torn["runs"][-1])
    assert "JSONDecodeError" in looked.out


def test_a_job_that_fails_undisturbed_is_diagnosed_and_not_drilled(cli: CommandLine) -> None:
    cli.write(job_yaml=JOB, train_py='raise ValueError("the dog ate shard 3")\n')
    result = cli.run("drill")
    assert result.code == 1
    assert (
        "the job fails without any drill: rank 0 (node 0) raised ValueError: the dog ate shard 3"
        in result.err
    )
    assert len(list((drills(cli) / "runs").iterdir())) == 1


COMMAND = """
case $(ls -d "$CLOUDTRAIN_CHECKPOINT_DIR"/../../*/checkpoints | wc -l) in
1) sleep 1 ;;
2) exec sleep 600 ;;
esac
"""
"""Ends by itself in the undisturbed run and after its fault, but not before."""


def test_a_command_is_not_drilled_for_hangs_nor_told_to_restart_in_place(cli: CommandLine) -> None:
    job = "name: command\nlauncher: none\nentrypoint: sh run.sh\n"
    cli.write(job_yaml=job, run_sh=COMMAND)
    result = cli.run("drill", "--only", "rank-killed,loader-stalled", "--json")
    drilled = by_name(json.loads(result.out))
    assert drilled["rank-killed"]["rerun"] is True
    assert drilled["rank-killed"]["change"] == []
    assert drilled["loader-stalled"]["verdict"] == "skipped"
    assert "launcher: none" in drilled["loader-stalled"]["injected"]


@pytest.mark.thorough
def test_all_drills_of_the_trainer_end_with_the_same_parameters(cli: CommandLine) -> None:
    cli.write(
        job_yaml=(
            "name: count\nargs: {epochs: 4}\nresources: {processes: 2}\nlimits: {restarts: 1}\n"
        )
    )
    result = cli.run("drill", "--json")
    verdicts = {name: drill["verdict"] for name, drill in by_name(json.loads(result.out)).items()}
    assert set(verdicts.values()) == {"recovered to the same parameters"}, result.out
    assert len(verdicts) == 6
    stalled = by_name(json.loads(result.out))["loader-stalled"]
    assert "rank 1 (node 0) has given no sign of life" in stalled["seen"]
    assert cli.processes() == []


@pytest.mark.thorough
def test_ctrl_c_ends_what_runs(cli: CommandLine) -> None:
    cli.write(job_yaml=JOB, train_py=COUNTER.replace("STEPS", "300"))
    drill = cli.start("drill", "--only", "rank-killed")
    # It runs, and is no longer forked.
    eventually(lambda: len(list((drills(cli) / "runs").glob("*/checkpoints"))) == 2)
    os.kill(drill.pid, signal.SIGINT)
    out, err = drill.communicate(timeout=HANG_SECONDS)
    assert drill.wait() == 130, (out, err)
    assert "what was running has been ended" in err
    assert cli.processes() == []


@pytest.mark.thorough
def test_a_drill_that_is_killed_takes_its_run_along_and_the_next_one_begins_anew(
    cli: CommandLine,
) -> None:
    cli.write(job_yaml=JOB, train_py=COUNTER.replace("STEPS", "100000"))
    drill = cli.start("drill", "--only", "rank-killed")
    eventually(
        lambda: (
            any(cli.processes()) and list((drills(cli) / "runs").glob("*/checkpoints/state.json"))
        )
    )
    refused = cli.run("drill", "--only", "rank-killed")
    assert refused.code == 3
    assert "a drill of this job goes on already" in refused.err
    os.kill(drill.pid, signal.SIGKILL)
    eventually(lambda: cli.processes() == [])
    result = cli.run("drill", "--only", "rank-killed", "--timeout", "5 s")
    assert result.code == 2
    assert "has not ended within 5 s" in result.err
    assert "--set args.epochs=1" in result.err
    assert cli.processes() == []
