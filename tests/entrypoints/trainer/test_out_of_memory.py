"""Micro-batches that do not fit into memory are split, and the batch and the result stay the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.training import memory
from cloudtrain_trainer.training.loop import Loop
from tests.entrypoints.groups import ForkServer, Group, StartGroup

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            "CUDA out of memory",
        ),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"),
            "DefaultCPUAllocator",
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "CUDNN_STATUS_ALLOC_FAILED"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
        (
            RuntimeError("NCCL error: ... Failed to CUDA calloc 6291456 bytes"),
            "Failed to CUDA calloc",
        ),
    ],
)
def test_out_of_memory_errors_of_libraries_are_recognised(error: Exception, named: str) -> None:
    assert memory.is_out_of_memory(error)
    assert named in memory.describe_error(error)


def test_other_errors_are_not_out_of_memory() -> None:
    for error in (
        RuntimeError("Connection closed by peer"),
        ValueError("out of memory"),
        RuntimeError("mat1 and mat2"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if"),
    ):
        assert not memory.is_out_of_memory(error)


def test_a_cached_micro_batch_is_used_for_the_same_gpu_only(tmp_path: Path) -> None:
    memory.MicroBatchCache(tmp_path, Ranks(), "digits ddp T4").write(16)
    assert memory.MicroBatchCache(tmp_path, Ranks(), "digits ddp T4").read() == 16
    assert memory.MicroBatchCache(tmp_path, Ranks(), "digits ddp H100").read() is None
    (tmp_path / memory.FILE).write_text("damaged")
    assert memory.MicroBatchCache(tmp_path, Ranks(), "digits ddp T4").read() is None


@pytest.mark.parametrize(
    ("batch", "largest", "steps"),
    [(24, 12, 2), (24, 8, 3), (24, 7, 4), (25, 5, 5), (25, 1, 25), (24, 24, 2)],
)
def test_a_batch_is_split_into_the_fewest_micro_batches_that_fit(
    make_loop: Callable[..., Loop], batch: int, largest: int, steps: int
) -> None:
    loop = make_loop("--batch-size", str(batch))
    loop.split_to_fit(largest)
    assert (
        loop.step.accumulation_steps,
        loop.batches.accumulation_steps,
        loop.batches.batch_size,
    ) == (
        steps,
        steps,
        batch,
    )
    assert loop.micro_batch <= largest


def test_a_batch_that_cannot_be_split_further_is_refused_with_a_hint(
    make_loop: Callable[..., Loop],
) -> None:
    loop = make_loop("--batch-size", "4", "--accumulate", "4")
    with pytest.raises(
        Refused,
        match=r"micro-batches of 1 samples per rank do not fit .* batch of 4 cannot be split",
    ):
        loop.split_to_fit(0)


def test_probing_reserves_optimizer_state_of_trained_weights_only(
    make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loop = make_loop("--probe-memory", "yes")
    first, *others = loop.step.model.parameters()
    for parameter in others:
        parameter.requires_grad_(False)
    empty_like = Mock(wraps=torch.empty_like)
    monkeypatch.setattr(torch, "empty_like", empty_like)
    cache = memory.MicroBatchCache(tmp_path, loop.ranks, "digits")
    memory.fit_micro_batch(loop, cache)
    reserved = [call.args[0] for call in empty_like.call_args_list]
    parameters = [tensor for tensor in reserved if isinstance(tensor, torch.nn.Parameter)]
    assert [id(parameter) for parameter in parameters] == [id(first)] * 2


FLAGS = (
    "--model tests.entrypoints.trainer.own_models:Hungry --task digits --epochs 9 --eval-every 9"
    " --max-steps 4 --batch-size 128 --checkpoint-every-steps 2 --warm-up 0"
)


HOOKS = "tests.entrypoints.trainer.rank_hooks"


@pytest.fixture(scope="module")
def expected(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The last metrics of the same run with enough memory."""
    folder = tmp_path_factory.mktemp("enough")
    ranks = Group(fork_server, folder, 2, FLAGS)
    ranks.succeed()
    values: dict[str, float] = ranks.events("metrics")[-1]["values"]
    return values


def check_metrics(ranks: Group, expected: dict[str, float]) -> None:
    """Equal but for rounding: the sums have another order."""
    values = ranks.events("metrics")[-1]["values"]
    for name in ("loss", "val_loss"):
        assert values[name] == pytest.approx(expected[name], rel=5e-6)


def test_probing_finds_a_micro_batch_that_fits_on_all_ranks(
    group: StartGroup, expected: dict[str, float]
) -> None:
    hook = f"{HOOKS}:limit_rank_1_in_its_first_pass"
    ranks = group(2, f"{FLAGS} --probe-memory yes", before=hook)
    ranks.succeed()
    (event,) = ranks.events("memory")
    assert event["refused"][0] == 64
    assert event["micro_batch"] * event["parts"] == 64
    check_metrics(ranks, expected)


def test_after_running_out_in_training_the_next_start_halves_the_micro_batch(
    group: StartGroup, expected: dict[str, float]
) -> None:
    hook = f"{HOOKS}:limit_rank_1_after_a_checkpoint"
    ranks = group(2, FLAGS, before=hook)
    assert ranks.wait()[1] == 12, ranks.output()
    (error,) = ranks.events("error", rank=1)
    assert error["exception"] == "OutOfMemory"
    assert (
        "The next start uses micro-batches of 32 samples per rank, and the same batch"
        in error["message"]
    )
    start_group = group(2, FLAGS, before=f"{HOOKS}:limit_rank_1_in_its_first_pass")
    start_group.succeed()
    assert [event["step"] for event in start_group.events("resumed")] == [2], start_group.output()
    line = (
        "an earlier start ran out of memory: micro-batches of 32 samples per rank, 2 per step; the"
        " batch stays 128"
    )
    assert line in start_group.output()
    check_metrics(start_group, expected)
