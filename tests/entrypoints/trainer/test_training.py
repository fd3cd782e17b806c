"""The trainer as a program: what it prints, writes and exports, how it stops, and how it refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.entrypoints.groups import StartGroup
from tests.entrypoints.trainer.launching import TRAIN, exported, only, torchrun

OUTPUT = Path("cloudtrain-output")


def test_two_ranks_train_digits_and_end_with_equal_parameters(
    group: StartGroup, tmp_path: Path
) -> None:
    ranks = group(2)
    result = ranks.succeed()

    metrics = ranks.events("metrics")
    assert [(m["step"], m["epoch"]) for m in metrics] == [(44, 1), (88, 2), (132, 3)]
    assert metrics[-1]["values"]["val_accuracy"] >= 0.96
    assert metrics[-1]["values"]["loss"] < metrics[0]["values"]["loss"]
    progress = ranks.events("progress")
    assert progress[0]["step"] == 1
    assert (progress[-1]["step"], progress[-1]["steps"], progress[-1]["epochs"]) == (132, 132, 3)
    assert ranks.events("step_times", rank=1)
    assert not ranks.events("metrics", rank=1) + ranks.events("progress", rank=1)

    assert all("parameters sha256" in log.read_text() for log in ranks.logs)
    assert ranks.fingerprints() == {result["parameters_sha256"]}
    assert json.loads((tmp_path / "result.json").read_text()) == {
        "outcome": "succeeded",
        "step": 132,
    }
    weights = exported(tmp_path / OUTPUT / "model")
    assert weights["0.weight"].shape == (32, 1, 3, 3)
    numbers = json.loads((tmp_path / OUTPUT / "output/metrics.json").read_text())
    assert numbers["val_accuracy"] == metrics[-1]["values"]["val_accuracy"]


@pytest.mark.torchrun
def test_a_sigterm_to_torchrun_without_a_launcher_leaves_a_checkpoint_too(tmp_path: Path) -> None:
    launch = torchrun(tmp_path, 1, TRAIN, "--epochs", "500")
    next(event for event in launch.events() if event["type"] == "progress")
    launch.process.terminate()
    events = launch.finish()
    (checkpoint,) = only(events, "checkpoint")
    (result,) = only(events, "result")
    assert (result["outcome"], result["step"]) == ("stopped", checkpoint["step"]), "".join(
        launch.lines
    )
    assert (tmp_path / checkpoint["path"] / "manifest.json").exists()


def test_no_resume_continues_a_run_that_its_platform_restarts(group: StartGroup) -> None:
    """A managed restart is a new container with the same flags: only the id of the run tells it
    from a new run.
    """

    def resumed_from(steps: int, run: str) -> list[int]:
        ranks = group(1, f"--no-resume --max-steps {steps}", CLOUDTRAIN_RUN_ID=run)
        assert ranks.succeed()["step"] == steps
        return [event["step"] for event in ranks.events("resumed")]

    assert resumed_from(2, "digits-1") == []
    assert resumed_from(3, "digits-1") == [2]
    assert resumed_from(2, "digits-2") == []


def test_a_loss_that_is_not_finite_ends_training_with_exit_code_33(
    group: StartGroup, tmp_path: Path
) -> None:
    """The error names the step, and the last good checkpoint is kept. At this learning rate the
    weights overflow.
    """
    ranks = group(1, "--lr 1e30 --warm-up 0 --checkpoint-every-steps 1")
    assert ranks.wait() == [33], ranks.output()
    (error,) = ranks.events("error")
    assert error["exception"] == "NotFinite"
    match = re.match(
        r"step (\d+): the loss is nan. Training stops: the checkpoint of step (\d+) is kept",
        error["message"],
    )
    assert match, error["message"]
    assert int(match[2]) == int(match[1]) - 1
    assert "try a lower --lr" in error["message"]
    assert not (tmp_path / OUTPUT / "model").exists()
    assert not (tmp_path / "result.json").exists()
    numbers = json.loads(
        (tmp_path / OUTPUT / "output/metrics.json").read_text(), parse_constant=pytest.fail
    )
    assert (numbers["outcome"], numbers["why"]) == ("failed", f"step {match[1]}: the loss is nan")


def test_collectives_and_checkpoints_of_three_ranks(group: StartGroup) -> None:
    """The checks of group_checks.py, all in one group of ranks."""
    ranks = group(3, program="tests.entrypoints.trainer.group_checks:main")
    assert ranks.wait() == [0, 0, 0], ranks.output()
    output = "".join(log.read_text() for log in ranks.logs)
    assert len(re.findall(r"^all checks passed on rank [012]$", output, re.MULTILINE)) == 3
    assert output.count("is not complete (rank 2: rank-2.pt does not have the checksum") == 1
    assert output.count("is not complete (rank 2: FileNotFoundError") == 1


def test_a_refusal_is_one_line_from_rank_0_and_exit_code_2(group: StartGroup) -> None:
    ranks = group(2, "--strategy single")
    assert ranks.wait() == [2, 2]
    logs = [log.read_text().splitlines() for log in ranks.logs]
    printed = [[line for line in log if not line.startswith("::cloudtrain:: ")] for log in logs]
    assert len(printed[0]) == 1
    assert printed[0][0].startswith(
        "train.py: error: --strategy single trains in one process; each of 2"
    )
    assert "use --strategy ddp" in printed[0][0]
    assert printed[1] == []


def test_a_sigterm_that_reaches_the_loader_processes_too_leaves_a_checkpoint(
    group: StartGroup,
) -> None:
    """torchrun signals the whole process group of a rank."""
    ranks = group(1, "--workers 1 --epochs 500")
    ranks.await_event("progress")
    ranks.terminate_process_groups()
    result = ranks.succeed()
    (checkpoint,) = ranks.events("checkpoint")
    assert (result["outcome"], result["step"]) == ("stopped", checkpoint["step"])


@pytest.mark.once
def test_eval_only_reports_an_evaluation_and_leaves_all_else_alone(
    tmp_path: Path, group: StartGroup
) -> None:
    """The strategy and the batch size differ from the training's."""
    trained = group(1, "--max-steps 20 --batch-size 64")
    trained.succeed()
    (expected,) = trained.events("metrics")
    (
        tmp_path / OUTPUT / "checkpoints/step-00000030.partial"
    ).mkdir()  # another run may be writing it
    shutil.rmtree(tmp_path / OUTPUT / "model")
    files = sorted((tmp_path / OUTPUT / "checkpoints").rglob("*"))
    evaluated = group(2, "--eval-only --strategy ddp --batch-size 32")
    result = evaluated.succeed()
    assert result == {**evaluated.events("result")[0], "outcome": "succeeded", "step": 20}
    (metrics,) = evaluated.events("metrics")
    assert metrics["step"] == 20
    last_metrics = json.loads((tmp_path / OUTPUT / "output/metrics.json").read_text())
    assert last_metrics["val_loss"] == metrics["values"]["val_loss"]
    assert last_metrics["val_loss"] == pytest.approx(expected["values"]["val_loss"], rel=1e-5)
    written = json.loads((tmp_path / "result.json").read_text())
    assert written == {"outcome": "succeeded", "step": 20}
    assert not evaluated.events("progress") + evaluated.events("checkpoint")
    assert not (tmp_path / OUTPUT / "model").exists()
    assert sorted((tmp_path / OUTPUT / "checkpoints").rglob("*")) == files
