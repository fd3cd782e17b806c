"""What a training makes of the machine: its precision and peak, parts of a batch that fit, processes that load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cloudtrain_trainer import hardware, memory, strategies, tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.checkpoint import CheckpointStore
from cloudtrain_trainer.loop import Loop
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.strategies.model_parallel import Chain

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def make_loop(tmp_path: Path) -> Callable[..., Loop]:
    def make(*argv: str) -> Loop:
        torch.set_num_threads(1)
        options = parse(list(argv))
        strategy = strategies.build(Ranks(), options)
        task = tasks.build("digits", options.seed)
        return Loop(task, strategy, options, CheckpointStore(tmp_path, 3, strategy.ranks), Stop())

    return make


@pytest.mark.parametrize(
    ("asked", "capability", "wanted"),
    [("auto", (9, 0), "bf16"), ("auto", (8, 0), "bf16"), ("auto", (7, 5), "no"), ("fp16", (9, 0), "fp16")],
)
def test_a_gpu_that_computes_in_bf16_does(
    asked: str, capability: tuple[int, int], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert hardware.resolve_precision(asked, GPU) == wanted


def test_a_cpu_computes_in_float32_unless_told_otherwise() -> None:
    assert [hardware.resolve_precision(asked, CPU) for asked in ("auto", "no", "bf16")] == ["no", "no", "bf16"]


def test_one_process_that_drives_all_gpus_counts_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert hardware.all_devices(GPU) == [torch.device("cuda", index) for index in range(3)]
    assert hardware.all_devices(CPU) == [CPU]


def test_compiling_without_a_compiler_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for device in (CPU, GPU):
        with pytest.raises(Refused, match=r"none is installed .*WITH_COMPILER=1"):
            hardware.check_compiler(device)


@pytest.mark.parametrize(
    ("batch", "largest", "parts"), [(24, 12, 2), (24, 8, 3), (24, 7, 4), (25, 5, 5), (25, 1, 25), (24, 24, 2)]
)
def test_a_batch_is_cut_into_as_few_parts_as_fit(
    make_loop: Callable[..., Loop], batch: int, largest: int, parts: int
) -> None:
    loop = make_loop("--batch-size", str(batch))
    loop.split_to_fit(largest)
    assert (loop.step.accumulation_steps, loop.batches.accumulation_steps, loop.batches.batch_size) == (
        parts,
        parts,
        batch,
    )
    assert loop.micro_batch <= largest


def test_a_batch_that_cannot_be_cut_further_is_refused_with_a_way_out(make_loop: Callable[..., Loop]) -> None:
    loop = make_loop("--batch-size", "4", "--accumulate", "4")
    with pytest.raises(Refused, match=r"micro-batches of 1 samples per rank do not fit .* use --strategy fsdp"):
        loop.split_to_fit(0)


def test_the_trial_goes_through_all_devices(make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch) -> None:
    loop, passed = make_loop("--strategy", "model-parallel", "--probe-memory", "yes"), []
    forward = Chain.forward

    def counted(chain: Chain, values: torch.Tensor) -> torch.Tensor:
        passed.append(len(values))
        return forward(chain, values)

    monkeypatch.setattr(Chain, "forward", counted)
    memory.fit_micro_batch(loop, memory.MicroBatchCache(loop.checkpointer.checkpoints.folder, loop.ranks, "digits"))
    assert passed == [32]
