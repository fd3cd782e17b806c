"""Strategies that split a model over ranks or devices have the losses of one process."""

from __future__ import annotations

import pytest
import torch

from cloudtrain_trainer.strategies.one_process import Chain
from cloudtrain_trainer.training import memory
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.trainer import split_tasks  # adds its small tasks
from tests.entrypoints.trainer.loss_curves import (
    TOLERANCE,
    begin,
    one_process,
    small_task,
    task_flags,
    train,
)

assert split_tasks.PADDED


@pytest.mark.once
@pytest.mark.parametrize(("ranks", "program"), [(2, "curves"), (4, "curves"), (2, "details")])
def test_losses_and_gradients_are_those_of_one_process(
    group: StartGroup, ranks: int, program: str
) -> None:
    """Run split_checks.py, one group of ranks per size."""
    checks = group(ranks, program=f"tests.entrypoints.trainer.split_checks:{program}")
    assert checks.wait() == [0] * ranks, checks.output()
    assert [log.read_text().count("all checks passed on rank") for log in checks.logs] == [
        1
    ] * ranks


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("digits", "--strategy model-parallel --clip-norm 0.5"),
        ("gpt", "--strategy model-parallel --stages 4"),
    ],
    ids=["digits, stages, clipped", "gpt, stages"],
)
def test_losses_are_the_same_when_one_process_uses_several_devices(name: str, flags: str) -> None:
    """Here all devices are the CPU: values are checked, not placement."""
    clip = ["--clip-norm", "0.5"] if "--clip-norm" in flags else []
    spread = train(begin(small_task(name), [*task_flags(name), *flags.split()], one_process()))
    expected = train(begin(small_task(name), [*task_flags(name), *clip], one_process()))
    assert spread.losses == pytest.approx(expected.losses, rel=TOLERANCE)


def test_probing_runs_the_batch_through_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [*task_flags("digits"), "--strategy", "model-parallel", "--probe-memory", "yes"]
    loop = begin(small_task("digits"), argv, one_process())
    passed = []
    forward = Chain.forward

    def counted(chain: Chain, values: torch.Tensor) -> torch.Tensor:
        passed.append(len(values))
        return forward(chain, values)

    monkeypatch.setattr(Chain, "forward", counted)
    cache = memory.MicroBatchCache(loop.checkpointer.checkpoints.folder, loop.ranks, "digits")
    memory.fit_micro_batch(loop, cache)
    assert passed == [32]


@pytest.mark.once
@pytest.mark.parametrize(
    ("count", "program"),
    [(2, "graphs"), pytest.param(4, "hybrid_graphs", marks=pytest.mark.thorough)],
)
def test_sharding_strategies_compile_layer_by_layer(
    group: StartGroup, count: int, program: str
) -> None:
    ranks = group(count, program=f"tests.entrypoints.trainer.split_graphs:{program}")
    assert ranks.wait() == [0] * count, ranks.output()
    assert [log.read_text().count("all checks passed on rank") for log in ranks.logs] == [1] * count


def test_shards_on_the_disks_of_two_nodes_make_one_checkpoint(group: StartGroup) -> None:
    ranks = group(3, program="tests.entrypoints.trainer.split_weights:main")
    assert ranks.wait() == [0, 0, 0], ranks.output()
    assert ["all checks passed" in log.read_text() for log in ranks.logs] == [True] * 3
