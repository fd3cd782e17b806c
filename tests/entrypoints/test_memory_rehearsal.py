"""A rehearsal without values finds what a real step takes; whether it fits follows from that."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from cloudtrain_trainer import memory
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.memory import Held, rehearse
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.rules import Refused
from tests.entrypoints.loss_curves import one_process
from tests.support.step_memory import estimated, measured

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "flags",
    [
        ["--task", "digits"],
        ["--task", "gpt", "--recompute", "blocks", "--amp", "bf16", "--accumulate", "2"],
        ["--task", "resnet50", "--size=tiny", "--strategy", "fsdp"],
    ],
    ids=["convolutions", "recomputed", "sharded"],
)
def test_a_rehearsal_takes_what_the_step_takes(
    flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    flags = [*flags, "--batch-size", "16"]
    low, _, high = memory.CPU_TENSORS
    estimate = estimated(flags)
    assert low * estimate < measured(flags, one_process()) < high * estimate


def of_four(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> Held:
    monkeypatch.setenv("WORLD_SIZE", "4")
    options = parse(["--task", "digits", "--batch-size", "16", *flags])
    return rehearse(options, like_gpu=True, amp="no")


def test_strategies_share_what_they_say_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = of_four(["--strategy", "ddp"], monkeypatch)
    shared = of_four(["--strategy", "fsdp"], monkeypatch)
    for part in ("parameters", "gradients"):
        assert getattr(shared, part) == pytest.approx(getattr(copied, part) / 4, rel=0.05)
    assert shared.peak < copied.peak


def test_nothing_is_drawn_and_no_group_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_rng_state()
    of_four(["--strategy", "ddp"], monkeypatch)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.distributed.is_initialized()


def answered(
    gib: int, monkeypatch: pytest.MonkeyPatch, *flags: str, ranks: int = 4
) -> dict[str, Any]:
    """Return the answer for a model with activations of 1 GiB per sample, on a GPU of `gib` GiB.

    Parameters, gradients and state are 8 GiB, which fsdp divides.
    """

    def held(options: Options, **_: Any) -> Held:
        assert options.batch_size
        samples = options.batch_size // ranks // options.accumulate
        fixed = 8 // (ranks if options.strategy == "fsdp" else 1)
        gib_per_sample = {"none": 1, "blocks": 0.25}[options.recompute]
        peak = int((fixed + gib_per_sample * samples) * memory.GIB)
        return Held(peak, fixed * memory.GIB // 4, 0, 0)

    monkeypatch.setattr("cloudtrain_trainer.memory.rehearse", held)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")  # the program sets them
    request = {
        "argv": ["--task", "gpt", "--batch-size", "64", *flags],
        "ranks": ranks,
        "per_node": ranks,
        "gpu": "A100",
        "memory": gib * memory.GIB,
    }
    return memory.main(json.dumps(request))


@pytest.mark.parametrize(
    ("gib", "flags", "expected"),
    [
        (80, [], []),
        (24, [], ["ddp blocks", "fsdp none", "fsdp blocks"]),
        (9, ["--accumulate", "8"], ["fsdp none", "fsdp blocks"]),
        (1, [], []),
    ],
)
def test_recomputing_and_sharding_are_tried(
    gib: int, flags: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = answered(gib, monkeypatch, "--strategy", "ddp", *flags)
    plans = answer["alternatives"]
    shown = [f"{plan['strategy']} {plan['recompute']}" for plan in plans]
    assert shown == expected
    assert (answer["plan"]["verdict"] == "fits") == (gib == 80)


def test_unknown_memory_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = answered(0, monkeypatch)
    assert (answer["plan"]["verdict"], answer["alternatives"]) == ("", [])


def test_strategies_of_several_devices_in_a_process_are_refused() -> None:
    options = parse(["--task", "digits", "--strategy", "dp"])
    with pytest.raises(Refused, match="no estimate for --strategy dp"):
        rehearse(options, like_gpu=True, amp="no")


def test_gpus_have_less_than_their_name_says_and_old_ones_no_bf16() -> None:
    assert 14 < memory.usable("T4", 16) / memory.GIB < 15
    assert memory.usable("L40S", 44.7) / memory.GIB > 43  # as CUDA reports it already
    assert [memory.precision("auto", gpu) for gpu in ("A100", "V100", "")] == ["bf16", "no", "no"]


def test_the_interval_on_a_gpu_holds_its_libraries() -> None:
    on_gpu = memory.needed(10 * memory.GIB, "A100", 2)
    assert on_gpu.low < on_gpu.expected < on_gpu.high
    assert on_gpu.low > 0.95 * 10 * memory.GIB


@pytest.mark.parametrize(
    ("flags", "parameters", "expected"),
    [
        ([], 10, 2 * 10 + 20),
        (["--strategy", "fsdp"], 10, 4 * 8 * 10),
        ([], 1000, 4 * 1000),
    ],
)
def test_copies_for_checkpoints_are_in_host_memory(
    flags: list[str], parameters: int, expected: int
) -> None:
    """Two nodes of four ranks: each rank builds the model, and copies are kept."""
    held = Held(peak=0, parameters=parameters, gradients=10, optimizer=20)
    request = memory.Request([], ranks=8, per_node=4)
    assert memory.host_bytes(held, parse(flags), request) == expected


def test_a_process_without_a_gpu_needs_memory_for_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parameters fit as trained; with a copy of the state they do not."""
    size = 4 * memory.GIB
    monkeypatch.setattr(memory, "rehearse", lambda *_, **__: Held(4 * size, size, size, 2 * size))
    options = parse(["--amp", "no"])
    plan = memory._plan(options, memory.Request([], 1, 1), 30 * memory.GIB)
    assert (plan["host"], plan["verdict"]) == (4 * size, "does not fit")
