"""Functions that a test has called in each rank before it trains: signals, limits of memory, and
checks.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

MICRO_BATCH_MB = 110
"""At least what 64 sequences of the tiny gpt need on a rank, forward and backward; 16 need a
quarter.
"""


KILL = "KILL"
"""The variable that says when `kill_at_a_moment` kills which ranks: step, seconds after its start,
ranks.
"""


def kill_at_a_moment(rank: int) -> None:
    """Kill this rank some seconds after a step begins, if the variable names it."""
    from cloudtrain_trainer.ranks import Ranks

    step, seconds, *ranks = os.environ[KILL].split()
    if str(rank) in ranks:
        killing = threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL))
        before_step(int(step), killing.start)
        setattr(Ranks, "exit", lambda _: killing.join())  # noqa: B010  (a fast machine is done by then)


def terminate_rank_1_in_step_5(rank: int) -> None:
    """Rank 1 alone gets SIGTERM, before all ranks exchange their flags again."""
    if rank == 1:
        before_step(5, lambda: os.kill(os.getpid(), signal.SIGTERM))


def before_step(number: int, act: Callable[[], None]) -> None:
    """Call a function when this rank begins the step after `number` others."""
    from cloudtrain_trainer.training.step import Step

    train_step = Step.train_step

    def act_and_train(step: Step, batches: Any, steps_before: int, steps: int) -> None:
        if steps_before == number:
            act()
        train_step(step, batches, steps_before, steps)

    setattr(Step, "train_step", act_and_train)  # noqa: B010


def return_freed_memory() -> None:
    """Make the allocator take only the memory that tensors need.

    Else glibc reserves 64 MB of address space for each new thread (M_ARENA_MAX), and keeps the
    memory of large tensors (M_MMAP_THRESHOLD): how much is left within a limit would depend on
    chance.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(-8, 1)
    libc.mallopt(-3, 1 << 20)


def limit_memory(more_mb: int) -> None:
    """Allow this process `more_mb` MB of address space more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (more_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_rank_1_before_probing(rank: int) -> None:
    """Rank 1 has memory for half a micro-batch when the largest one that fits is looked for."""
    from cloudtrain_trainer.training import memory

    fit_micro_batch = memory.fit_micro_batch
    return_freed_memory()

    def fit_limited(*args: Any) -> None:
        if rank == 1:
            limit_memory(64 + MICRO_BATCH_MB // 2)
        fit_micro_batch(*args)

    setattr(memory, "fit_micro_batch", fit_limited)  # noqa: B010


def limit_rank_1_after_a_checkpoint(rank: int) -> None:
    """As `limit_rank_1_in_step_3`, once the checkpoint of the second step is complete."""
    saved = Path("cloudtrain-output/checkpoints/step-00000002/manifest.json")
    limit_rank_1_in_step_3(rank, lambda: eventually(saved.is_file))


def limit_rank_1_in_step_3(rank: int, before: Callable[[], object] = lambda: None) -> None:
    """Rank 1 runs out of memory in the fourth step, unless its batch is split into micro-batches."""
    from cloudtrain_trainer.training.step import Step

    train_step = Step.train_step
    return_freed_memory()

    def train_step_limited(step: Step, batches: Any, number: int, steps: int) -> None:
        if number == 3 and rank == 1 and step.accumulation_steps == 1:
            before()
            limit_memory(MICRO_BATCH_MB // 2)
        train_step(step, batches, number, steps)

    setattr(Step, "train_step", train_step_limited)  # noqa: B010


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
