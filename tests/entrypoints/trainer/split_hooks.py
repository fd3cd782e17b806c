"""A function that test_split_resume.py has called in each rank before it trains."""

from __future__ import annotations

import weakref
from typing import Any


def check_gathered_weights(rank: int) -> None:
    """Print a line when weights are copied for a checkpoint; compare `full_state_dict` with the
    initial weights.
    """
    from cloudtrain_trainer import state, strategies
    from cloudtrain_trainer.checkpoints.store import CheckpointStore
    from cloudtrain_trainer.training.loop import Loop

    write = CheckpointStore._write
    full_tensor = strategies.full_tensor
    resume = Loop.resume
    gathered: list[weakref.ref[Any]] = []

    def write_printed(store: CheckpointStore, *arguments: Any) -> None:
        *_, copies, _, _ = arguments
        if copies:
            print("copied to host memory", flush=True)
        write(store, *arguments)

    def gather_one_by_one(value: Any) -> Any:
        if rank != 0:
            assert [ref for ref in gathered if ref() is not None] == [], (
                "the previous full tensor is still in memory"
            )
        full = full_tensor(value)
        if full is not value:
            gathered.append(weakref.ref(full))
        return full

    def compare_and_resume(loop: Loop) -> None:
        full_state = loop.strategy.full_state_dict(loop.step.model)
        state.seed_generators(loop.options.seed)
        initial = loop.task.model().state_dict()
        if rank == 0 or loop.options.strategy == "ddp":
            assert list(full_state) == list(initial)
            assert {name for name in initial if not full_state[name].equal(initial[name])} == set()
        else:
            assert full_state == {}
        loop.seed_this_rank()
        resume(loop)

    for owner, name, replacement in (
        (CheckpointStore, "_write", write_printed),
        (strategies, "full_tensor", gather_one_by_one),
        (Loop, "resume", compare_and_resume),
    ):
        setattr(owner, name, replacement)
