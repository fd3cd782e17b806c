"""The batch report at the start of a run: size per device, a warning if it is too small, room for
more.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cloudtrain_trainer import hardware
from cloudtrain_trainer.training import memory
from cloudtrain_trainer.training.batch_report import BatchShape, describe, log_batch
from cloudtrain_trainer.training.loop import Loop
from cloudtrain_trainer.training.memory import Trial


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (BatchShape(256, 8, 1, 1), "batch: 256 images per step over all ranks, 32 per GPU"),
        (
            BatchShape(256, 8, 1, 2),
            "batch: 256 images per step over all ranks, 32 per GPU, in 2 micro-batches of 16",
        ),
        (
            BatchShape(64, 2, 4, 1),
            "batch: 64 images per step over all ranks, 32 per group of 4 GPUs",
        ),
        (BatchShape(100, 8, 1, 1), "batch: 100 images per step over all ranks, 12 or 13 per GPU"),
        (BatchShape(4, 1, 1, 1), "batch: 4 images per step over all ranks, 4 per GPU"),
    ],
)
def test_the_batch_is_told_globally_and_per_gpu(shape: BatchShape, expected: str) -> None:
    assert describe(shape, "images", "GPU") == [expected]


def test_a_batch_too_small_for_the_machine_is_told_with_a_reason_and_a_size() -> None:
    _, line = describe(BatchShape(32, 8, 1, 1), "images", "GPU")
    assert (
        "a GPU computes 4 images at once, fewer than 8, so that starting kernels and sending"
        " gradients" in line
    )
    assert line.endswith("--batch-size 64 or fewer ranks would use it better")
    _, line = describe(BatchShape(64, 8, 1, 2), "images", "GPU")
    assert "--batch-size 128 or a lower --accumulate" in line
    _, line = describe(BatchShape(16, 8, 1, 1), "sequences", "GPU", tokens=1024)
    assert "computes 2 sequences at once, fewer than 4096 tokens" in line
    assert len(describe(BatchShape(32, 8, 1, 1), "sequences", "GPU", tokens=1024)) == 1


def test_a_run_says_it_once(
    make_loop: Callable[..., Loop], capfd: pytest.CaptureFixture[str]
) -> None:
    log_batch(make_loop("--accumulate", "2"))
    assert (
        capfd.readouterr().out
        == "batch: 32 images per step over all ranks, 32 per rank, in 2 micro-batches of 16\n"
    )
    log_batch(make_loop("--eval-only"))
    assert capfd.readouterr().out == ""


def test_the_trial_of_memory_says_how_much_larger_a_micro_batch_could_be(
    make_loop: Callable[..., Loop],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """16 GB minus 4 GB in use; 32 samples take 2 GB more: 90 % of the other 10 GB are 144 samples."""
    gigabytes = 10**9
    monkeypatch.setattr(hardware, "allocated_memory", lambda _: 4 * gigabytes)
    monkeypatch.setattr(hardware, "peak_memory", lambda _: 6 * gigabytes)
    monkeypatch.setattr(hardware, "total_memory", lambda _: 16 * gigabytes)
    loop = make_loop("--probe-memory", "yes")
    memory.fit_micro_batch(
        loop, memory.MicroBatchCache(loop.checkpointer.checkpoints.folder, loop.ranks, "digits")
    )
    out = capfd.readouterr().out
    assert (
        "a micro-batch of 32 samples per rank takes 6.0 of 16.0 GB; about 176 would fit: a larger"
        " --batch-size" in out
    )


def test_room_that_is_unknown_or_small_is_not_told() -> None:
    assert Trial(4, 6, 0).largest(32) == 32
    assert Trial(4 * 10**9, 15 * 10**9, 16 * 10**9).largest(32) == 34
