"""The parts of the trainer, each alone and fast."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from cloudtrain_trainer import ranks as ranks_module
from cloudtrain_trainer import state, strategies, tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.batches import Batches, evaluation_draws
from cloudtrain_trainer.checkpoint import CheckpointStore
from cloudtrain_trainer.loop import Loop, Position
from cloudtrain_trainer.metrics import LossMean, Meter
from cloudtrain_trainer.options import Folders
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.step import lr_factor
from cloudtrain_trainer.tasks import Draw
from cloudtrain_trainer.tasks.digits import read, split
from tests.support.limits import HANG_SECONDS

ENTRYPOINTS = Path(__file__).resolve().parents[2] / "entrypoints"


def batches(rank: int = 0, ranks: int = 1, parts: int = 1, batch_size: int = 64) -> Batches:
    data = tasks.build("digits", seed=0).train
    return Batches(data, 0, batch_size, parts, rank, ranks, workers=0, pin_memory=False)


@pytest.mark.parametrize(("ranks", "parts"), [(1, 1), (2, 1), (3, 1), (2, 3), (5, 2)])
def test_the_global_batches_are_the_same_on_any_number_of_ranks(ranks: int, parts: int) -> None:
    alone = [draw.indices for draw in batches().draws(epoch=1, skip=128)]
    by_rank = [list(batches(rank, ranks, parts).draws(epoch=1, skip=128)) for rank in range(ranks)]
    for step, batch in enumerate(alone):
        shares = [mine[step * parts + part].indices for mine in by_rank for part in range(parts)]
        assert [i for share in shares for i in share] == batch
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_every_epoch_has_its_own_order_and_uses_no_sample_twice() -> None:
    first, second = ([i for d in batches().draws(e, 0) for i in d.indices] for e in (0, 1))
    assert first != second
    assert len(set(first)) == len(first) == batches().samples_per_epoch == 22 * 64


@pytest.mark.parametrize("samples", [1, 7, 256, 360, 1000])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_evaluation_counts_each_sample_once_in_equally_many_passes(samples: int, ranks: int) -> None:
    draws = [list(evaluation_draws(samples, rank, ranks)) for rank in range(ranks)]
    counted = [i for mine in draws for draw, count in mine for i in draw.indices[:count]]
    assert sorted(counted) == list(range(samples))
    assert len({len(mine) for mine in draws}) == 1
    assert all(draw.indices for mine in draws for draw, _ in mine)


@pytest.mark.parametrize(
    ("ranks", "parts", "batch_size", "hint"), [(4, 2, 7, "use at least 8"), (1, 1, 1438, "use 1437 or less")]
)
def test_a_batch_that_cannot_be_shared_out_is_refused(ranks: int, parts: int, batch_size: int, hint: str) -> None:
    with pytest.raises(Refused, match=hint):
        batches(0, ranks, parts, batch_size)


def test_the_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    images, labels = read()
    wanted = load_digits()
    assert torch.equal(images[:, 0], torch.tensor(wanted.images / 16, dtype=torch.float32))
    assert torch.equal(labels, torch.tensor(wanted.target))


def test_the_split_is_stratified_and_fixed_by_the_seed() -> None:
    labels = read()[1]
    train, validation = split(labels, seed=3)
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(1797))
    shares = torch.bincount(labels[validation]) / torch.bincount(labels)
    assert ((shares - 0.2).abs() < 0.01).all()
    assert torch.equal(split(labels, seed=3)[0], train)
    assert not torch.equal(split(labels, seed=4)[0], train)


def test_noise_depends_on_seed_epoch_and_index_only() -> None:
    data = tasks.build("digits", seed=0).train
    together = data[Draw(2, [5, 6, 7])][0]
    data[Draw(3, [1])]
    assert torch.equal(data[Draw(2, [6])][0][0], together[1])
    assert not torch.equal(data[Draw(3, [6])][0][0], together[1])


def test_the_rate_rises_then_falls_to_nothing() -> None:
    factors = [lr_factor(step, 100) for step in range(101)]
    assert factors[9] == max(factors) == 1.0
    assert factors[100] == pytest.approx(0)
    assert all(a >= b for a, b in pairwise(factors[9:]))
    assert lr_factor(0, 1) == 1.0


def test_the_loss_mean_weighs_by_samples_and_survives_a_restart() -> None:
    mean = LossMean(torch.device("cpu"))
    mean.add(torch.tensor(1.0), 3)
    restored = LossMean(torch.device("cpu"))
    restored.restore(mean.state())
    restored.add(torch.tensor(5.0), 1)
    assert restored.value() == 2.0


def test_progress_is_due_at_once_and_then_twice_a_second() -> None:
    now = [0.0]
    meter = Meter(clock=lambda: now[0])
    meter.count(10)
    assert meter.due()
    now[0] = 2.0
    assert meter.rate() == 5.0
    now[0] = 2.4
    assert not meter.due()
    now[0] = 2.5
    assert meter.due()


class Timed:
    """Data whose every batch takes so many seconds of a clock that the test holds."""

    def __init__(self, data: tasks.Data, now: list[float], seconds: float) -> None:
        self.data, self.now, self.seconds = data, now, seconds

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
        self.now[0] += self.seconds
        return self.data[draw]


def test_the_first_rate_after_an_evaluation_is_that_of_training(
    make_loop: Callable[..., Loop], capfd: pytest.CaptureFixture[str]
) -> None:
    """A step of 32 samples takes a second, an evaluation of 12 batches as many minutes."""
    now = [0.0]
    loop = make_loop("--epochs", "2")
    loop.meter = Meter(clock=lambda: now[0])
    train, validation = Timed(loop.task.train, now, 1.0), Timed(loop.task.validation, now, 60.0)
    loop.batches = replace(loop.batches, data=train)
    loop.step.task = replace(loop.task, validation=validation)
    loop.run()
    lines = [line for line in capfd.readouterr().out.splitlines() if '"type":"progress"' in line]
    rates = {json.loads(line.partition(" ")[2])["samples_per_s"] for line in lines}
    assert rates == {32.0}
    assert now[0] == 2 * 44 + 2 * 12 * 60
    assert loop.meter.mean_rate() == 2 * 44 * 32 / now[0], "the mean is that of all"


def test_progress_comes_more_rarely_in_a_long_run_but_never_more_than_ten_seconds_apart() -> None:
    now = [0.0]
    meter = Meter(clock=lambda: now[0])
    for began, pause in ((3600.0, 6.0), (86400.0, 10.0)):
        now[0] = began
        meter.rate()
        now[0] = began + pause - 0.1
        assert not meter.due()
        now[0] = began + pause + 0.1
        assert meter.due()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--amp", "half"], "choose from"),
        (["--epochs", "0"], "whole number of 1 or more"),
        (["--lr", "nan"], "number greater than 0"),
        (["--task", "nope"], "invalid choice: 'nope'"),
        (["--strategy", "nope"], "invalid choice: 'nope'"),
        (["--checkpoint-every", "soon"], "such as 600 or '10 min'"),
        (["--epoch", "3"], "unrecognized arguments"),
    ],
)
def test_bad_arguments_are_refused(argv: list[str], said: str) -> None:
    with pytest.raises(Refused, match=said):
        parse(argv)


def test_defaults_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (parse([]).strategy, parse([]).checkpoint_every, parse([]).keep) == ("single", 600, 3)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_EVERY", "90")
    monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_KEEP", "7")
    monkeypatch.setenv("CLOUDTRAIN_MODEL_DIR", "/models")
    assert (parse([]).strategy, parse([]).checkpoint_every, parse([]).keep) == ("ddp", 90, 7)
    assert parse(["--checkpoint-every", "1.5 h"]).checkpoint_every == 5400
    assert Folders.from_environment().model == Path("/models")
    assert Folders.from_environment().output == Path("cloudtrain-output/output")
    monkeypatch.setenv("CLOUDTRAIN_CHECKPOINT_KEEP", "none")
    with pytest.raises(Refused, match="--keep: expected a whole number"):
        parse([])


@pytest.mark.parametrize("name", ["single", "dp"])
def test_a_strategy_of_one_process_refuses_several(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Refused, match="use --strategy ddp"):
        parse(["--strategy", name])


def test_a_split_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Ranks().check_world_size()
    monkeypatch.setenv("CLOUDTRAIN_NODES", "2")
    monkeypatch.setenv("CLOUDTRAIN_PROCESSES", "1")
    with pytest.raises(Refused, match="2 nodes x 1 processes = 2"):
        Ranks().check_world_size()


def test_too_few_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(Refused, match="2 processes on this node, but 1 GPUs"):
        ranks_module._device(local_rank=0, local_size=2)


@pytest.fixture
def make_loop(tmp_path: Path) -> Callable[..., Loop]:
    def make(*argv: str) -> Loop:
        torch.set_num_threads(1)
        options = parse(list(argv))
        strategy = strategies.build(Ranks(), options)
        checkpoints = CheckpointStore(tmp_path, 3, strategy.ranks)
        return Loop(tasks.build("digits", options.seed), strategy, options, checkpoints, Stop())

    return make


def fingerprint(loop: Loop) -> str:
    return state.fingerprint(loop.step.model.state_dict())


def test_a_run_cut_short_goes_on_within_its_epoch(make_loop: Callable[..., Loop]) -> None:
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


def test_a_stop_asked_for_during_evaluation_repeats_only_the_evaluation(
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


def test_a_target_ends_the_run_early(make_loop: Callable[..., Loop]) -> None:
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


def test_starting_anew_says_where_the_checkpoints_went(
    make_loop: Callable[..., Loop], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make_loop("--max-steps", "1").run()
    make_loop().checkpointer.checkpoints.set_aside()
    assert "--no-resume: earlier checkpoints are moved to " in capfd.readouterr().out
    assert [path.name for path in tmp_path.glob("before-*/step-*")] == ["step-00000001"]


def test_another_seed_does_not_resume(make_loop: Callable[..., Loop]) -> None:
    make_loop("--max-steps", "1").run()
    with pytest.raises(Refused, match="--seed 0 --batch-size 32, not --task digits --seed 1"):
        make_loop("--max-steps", "1", "--seed", "1").resume()


def test_help_and_bad_arguments_need_no_torch() -> None:
    code = (
        "import sys, json; sys.path[:0] = sys.argv[1:3]; from cloudtrain_trainer import arguments; arguments.parse([]);"
        "print(json.dumps(sorted(sys.modules)))"
    )
    argv = [sys.executable, "-c", code, str(ENTRYPOINTS), str(ENTRYPOINTS / "job")]
    loaded = set(
        json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=HANG_SECONDS).stdout)
    )
    assert not loaded & {"torch", "numpy", "sklearn"}
