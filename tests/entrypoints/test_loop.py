"""The training loop in one process: where it stops, resumes and ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain_trainer import state
from cloudtrain_trainer.loop import Loop, Position
from cloudtrain_trainer.rules import Refused


def fingerprint(loop: Loop) -> str:
    return state.fingerprint(loop.step.model.state_dict())


def test_an_interrupted_run_resumes_within_its_epoch(make_loop: Callable[..., Loop]) -> None:
    short = make_loop("--max-steps", "10")
    assert short.run() == "succeeded"
    assert short.position == Position(step=10, epoch=0, samples=320)
    longer = make_loop("--max-steps", "50")
    longer.resume()
    assert longer.position == short.position
    assert longer.run() == "succeeded"
    assert longer.position == Position(step=50, epoch=1, samples=6 * 32)


def test_a_finished_run_only_evaluates_again(make_loop: Callable[..., Loop]) -> None:
    first = make_loop("--epochs", "1")
    first.run()
    again = make_loop("--epochs", "1")
    again.resume()
    assert again.run() == "succeeded"
    assert again.position == first.position == Position(step=44, epoch=1, samples=0)
    assert again.metrics["val_accuracy"] == first.metrics["val_accuracy"]


def test_a_stop_during_an_evaluation_repeats_only_the_evaluation(
    make_loop: Callable[..., Loop],
) -> None:
    loop = make_loop("--epochs", "1")
    loop._train_epoch()
    loop.stop.requested = True
    assert not loop._finish_epoch()
    loop.checkpointer.save(last=True)
    again = make_loop("--epochs", "1")
    again.resume()
    assert again.position == Position(step=44, epoch=0, samples=44 * 32)
    assert again.run() == "succeeded"
    assert again.position.epoch == 1


def test_a_target_accuracy_ends_the_run_early(make_loop: Callable[..., Loop]) -> None:
    loop = make_loop("--target-accuracy", "0.2", "--strategy", "dp", "--amp", "bf16")
    assert loop.run() == "succeeded"
    assert loop.position.epoch == 1


def test_a_run_that_reached_its_target_is_not_trained_further_by_a_resume(make_loop: Callable[..., Loop]) -> None:
    first = make_loop("--target-accuracy", "0.2")
    first.run()
    again = make_loop("--target-accuracy", "0.2")
    again.resume()
    assert again.run() == "succeeded"
    assert again.position == first.position
    assert fingerprint(again) == fingerprint(first)


def test_no_resume_logs_where_the_checkpoints_are_moved(
    make_loop: Callable[..., Loop], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make_loop("--max-steps", "1").run()
    make_loop().checkpointer.checkpoints.set_aside()
    assert "--no-resume: earlier checkpoints are moved to " in capfd.readouterr().out
    assert [path.name for path in tmp_path.glob("before-*/step-*")] == ["step-00000001"]


def test_a_resume_with_another_seed_is_refused(make_loop: Callable[..., Loop]) -> None:
    make_loop("--max-steps", "1").run()
    with pytest.raises(Refused, match="--seed 0 --batch-size 32, not --task digits --seed 1"):
        make_loop("--max-steps", "1", "--seed", "1").resume()
