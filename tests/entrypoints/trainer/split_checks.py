"""Programs of ranks, run by test_split_models.py: each strategy against one process, on two and on
four ranks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.reporting.metrics import evaluate
from tests.entrypoints.trainer.ddp_checks import (
    check_curve,
    curve_of_one_process,
    files,
    fused_on,
    shared_process_group,
)
from tests.entrypoints.trainer.loss_curves import (
    NORM_TOLERANCE,
    STEPS,
    TOLERANCE,
    begin_in_one_process,
    relative_difference,
    small_task,
    task_flags,
    train,
)
from tests.entrypoints.trainer.split_tasks import PADDED, begin
from tests.entrypoints.trainer.split_weights import (
    check_averages_of_shards,
    check_frozen_weights,
    check_initial_weights,
    check_resume_without_frozen_weights,
)

BF16_TOLERANCE = 2e-2
"""Relative, between two ways of computing in bf16, whose numbers have 8 bits, after some steps."""

CURVES = {
    2: [
        ("digits", "fsdp", "--accumulate 2 --clip-norm 0.5"),
        ("digits", "tp", "--clip-norm 0.5"),
        ("digits", "pipeline", "--schedule gpipe --clip-norm 0.5"),
        ("digits", "pipeline", "--accumulate 2"),
        ("gpt", "fsdp", "--optimizer sgd --clip-norm 0.5 --recompute blocks"),
        ("gpt", "pipeline", "--schedule gpipe --clip-norm 0.5 --recompute blocks"),
        ("mnist", "fsdp", ""),
        ("mnist", "pipeline", ""),
        (PADDED, "fsdp", "--accumulate 2 --clip-norm 0.5"),
        (PADDED, "pipeline", "--microbatches 8 --clip-norm 0.5"),
        (PADDED, "tp", "--clip-norm 0.5 --recompute blocks"),
    ],
    4: [
        ("gpt", "hsdp", "--shard 2 --accumulate 2 --clip-norm 0.5"),
        ("gpt", "pipeline", "--clip-norm 0.5"),
        ("mnist", "hybrid", "--stages 2"),
        (PADDED, "hybrid", "--tensor 2 --accumulate 2 --clip-norm 0.5"),
        (PADDED, "hybrid", "--stages 2 --clip-norm 0.5"),
    ],
}
"""Number of ranks -> task, strategy, further flags. Every task is split in each way that it allows,
on two ranks; what four ranks add, groups of ranks and stages in the middle, does not depend on the
layers.
"""


def check_batch_norm_in_pipeline(ranks: Ranks, schedule: str) -> None:
    """Batch norm sees exactly each of 4 micro-batches once, as in one process with 4 accumulation
    steps.

    In the first pass of its schedule torch runs each stage once more, on uninitialised memory.
    """
    task = small_task("mnist", without=(nn.Dropout,))
    flags = task_flags("mnist")  # batch norm in the first stages
    pipeline = begin(
        task,
        [*flags, "--strategy", "pipeline", "--schedule", schedule, "--microbatches", "4"],
        ranks,
    )
    trained = train(pipeline)
    buffers = dict(pipeline.step.model.named_buffers())
    mine = None
    if ranks.rank == 0:
        single = begin_in_one_process(task, [*flags, "--accumulate", "4"])
        mine = train(single).losses, dict(single.step.model.named_buffers())
    losses, expected = ranks.all_gather(mine)[0]
    counts = {
        name: int(value) for name, value in buffers.items() if name.endswith("num_batches_tracked")
    }
    assert counts or ranks.rank > 0, "the first stages have batch norm"
    assert set(counts.values()) <= {STEPS * 4}, f"{counts}, not {STEPS} steps x 4 micro-batches"
    for name, value in buffers.items():
        assert torch.allclose(value, expected[name], rtol=1e-4, atol=1e-6), (
            f"{name}: {value}, not {expected[name]}"
        )
    torch.testing.assert_close(trained.losses, losses, rtol=1e-4, atol=1e-6)


def check_stages_work_at_once(ranks: Ranks) -> None:
    """In an evaluation the first stage computes its second batch while the last one is at its
    first.
    """
    loop = begin(small_task("digits"), ["--strategy", "pipeline"], ranks)
    store = dist.distributed_c10d._get_default_store()
    begun = []

    def first_stage(*_: Any) -> None:
        begun.append(1)
        store.set(f"stage 0 begins batch {len(begun)}", "")

    def last_stage(*_: Any) -> None:
        store.wait(["stage 0 begins batch 2"])

    part = next(iter(loop.step.model.children()))
    part.register_forward_pre_hook(first_stage if ranks.rank == 0 else last_stage)
    assert evaluate(loop.step, 16, 0, lambda: False) is not None


def check_fused_optimizer(ranks: Ranks) -> None:
    """Channels last and the fused optimizer, as on GPUs, change nothing for models that are split."""
    for name, strategy in (("digits", "fsdp"), ("digits", "tp")):
        expected = curve_of_one_process(name, ranks)
        with fused_on("cuda", "cpu"):
            losses = train(
                begin(small_task(name), [*task_flags(name), "--strategy", strategy], ranks)
            )
        worst = max(map(relative_difference, losses, expected))
        ranks.log(f"{name} {strategy}, fused: differs by {worst:.1e}")
        assert worst < NORM_TOLERANCE


def check_bf16_under_fsdp(ranks: Ranks) -> None:
    """fsdp gathers weights in bf16 and computes with them, keeps them in float32, and has the
    losses of bf16.
    """
    flags = ["--amp", "bf16"]
    expected = curve_of_one_process("gpt", ranks, *flags)
    loop = begin(small_task("gpt"), [*task_flags("gpt"), *flags, "--strategy", "fsdp"], ranks)
    dtypes = set()
    for layer in loop.step.model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda layer, _: dtypes.add(layer.weight.dtype))
    difference = relative_difference(train(loop).losses, expected.losses)
    assert dtypes == {torch.bfloat16}
    assert {value.dtype for value in loop.step.model.state_dict().values()} == {torch.float32}
    ranks.log(f"gpt fsdp --amp bf16: differs by {difference:.1e}")
    assert difference < BF16_TOLERANCE


def check_bf16_in_pipelines(ranks: Ranks) -> None:
    """Each schedule has the losses of bf16 in one process, with recomputed layers too."""
    expected = curve_of_one_process("gpt", ranks, "--amp", "bf16")
    for schedule, recompute in (("gpipe", "none"), ("1f1b", "blocks")):
        flags = [
            "--strategy",
            "pipeline",
            "--schedule",
            schedule,
            "--recompute",
            recompute,
            "--amp",
            "bf16",
        ]
        trained = train(begin(small_task("gpt"), [*task_flags("gpt"), *flags], ranks))
        losses, norms = map(relative_difference, trained, expected)
        ranks.log(f"gpt {' '.join(flags)}: losses differ by {losses:.1e}, gradients by {norms:.1e}")
        assert max(losses, norms) < BF16_TOLERANCE


def check_logits_stay_split(ranks: Ranks) -> None:
    """Under tp a rank has its share of the logits in training: all would be the largest tensor."""
    task = small_task("gpt")
    widths = []

    def loss(logits: Any, targets: torch.Tensor) -> torch.Tensor:
        widths.append(logits.to_local().shape[-1])
        return task.loss(logits, targets)

    flags = [*task_flags("gpt"), "--strategy", "tp"]
    loop = begin(replace(task, loss=loss), flags, ranks)
    loop.step.train_step(loop.batches.load(0, 0), 0, 100)
    assert widths == [256 // ranks.size]


def check_repeated_blocks(ranks: Ranks) -> None:
    """A task that does not name its layers, under fsdp: each repeated block is a unit, and the
    losses are the same.
    """
    expected = curve_of_one_process("gpt", ranks)
    loop = begin(
        replace(small_task("gpt"), layers=None),
        [*task_flags("gpt"), "--strategy", "fsdp"],
        ranks,
    )
    units = [
        name for name, module in loop.step.model.named_modules() if isinstance(module, FSDPModule)
    ]
    assert units == ["", *(f"layers.{number}" for number in range(4))], units
    assert relative_difference(train(loop).losses, expected.losses) < TOLERANCE


def check_evaluation_only(ranks: Ranks, *strategies: str) -> None:
    """`--eval-only` under each strategy finds what ddp found before it saved its checkpoint."""
    folder = Path("evaluated")
    flags = ["--task", "gpt", "--batch-size", "32"]
    trained = begin(
        small_task("gpt"), [*flags, "--strategy", "ddp", "--max-steps", "1"], ranks, folder
    )
    assert trained.run() == "succeeded"
    expected = trained.metrics
    before = files(folder)
    for strategy in strategies:
        argv = [*flags, "--eval-only", "--strategy", *strategy.split()]
        loop = begin(small_task("gpt"), argv, ranks, folder)
        loop.resume()
        assert loop.position.step == 1
        assert loop.evaluate_only() == "succeeded"
        assert (
            relative_difference([loop.metrics["val_loss"]], [expected["val_loss"]]) < TOLERANCE
        ), strategy
    ranks.barrier()
    assert files(folder) == before


def curves() -> None:
    """Check the loss curve of every strategy for this number of ranks."""
    with shared_process_group() as ranks:
        for name, strategy, flags in CURVES[ranks.size]:
            check_curve(ranks, name, strategy, flags)
        if ranks.size == 2:
            check_evaluation_only(ranks, "ddp", "fsdp", "tp", "pipeline")
        check_initial_weights(ranks, Path.cwd())
        if ranks.size == 4:
            check_evaluation_only(ranks, "hsdp --shard 2", "hybrid --stages 2")


def details() -> None:
    """Further checks on two ranks."""
    with shared_process_group() as ranks:
        for schedule in ("gpipe", "1f1b"):
            check_batch_norm_in_pipeline(ranks, schedule)
        for check in (
            check_stages_work_at_once,
            check_fused_optimizer,
            check_logits_stay_split,
            check_repeated_blocks,
            check_frozen_weights,
            check_resume_without_frozen_weights,
            check_averages_of_shards,
            check_bf16_under_fsdp,
            check_bf16_in_pipelines,
        ):
            check(ranks)
