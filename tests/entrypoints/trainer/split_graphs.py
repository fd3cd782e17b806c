"""Graphs that `--compile` makes under strategies that split a model."""

from __future__ import annotations

from cloudtrain_trainer.ranks import Ranks
from tests.entrypoints.trainer import split_tasks  # adds its small tasks
from tests.entrypoints.trainer.compile_checks import compiled
from tests.entrypoints.trainer.ddp_checks import curve_of_one_process, shared_process_group
from tests.entrypoints.trainer.loss_curves import TOLERANCE, relative_difference, task_flags

assert split_tasks.PADDED


def graphs() -> None:
    """fsdp: one per kind of layer, and one
    for the loss.

    Custom layers outside of blocks are compiled, too: gpt's embedding and last norm.
    """
    with shared_process_group() as ranks:
        for name, kinds_of_layers, more in (("digits", 4, ""), ("gpt", 3, "--recompute=blocks")):
            argv = [*task_flags(name), "--strategy", "fsdp", *more.split()]
            by_layer, losses = compiled(name, argv, ranks, lambda _: None)
            assert relative_difference(losses, curve_of_one_process(name, ranks).losses) < TOLERANCE
            ranks.log(f"{name} compiled under fsdp: graphs of {by_layer} operations")
            assert len(by_layer) == kinds_of_layers + 1, (
                f"{name} under fsdp: graphs of {by_layer} operations"
            )
        check_losses_of_compiled_gpt(ranks, "--strategy", "tp")


def hybrid_graphs() -> None:
    """data x tensor on four ranks: graphs inside of two kinds of sharding."""
    with shared_process_group() as ranks:
        check_losses_of_compiled_gpt(ranks, "--strategy", "hybrid", "--tensor", "2")


def check_losses_of_compiled_gpt(ranks: Ranks, *flags: str) -> None:
    """Graphs change no loss."""
    argv = [*task_flags("gpt"), *flags]
    graphs, losses = compiled("gpt", argv, ranks, lambda _: None)
    assert graphs
    assert relative_difference(losses, curve_of_one_process("gpt", ranks).losses) < TOLERANCE
