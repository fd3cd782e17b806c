"""Functions that a test has called in each rank before it trains: signals, limits of memory, and
checks.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.entrypoints.trainer import own_models
from tests.support.waiting import eventually

MEMORY_MB = 48 * own_models.MEGABYTES_PER_SAMPLE
"""Memory of a rank for a step of `Hungry`: too little for 64 samples, enough for 32."""

KILL = "KILL"
"""The variable that says when `kill_at_a_moment` kills which ranks: step, seconds after its start,
ranks.
"""


def kill_at_a_moment(rank: int) -> None:
    """Kill this rank some seconds after an update begins, if the variable names it."""
    from cloudtrain_trainer.ranks import Ranks

    step, seconds, *ranks = os.environ[KILL].split()
    if str(rank) in ranks:
        killing = threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL))
        before_update(int(step) + 1, killing.start)
        setattr(Ranks, "exit", lambda _: killing.join())  # noqa: B010  (a fast machine is done by then)


def terminate_rank_1_in_step_5(rank: int) -> None:
    """Rank 1 alone gets SIGTERM, before all ranks exchange their flags again."""
    if rank == 1:
        before_update(6, lambda: os.kill(os.getpid(), signal.SIGTERM))


def before_update(number: int, act: Callable[[], object]) -> None:
    """Call a function when an optimizer of this rank begins this update, counted from 1."""
    numbers = itertools.count(1)

    def act_once(*_: object) -> None:
        if next(numbers) == number:
            act()

    register_optimizer_step_pre_hook(act_once)


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


def limit_rank_1_in_its_first_pass(rank: int) -> None:
    """Rank 1 has memory for half of its samples from its first forward pass on."""
    return_freed_memory()
    passes = itertools.count()

    def limit_once(*_: object) -> None:
        if next(passes) == 0:
            limit_memory(MEMORY_MB)

    if rank == 1:
        register_module_forward_pre_hook(limit_once)


def limit_rank_1_after_a_checkpoint(rank: int) -> None:
    """As `limit_rank_1_in_step_3`, once the checkpoint of the second step is complete."""
    saved = Path("cloudtrain-output/checkpoints/step-00000002/manifest.json")
    limit_rank_1_in_step_3(rank, lambda: eventually(saved.is_file))


def limit_rank_1_in_step_3(rank: int, before: Callable[[], object] = lambda: None) -> None:
    """Rank 1 runs out of memory in the fourth step, unless its batch is split into micro-batches."""
    return_freed_memory()

    def limit() -> None:
        before()
        limit_memory(MEMORY_MB)

    if rank == 1:
        before_update(3, limit)
