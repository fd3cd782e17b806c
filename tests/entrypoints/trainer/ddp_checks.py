"""Programs of ranks, run by test_strategies.py and test_hardware.py: DDP against one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from cloudtrain_trainer import hardware
from cloudtrain_trainer.ranks import Ranks, exit_on_uncaught_errors
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.training import step
from cloudtrain_trainer.training.loop import Loop
from tests.entrypoints.trainer.loss_curves import (
    NORM_TOLERANCE,
    STEPS,
    TOLERANCE,
    Curve,
    begin,
    begin_in_one_process,
    relative_difference,
    small_task,
    task_flags,
    train,
)

SHORT_TOLERANCE = 2e-2
"""Relative, between two ways of computing in bf16 or fp16, after some steps."""

CURVES = [
    ("digits", "--accumulate 2 --clip-norm 0.5"),
    ("text", "--optimizer sgd --clip-norm 0.5 --recompute blocks"),
    ("padded", "--accumulate 8 --clip-norm 0.5"),
]
"""Task, further flags."""

_curves: dict[str, Curve] = {}


def curve_of_one_process(name: str, ranks: Ranks, *flags: str) -> Curve:
    """Return the loss curve of a task on all ranks: rank 0 computes it once, while the others wait."""
    argv = [*task_flags(name), *flags]
    key = " ".join([name, *argv])
    if key not in _curves:
        mine = train(begin_in_one_process(small_task(name), argv)) if ranks.rank == 0 else None
        _curves[key] = ranks.all_gather(mine)[0]
    return _curves[key]


def of_every_strategy(flags: str) -> list[str]:
    """Return the flags that one process needs as well, for the same curve."""
    words = flags.split()
    shared = []
    for word, value in pairwise(words):
        if word in ("--clip-norm", "--optimizer"):
            shared += [word, value]
    return shared


def check_curve(ranks: Ranks, name: str, strategy: str, flags: str) -> None:
    """Losses, evaluation and gradient norms of a strategy are equal to one process."""
    expected = curve_of_one_process(name, ranks, *of_every_strategy(flags))
    argv = [*task_flags(name), "--strategy", strategy, *flags.split()]
    trained = train(begin(small_task(name), argv, ranks))
    losses, norms = map(relative_difference, trained, expected)
    ranks.log(f"{name} {strategy} {flags}: losses differ by {losses:.1e}, gradients by {norms:.1e}")
    assert losses < TOLERANCE, f"{name} {strategy} {flags}: {trained.losses}, not {expected.losses}"
    assert norms < NORM_TOLERANCE, (
        f"{name} {strategy} {flags}: {trained.norms}, not {expected.norms}"
    )


@contextmanager
def fused_on(*devices: str) -> Iterator[None]:
    """Use channels-last images and the fused optimizer on these types of devices, as on GPUs."""
    before = step.FUSED_ON
    step.FUSED_ON = devices
    try:
        yield
    finally:
        step.FUSED_ON = before


def check_fused_optimizer(ranks: Ranks) -> None:
    """Channels last and the fused optimizer, as on GPUs, change nothing."""
    expected = curve_of_one_process("digits", ranks)
    with fused_on("cuda", "cpu"):
        argv = [*task_flags("digits"), "--strategy", "ddp"]
        trained = train(begin(small_task("digits"), argv, ranks))
    assert max(map(relative_difference, trained, expected)) < NORM_TOLERANCE


def check_short_numbers(ranks: Ranks, amp: str) -> None:
    """Ranks compute in bf16 or fp16 as one process does, and keep their weights in float32."""
    expected = curve_of_one_process("text", ranks, "--amp", amp)
    loop = begin(
        small_task("text"), [*task_flags("text"), "--strategy", "ddp", "--amp", amp], ranks
    )
    dtypes = set()
    for layer in loop.step.model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda *outputs: dtypes.add(outputs[-1].dtype))
    losses, norms = map(relative_difference, train(loop), expected)
    short = {"bf16": torch.bfloat16, "fp16": torch.float16}[amp]
    assert short in dtypes
    assert {value.dtype for value in loop.step.model.state_dict().values()} == {torch.float32}
    assert max(losses, norms) < SHORT_TOLERANCE, (amp, losses, norms)


def parameters(loop: Loop) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in loop.step.model.named_parameters()}


def check_frozen_weights(ranks: Ranks) -> None:
    """Ranks train adapters in layers that are frozen otherwise, as one process; the rest stays."""
    argv = [*task_flags("adapted"), "--clip-norm", "0.5"]
    alone = begin_in_one_process(small_task("adapted"), argv)
    before = parameters(alone)
    expected = train(alone)
    after = parameters(alone)
    for more in ("--recompute blocks", "--accumulate 2"):
        flags = [*argv, "--strategy", "ddp", *more.split()]
        loop = begin(small_task("adapted"), flags, ranks)
        curve = train(loop)
        assert relative_difference(curve.losses, expected.losses) < TOLERANCE, more
        assert relative_difference(curve.norms, expected.norms) < NORM_TOLERANCE, more
        for name, parameter in loop.step.model.named_parameters():
            trained = name.endswith(("lower.weight", "upper.weight"))
            assert parameter.requires_grad == trained, name
            assert torch.equal(parameter, before[name]) != trained, name
            torch.testing.assert_close(parameter.detach(), after[name], rtol=1e-3, atol=1e-5)


def check_resume_without_frozen_weights(ranks: Ranks) -> None:
    """Ranks resume from a checkpoint of the trained weights alone, on the same base only."""
    folder = Path("adapted")
    argv = [*task_flags("adapted"), "--strategy", "ddp", "--max-steps", "2"]
    saved = begin(small_task("adapted"), argv, ranks, folder)
    assert saved.run() == "succeeded"
    whole = sum(p.numel() * 4 for p in saved.step.model.parameters())
    written = [file.stat().st_size for file in folder.glob("step-00000002/*/*")]
    assert sum(written) < whole / 2

    resumed = begin(small_task("adapted"), argv, ranks, folder)
    resumed.resume()
    assert resumed.position.step == 2
    expected = parameters(saved)
    for name, value in parameters(resumed).items():
        assert torch.equal(value, expected[name]), name
    # Only the base is another one: the flags, which a resume compares as well, are the same.
    other = begin(small_task("on_other_base"), argv, ranks, folder)
    with pytest.raises(Refused, match="other ones now"):
        other.resume()


def check_averages(ranks: Ranks) -> None:
    """Ranks have the averages of one process, evaluate them, and go on with their weights."""
    argv = [*task_flags("text"), "--ema", "0.9"]
    alone = begin_in_one_process(small_task("text"), argv)
    together = begin(small_task("text"), [*argv, "--strategy", "ddp"], ranks)
    curves = []
    for loop in (alone, together):
        first = train(loop)
        assert loop.evaluate_only() == "succeeded"
        evaluated = loop.metrics["val_loss"]
        assert evaluated != first.losses[STEPS], "the averages were evaluated, not the weights"
        curves.append([*first.losses, evaluated, *train(loop).losses])
    assert relative_difference(*reversed(curves)) < TOLERANCE, curves
    assert alone.step.averages is not None
    assert together.step.averages is not None
    for name, average in alone.step.averages.tensors.items():
        torch.testing.assert_close(together.step.averages.tensors[name], average)


def check_bandwidth(ranks: Ranks) -> None:
    """All ranks measure the same bandwidth."""
    with patch.object(hardware, "MESSAGE_SIZES", (1 << 16, 1 << 20)):
        measured = hardware.bus_bandwidth(ranks)
    assert measured > 0
    assert len({*ranks.all_gather(measured)}) == 1


@contextmanager
def shared_process_group() -> Iterator[Ranks]:
    """All checks use one process group. Prints a line at the end, and ends the process."""

    def joined_already(ranks: Ranks, backend: str = "auto") -> None:
        pass

    ranks = Ranks()
    ranks.init_process_group()
    exit_on_uncaught_errors()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    setattr(Ranks, "init_process_group", joined_already)  # noqa: B010
    yield ranks
    os.write(1, f"all checks passed on rank {ranks.rank}\n".encode())
    ranks.exit()


def main() -> None:
    """Make all checks on the ranks of one group."""
    with shared_process_group() as ranks:
        for name, flags in CURVES:
            check_curve(ranks, name, "ddp", flags)
        for amp in ("bf16", "fp16"):
            check_short_numbers(ranks, amp)
        for check in (
            check_fused_optimizer,
            check_frozen_weights,
            check_resume_without_frozen_weights,
            check_averages,
            check_bandwidth,
        ):
            check(ranks)
