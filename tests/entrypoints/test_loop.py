"""The training loop in one process: stops, resumes and ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain_trainer import state, tasks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.training.loop import Loop
from cloudtrain_trainer.training.run import Position


def fingerprint(loop: Loop) -> str:
    return state.fingerprint(loop.step.model.state_dict())


class Reports:
    """Replacement for trackers: the reports of a run at ends of epochs and evaluations, by step."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if "loss" in values:
            assert step not in self.values, "reported once"
            self.values[step] = dict(values)


def reports_of(loop: Loop) -> dict[int, dict[str, float]]:
    """Train to the end; return the reports by step."""
    reports = Reports()
    loop.trackers = reports  # type: ignore[assignment]
    assert loop.run() == "succeeded"
    return reports.values


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
    resumed = make_loop("--epochs", "1")
    resumed.resume()
    assert resumed.run() == "succeeded"
    assert resumed.position == first.position == Position(step=44, epoch=1, samples=0)
    assert resumed.metrics["val_accuracy"] == first.metrics["val_accuracy"]


def test_a_stop_during_an_evaluation_repeats_only_the_evaluation(
    make_loop: Callable[..., Loop],
) -> None:
    loop = make_loop("--epochs", "1")
    loop._train_epoch()
    loop.stop.requested = True
    assert not loop._finish_epoch()
    loop.checkpointer.save(last=True)
    resumed = make_loop("--epochs", "1")
    resumed.resume()
    assert resumed.position == Position(step=44, epoch=0, samples=44 * 32)
    assert resumed.run() == "succeeded"
    assert resumed.position.epoch == 1


def test_evaluations_within_an_epoch_come_beside_those_at_its_end(
    make_loop: Callable[..., Loop],
) -> None:
    """An epoch has 44 steps; the loss is the mean since the start of the epoch."""
    reports = reports_of(
        make_loop("--max-steps", "66", "--eval-every-steps", "22", "--patience", "9")
    )
    assert list(reports) == [22, 44, 66]
    assert all({"loss", "val_loss"} <= values.keys() for values in reports.values())
    plain = reports_of(make_loop("--max-steps", "66"))
    assert (reports[44]["loss"], reports[66]["loss"]) == (plain[44]["loss"], plain[66]["loss"])


def test_a_run_that_is_resumed_where_an_evaluation_is_due_makes_it_once(
    make_loop: Callable[..., Loop],
) -> None:
    flags = (
        "--max-steps",
        "44",
        "--eval-every-steps",
        "11",
        "--lr-schedule",
        "constant",
        "--warm-up",
        "0",
    )
    whole = make_loop(*flags)
    expected = reports_of(whole)
    assert list(expected) == [11, 22, 33, 44]
    shutil.rmtree(whole.checkpointer.checkpoints.folder)
    make_loop(*flags, "--max-steps", "22").run()  # it evaluates at its end, and then saves
    resumed = make_loop(*flags)
    resumed.resume()
    assert list(reports_of(resumed)) == [33, 44]
    assert fingerprint(resumed) == fingerprint(whole)


def test_a_stop_during_an_evaluation_within_an_epoch_repeats_it(
    make_loop: Callable[..., Loop],
) -> None:
    flags = ("--max-steps", "33", "--eval-every-steps", "22")
    loop = make_loop(*flags)

    def stop_in_evaluation() -> bool:
        loop.stop.requested = True
        return True

    loop._stop_in_evaluation = stop_in_evaluation  # type: ignore[method-assign]
    assert loop.run() == "stopped"
    assert loop.position.step == 22
    resumed = make_loop(*flags)
    resumed.resume()
    assert list(reports_of(resumed)) == [22, 33]


def test_an_evaluation_within_an_epoch_may_end_the_run(make_loop: Callable[..., Loop]) -> None:
    flags = ("--patience", "1", "--eval-every-steps", "20")
    loop = make_loop(*flags)
    loop.checkpointer.best = loop.checkpointer.best._replace(val_loss=0.0)
    assert list(reports_of(loop)) == [20]
    resumed = make_loop(*flags)
    resumed.resume()
    assert reports_of(resumed) == {}
    assert resumed.position == loop.position == Position(step=20, epoch=0, samples=20 * 32)


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


def test_an_evaluation_only_needs_weights_and_validation_data(
    make_loop: Callable[..., Loop],
) -> None:
    with pytest.raises(
        Refused, match=r"--eval-only: there is no checkpoint in .*: name weights by --weights"
    ):
        make_loop("--eval-only").resume()
    with pytest.raises(Refused, match="--eval-only needs validation data"):
        make_loop("--eval-only", task=replace(tasks.build("digits", 0), validation=None))
    make_loop("--max-steps", "1").run()
    with pytest.raises(
        Refused,
        match=r"was saved with --task digits --seed 0, not --task digits --seed 1: use the same",
    ):
        make_loop("--eval-only", "--seed", "1").resume()


def test_an_evaluation_only_stops_when_it_is_asked_to(make_loop: Callable[..., Loop]) -> None:
    make_loop("--max-steps", "1").run()
    loop = make_loop("--eval-only")
    loop.resume()
    loop.stop.requested = True
    assert loop.evaluate_only() == "stopped"
    assert loop.metrics == {}
