"""Strategies have the losses of a loop by hand, and handle devices, precision and generators."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from cloudtrain_trainer import ranks as ranks_module
from cloudtrain_trainer.ranks import EXCHANGE_SECONDS, CollectiveFlags, Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.trainer.loss_curves import (
    STEPS,
    TOLERANCE,
    begin,
    one_process,
    small_task,
    task_flags,
    train,
)


@pytest.mark.once
def test_two_ranks_have_the_losses_and_gradients_of_one_process(group: StartGroup) -> None:
    """The checks of ddp_checks.py, all in one group of ranks."""
    checks = group(2, program="tests.entrypoints.trainer.ddp_checks:main")
    assert checks.wait() == [0, 0], checks.output()
    assert [log.read_text().count("all checks passed on rank") for log in checks.logs] == [1, 1]


def curve_by_hand(name: str) -> list[float]:
    """Return losses and val_loss of a loop by functions of torch alone, on whole batches."""
    task = small_task(name)
    torch.manual_seed(0)
    model = task.model()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(matrices, weight_decay=task.weight_decay)
    optimizer.add_param_group({"params": vectors, "weight_decay": 0.0})
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(0)).tolist()

    def loss_of(data: Any, indices: list[int]) -> torch.Tensor:
        inputs, labels = data[Draw(0, indices)]
        return F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())

    losses = []
    for number in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = task.lr * (number + 1) / 10
        loss = loss_of(task.train, order[32 * number : 32 * (number + 1)])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():
        return [*losses, loss_of(task.validation, list(range(61))).item()]


@pytest.mark.parametrize("name", ["digits", "text", "padded"])
def test_micro_batches_have_the_losses_of_a_loop_written_by_hand(name: str) -> None:
    expected = curve_by_hand(name)
    for accumulate in ("1", "8"):
        flags = [*task_flags(name), "--accumulate", accumulate]
        trained = train(begin(small_task(name), flags, one_process()))
        assert trained.losses[: STEPS + 1] == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("name", ["digits", "padded"])
def test_losses_are_the_same_when_one_process_uses_several_devices(name: str) -> None:
    """Here all devices are the CPU: values are checked, not placement."""
    flags = [*task_flags(name), "--clip-norm", "0.5"]
    spread = [*flags, "--strategy", "dp", "--accumulate", "3"]
    losses = train(begin(small_task(name), spread, one_process())).losses
    expected = train(begin(small_task(name), flags, one_process())).losses
    assert losses == pytest.approx(expected, rel=TOLERANCE)


def test_replicas_of_dp_compute_in_the_requested_precision() -> None:
    """torch runs each replica in a new thread, where autocast means fp16 on a GPU."""
    loop = begin(small_task("digits"), ["--strategy", "dp", "--amp", "bf16"], one_process())
    (copies,) = (m for m in loop.step.wrapped.modules() if isinstance(m, torch.nn.DataParallel))
    replica = copies.module._replicate_for_data_parallel()
    inputs, _ = next(loop.batches.load(0, 0))
    dtypes: list[torch.dtype] = []

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            dtypes.append(replica(inputs).dtype)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert dtypes == [torch.bfloat16]


def test_the_generator_of_every_gpu_is_saved_and_restored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two simulated GPUs with generators only: each gets its state back.

    A resume with another number of GPUs seeds the generators again, and says so.
    """
    argv = ["--task", "digits", "--strategy", "dp"]
    gpus = [torch.device("cuda", n) for n in (0, 1)]
    states = {device: torch.tensor([10 + device.index], dtype=torch.uint8) for device in gpus}

    def restore(one: torch.Tensor, device: torch.device) -> None:
        states[device] = one

    monkeypatch.setattr(torch.cuda, "get_rng_state", states.__getitem__)
    monkeypatch.setattr(torch.cuda, "set_rng_state", restore)
    saved, same, other = (
        begin(small_task("digits"), argv, one_process(), tmp_path) for _ in range(3)
    )
    with monkeypatch.context() as patch:
        for loop in (saved, same):
            patch.setattr(loop, "devices", gpus)
        saved.checkpointer.save(last=True)
        expected = dict(states)
        states.clear()
        same.resume()
    assert states == expected
    assert "seeded anew" not in capfd.readouterr().out

    other.resume()
    assert "seeded anew" in capfd.readouterr().out


def test_a_world_smaller_than_the_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Ranks().check_world_size()
    monkeypatch.setenv("CLOUDTRAIN_NODES", "2")
    monkeypatch.setenv("CLOUDTRAIN_PROCESSES", "1")
    with pytest.raises(Refused, match="2 nodes x 1 processes = 2"):
        Ranks().check_world_size()


def test_too_few_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(Refused, match="2 processes on this node, but 1 GPUs"):
        Ranks()


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
    of_checkpoints = dist.new_group([0], timeout=timedelta(seconds=5))
    groups = dist.group.WORLD, of_checkpoints
    assert [timeout(group) for group in groups] == [77, 5]
    alone.begin_training(timeout=33)
    assert [timeout(group) for group in groups] == [33, 5], (
        "writing a checkpoint has a time of its own"
    )
    alone.begin_training(timeout=1)
    assert timeout(dist.group.WORLD) == 33, "only the first step of a process begins the training"


def test_gpus_wait_for_each_other_and_then_have_nccls_own_time(
    alone: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = list[str]()
    monkeypatch.setattr(alone, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: finished.append("device"))
    monkeypatch.setattr(alone, "barrier", lambda: finished.append("ranks"))
    monkeypatch.setattr(
        ranks_module, "set_timeout", lambda seconds: finished.append(f"{seconds:.0f} s")
    )
    alone.begin_training(timeout=None)
    assert finished == ["device", "ranks", "600 s"]
