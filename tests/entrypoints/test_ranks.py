"""The size of the world is checked; flags are exchanged every few steps: soon enough to stop, at
little cost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist

from cloudtrain_trainer import ranks as ranks_module
from cloudtrain_trainer.ranks import EXCHANGE_SECONDS, CollectiveFlags, Ranks
from cloudtrain_trainer.rules import Refused


def test_a_world_smaller_than_the_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("deterministic", [False, True])
def test_gpus_compute_with_deterministic_algorithms_if_they_are_asked_to(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    answers = list[bool]()
    monkeypatch.setattr(torch, "use_deterministic_algorithms", answers.append)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    ranks = Ranks()
    monkeypatch.setattr(ranks, "device", torch.device("cuda"))
    ranks_module.configure_threads(ranks, deterministic=deterministic)
    assert answers == [True] * deterministic
    assert torch.backends.cudnn.benchmark is not deterministic
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if deterministic else None)


class OnlyRank:
    """The only rank of a world."""

    rank = 0

    def all_reduce_max(self, *values: int) -> Callable[[], list[int]]:
        return lambda: list(values)


def exchange_steps(
    step_seconds: float, steps: int, first: int = 0, began: float = 0.0
) -> list[int]:
    """Return the steps at which flags are exchanged, from `first`; the first step is `began`
    seconds after the start.
    """
    clock = 0.0
    flags, requested = CollectiveFlags(OnlyRank(), clock=lambda: clock), []  # type: ignore[arg-type]
    clock = began
    for step in range(first, first + steps):
        wait = flags.start(step, lambda: (False,))
        clock += step_seconds
        if wait is not None:
            wait()
            requested.append(step)
    return requested


def test_fast_steps_exchange_flags_every_few_steps() -> None:
    requested = exchange_steps(step_seconds=EXCHANGE_SECONDS / 10.5, steps=100)
    assert requested[:5] == [0, 1, 3, 7, 15]
    assert {after - before for before, after in pairwise(requested[4:])} <= {8, 10}


def test_a_flag_is_known_after_the_next_exchange() -> None:
    flags = CollectiveFlags(OnlyRank())  # type: ignore[arg-type]
    wait = flags.start(0, lambda: (True, False))
    assert wait is not None
    assert wait() == [True, False]


def test_other_ranks_use_the_stride_of_rank_0() -> None:
    class Second(OnlyRank):
        rank = 1

        def all_reduce_max(self, *values: int) -> Callable[[], list[int]]:
            return lambda: [max(mine, first) for mine, first in zip(values, (7, 0), strict=True)]

    flags = CollectiveFlags(Second())  # type: ignore[arg-type]
    wait = flags.start(0, lambda: (False,))
    assert wait is not None
    wait()
    requested = [step for step in range(1, 8) if flags.start(step, lambda: (False,)) is not None]
    assert requested == [7]


def timeout(group: Any) -> float:
    seconds: float = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    return seconds


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """The only rank of a world, which waits 77 seconds for itself while it starts."""
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    ranks = Ranks(start_timeout=77)
    ranks.init_process_group("gloo")
    yield ranks
    dist.destroy_process_group()


def test_collectives_have_more_time_until_the_first_step_is_done(alone: Ranks) -> None:
    of_a_mesh = dist.new_group([0], timeout=timedelta(seconds=3))
    alone.allow_slow_start()
    of_checkpoints = dist.new_group([0], timeout=timedelta(seconds=5))
    groups = dist.group.WORLD, of_a_mesh, of_checkpoints
    assert [timeout(group) for group in groups] == [77, 77, 5]
    alone.begin_training(timeout=33)
    assert [timeout(group) for group in groups] == [33, 33, 5], (
        "writing a checkpoint has a time of its own"
    )
    alone.begin_training(timeout=1)
    assert timeout(dist.group.WORLD) == 33, "only the first step of a process begins the training"


def test_gpus_wait_for_each_other_and_then_have_nccls_own_time(
    alone: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = list[str]()
    alone.allow_slow_start()
    monkeypatch.setattr(alone, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: finished.append("device"))
    monkeypatch.setattr(alone, "barrier", lambda: finished.append("ranks"))
    monkeypatch.setattr(
        ranks_module, "set_timeouts", lambda _, seconds: finished.append(f"{seconds:.0f} s")
    )
    alone.begin_training(timeout=None)
    assert finished == ["device", "ranks", "600 s"]
