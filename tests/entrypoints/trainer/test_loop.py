"""The training loop in one process: stops, resumes and ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from cloudtrain_trainer import state
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import digits
from cloudtrain_trainer.training.loop import Loop
from cloudtrain_trainer.training.run import Position
from tests.entrypoints.groups import Group, StartGroup
from tests.entrypoints.trainer.launching import exported
from tests.support.waiting import HANG_SECONDS


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


def request_stop_at(loop: Loop, number: int) -> None:
    """Request a stop at this step; batches of evaluations count like steps."""
    step_done = loop.stop.step_done
    numbers = count(1)

    def counted() -> None:
        step_done()
        if next(numbers) == number:
            loop.stop.requested = True

    loop.stop.step_done = counted  # type: ignore[method-assign]


def test_samples_that_fill_no_batch_are_said(make_loop: Callable[..., Loop]) -> None:
    samples = len(make_loop().task.train)
    line = make_loop("--batch-size", "32").describe_batch()
    assert f"; each epoch leaves out {samples % 32} of {samples}, which fill no batch" in line
    assert "leaves out" not in make_loop("--batch-size", str(samples)).describe_batch()


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
    request_stop_at(loop, 44 + 1)
    assert loop.run() == "stopped"
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
        make_loop("--max-steps", "50", "--eval-every-steps", "22", "--patience", "9")
    )
    assert list(reports) == [22, 44, 50]
    assert all({"loss", "val_loss"} <= values.keys() for values in reports.values())
    plain = reports_of(make_loop("--max-steps", "50"))
    assert (reports[44]["loss"], reports[50]["loss"]) == (plain[44]["loss"], plain[50]["loss"])


def test_a_run_that_is_resumed_where_an_evaluation_is_due_makes_it_once(
    make_loop: Callable[..., Loop],
) -> None:
    flags = ("--eval-every-steps", "3", "--lr-schedule", "constant", "--warm-up", "0")
    whole = make_loop(*flags, "--max-steps", "12")
    expected = reports_of(whole)
    assert list(expected) == [3, 6, 9, 12]
    shutil.rmtree(whole.checkpointer.checkpoints.folder)
    make_loop(*flags, "--max-steps", "6").run()  # it evaluates at its end, and then saves
    resumed = make_loop(*flags, "--max-steps", "12")
    resumed.resume()
    assert list(reports_of(resumed)) == [9, 12]
    assert fingerprint(resumed) == fingerprint(whole)


def test_a_stop_during_an_evaluation_within_an_epoch_repeats_it(
    make_loop: Callable[..., Loop],
) -> None:
    flags = ("--max-steps", "33", "--eval-every-steps", "22")
    loop = make_loop(*flags)
    request_stop_at(loop, 22 + 1)
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


def test_a_resume_with_another_seed_is_refused(make_loop: Callable[..., Loop]) -> None:
    make_loop("--max-steps", "1").run()
    with pytest.raises(Refused, match="--seed 0 --batch-size 32, not --task digits --seed 1"):
        make_loop("--max-steps", "1", "--seed", "1").resume()


def test_an_evaluation_only_needs_weights_and_validation_data(
    make_loop: Callable[..., Loop],
) -> None:
    with pytest.raises(Refused, match="--eval-only: there is no checkpoint in "):
        make_loop("--eval-only").resume()
    with pytest.raises(Refused, match="--eval-only needs validation data"):
        make_loop("--eval-only", task=replace(digits.build(0), validation=None))
    make_loop("--max-steps", "1").run()
    with pytest.raises(
        Refused,
        match=r"was saved with --task digits --seed 0, not --task digits --seed 1: use the same",
    ):
        make_loop("--eval-only", "--seed", "1").resume()


def test_an_evaluation_of_ones_own_model_needs_no_checkpoint(
    make_loop: Callable[..., Loop], capfd: pytest.CaptureFixture[str]
) -> None:
    loop = make_loop("--eval-only", "--model", "net:build", task=digits.build(0))
    loop.resume()
    assert "evaluates the model as it is made" in capfd.readouterr().out
    assert loop.evaluate_only() == "succeeded"


TASK = """
import torch
from torch import nn
from cloudtrain_trainer.tasks import Task

class Ones:
    def __init__(self, target):
        self.target = target
    def __len__(self):
        return 4
    def __getitem__(self, draw):
        return torch.ones(len(draw.indices), 1), torch.full((len(draw.indices), 1), self.target)

def model():
    slope = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(slope.weight)
    return slope

def right(outputs, targets):
    return torch.zeros(())

def build():
    return Task(model=model, loss=nn.MSELoss(), correct=right, train=Ones(2.0), validation=Ones(1.0),
                epochs=12, batch_size=4, lr=0.25, weight_decay=0.0)
"""
"""A task with one weight, which moves from 0 to 2 and fits the validation data best at 1, as an
overfitting model does. Each epoch has one step.
"""

FLAGS = "--model overfitting:build --lr-schedule constant --warm-up 0"
PATIENCE = 3


@pytest.fixture
def train(group: StartGroup, tmp_path: Path) -> Callable[..., Group]:
    """Trains the task in one process, in a folder below the test's."""

    def start(flags: str = "", folder: str = "") -> Group:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "overfitting.py").write_text(TASK)
        ranks = group(1, f"{FLAGS} {flags}", folder=folder)
        ranks.succeed()
        return ranks

    return start


def val_losses(ranks: Group) -> list[float]:
    """Return the loss of each evaluation."""
    return [event["values"]["val_loss"] for event in ranks.events("metrics")]


def model_loss(folder: Path) -> float:
    """The validation loss of the model that was exported."""
    weight = float(exported(folder / "cloudtrain-output/model")["weight"])
    return (weight - 1.0) ** 2


def best_epoch(values: list[float]) -> int:
    """The epoch of the best evaluation, from 1; there must be others before and after it."""
    best = values.index(min(values)) + 1
    assert 2 < best < len(values)
    return best


@pytest.mark.once
def test_a_resume_continues_the_count_and_keeps_the_best_model(
    train: Callable[..., Group], tmp_path: Path
) -> None:
    """Interrupted one evaluation after the best: a count from zero would train longer."""
    flags = f"--patience {PATIENCE}"
    whole = val_losses(train(flags, "whole"))
    best = best_epoch(whole)
    assert len(whole) == best + PATIENCE < 12
    assert min(whole) < whole[-1] / 4, "the last model is another one"
    assert model_loss(tmp_path / "whole") == pytest.approx(min(whole), abs=1e-7)
    numbers = json.loads((tmp_path / "whole/cloudtrain-output/output/metrics.json").read_text())
    assert (numbers["outcome"], numbers["step"]) == ("succeeded", len(whole))
    assert (numbers["best_step"], numbers["best_val_loss"]) == (best, min(whole))

    first = val_losses(train(f"{flags} --max-steps {best + 1}", "interrupted"))
    resumed = train(flags, "interrupted")
    assert [event["step"] for event in resumed.events("resumed")] == [best + 1]
    assert first + val_losses(resumed) == whole
    assert model_loss(tmp_path / "interrupted") == model_loss(tmp_path / "whole")

    finished = train(flags, "interrupted")
    assert val_losses(finished) == []
    assert [event["step"] for event in finished.events("result")] == [best + PATIENCE], (
        "it is not trained further"
    )


ENTRYPOINTS = Path(__file__).resolve().parents[3] / "entrypoints"

BLOCKED = (
    "mutex = ctypes.create_string_buffer(64); c.pthread_mutex_lock(mutex);"
    " c.pthread_mutex_lock(mutex)"
)
"""The main thread waits in C code forever, as in a kernel launch: it runs no Python code and no
signal handler.
"""


def rank(*lines: str, limit: float = 0.3) -> subprocess.Popen[str]:
    """Start a process that handles SIGTERM and runs these lines, one of which prints `ready`."""
    begin = f"import ctypes, sys, time; sys.path.insert(0, {str(ENTRYPOINTS)!r})"
    made = (
        "from cloudtrain_trainer.sigterm import Stop",
        f"stop = Stop(min_seconds={limit}); stop.listen()",
    )
    argv = [sys.executable, "-c", "\n".join([begin, *made, "c = ctypes.CDLL(None)", *lines])]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


READY = "print('ready', flush=True)"


def test_a_rank_that_hangs_in_c_code_exits() -> None:
    process = rank(READY, BLOCKED)
    process.terminate()
    _, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 143
    assert "this rank hangs and exits" in errors


def test_a_rank_whose_steps_continue_stops_normally() -> None:
    process = rank(
        READY,
        "left = 200",
        "while left or not stop.requested:",
        "    time.sleep(0.02); stop.step_done(); left -= stop.requested",
        limit=3,
    )
    process.terminate()
    assert process.wait(timeout=HANG_SECONDS) == 0
    process.communicate()


def test_a_checkpoint_in_progress_is_waited_for() -> None:
    # Python's own end may take longer than the limit.
    process = rank(
        "import os", "with stop.busy():", f"    {READY}", "    time.sleep(1.5)", "os._exit(0)"
    )
    process.terminate()
    assert process.wait(timeout=HANG_SECONDS) == 0
    process.communicate()


def test_the_limit_is_three_times_the_longest_step() -> None:
    process = rank("stop.step_done(); time.sleep(0.5); stop.step_done()", READY, BLOCKED)
    began = time.monotonic()
    process.terminate()
    assert process.wait(timeout=HANG_SECONDS) == 143
    assert time.monotonic() - began >= 1.4
    process.communicate()
