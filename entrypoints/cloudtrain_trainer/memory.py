"""Out of memory: how it is recognised, and how all ranks agree on parts of a batch that fit.

Before training, one part is tried. In training, a rank that runs out writes down half of what it tried and exits with
`OOM_EXIT`; the next start takes that. Either way accumulation keeps the global batch.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cloudtrain_job import tell
from cloudtrain_launcher.events import Memory
from cloudtrain_trainer import state
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.tasks import Draw

if TYPE_CHECKING:
    from cloudtrain_trainer.loop import Loop

OOM_EXIT = 12
"""The exit code of a rank that ran out of memory: ENOMEM's number."""

FILE = "micro-batch.json"
"""Beside the checkpoints: it outlives the run, as they do."""

RESERVE_BYTES = 64 << 20
"""What a part that is tried must leave free: threads that save, libraries, fragments."""

_SIGNS = {
    r"out of memory": "",
    r"can't allocate memory|Cannot allocate memory|bad_alloc|not enough memory": "",
    r"CUDNN_STATUS_(ALLOC_FAILED|NOT_SUPPORTED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)": "cuDNN found no room to work",
    r"CUBLAS_STATUS_ALLOC_FAILED": "cuBLAS found no room to work",
    r"CUSOLVER_STATUS_ALLOC_FAILED": "cuSOLVER found no room to work",
    r"NCCL.*Failed to (CUDA )?(m|c)alloc": "NCCL found no room for its buffers",
    r"Unable to find (a valid|an) (cuDNN algorithm|engine)": "cuDNN found no algorithm for which there is room",
}
"""What such an error says -> what it means, where it does not say so. cuDNN's NOT_SUPPORTED has other causes, too."""


def is_out_of_memory(error: BaseException) -> bool:
    """Also those that do not say so. On a CPU it is a plain RuntimeError, told by its text alone."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(re.search(sign, str(error)) for sign in _SIGNS)


def meaning(error: BaseException) -> str:
    """Its first line, and what that means if it is memory in disguise."""
    line = (str(error).splitlines() or [type(error).__name__])[0][:300]
    behind = next((said for sign, said in _SIGNS.items() if said and re.search(sign, str(error))), "")
    return f"{line} ({behind}: most likely out of memory)" if behind else line


class Learnt:
    """The largest micro-batch that is known to fit: samples per rank and part, for one kind of machine and strategy."""

    def __init__(self, folder: Path, ranks: Ranks, key: str) -> None:
        self.path, self.ranks, self.key = folder / FILE, ranks, key

    def read(self) -> int | None:
        """The smallest that any rank knows, on all ranks; None if nobody knows one."""
        mine = None
        with suppress(OSError, ValueError, AttributeError):
            mine = json.loads(self.path.read_text()).get(self.key)
        known = [value for value in self.ranks.gather(mine) if isinstance(value, int) and value >= 1]
        return min(known, default=None)

    def write(self, micro_batch: int) -> None:
        """By one rank alone: its peers may hang in a collective, or do the same."""
        temporary = self.path.with_name(f"{FILE}.{self.ranks.rank}.partial")
        temporary.write_text(json.dumps({self.key: micro_batch}))
        temporary.replace(self.path)


def fit(loop: Loop, learnt: Learnt) -> None:
    """Make the parts of a step small enough: for what was learnt, then for what a trial tells."""
    step, device = loop.step, loop.device
    known = learnt.read()
    if known is not None and known < loop.micro_batch:
        loop.cut_into(known)
        loop.ranks.say(
            f"out of memory was met before: parts of {loop.micro_batch} samples per rank, {step.parts} to a step; the "
            f"batch stays {loop.batches.batch_size}"
        )
    probe = loop.options.probe_memory
    if probe == "no" or (probe == "auto" and device.type != "cuda"):
        return
    if loop.strategy.communicates:
        if probe == "yes":
            loop.ranks.say(f"--probe-memory: --strategy {loop.options.strategy} is tried by its first step")
        return
    refused = []
    while loop.ranks.agree(not _fits(loop))()[0]:
        refused.append(loop.micro_batch)
        loop.cut_into(loop.micro_batch // 2)
    if refused:
        learnt.write(loop.micro_batch)
        loop.ranks.say(
            f"memory: parts of {' and '.join(map(str, refused))} samples per rank do not fit everywhere; all ranks "
            f"take {loop.micro_batch}, {step.parts} to a step, and the batch stays {loop.batches.batch_size}. Batch "
            "norm sees the smaller parts"
        )
        if loop.ranks.rank == 0:
            tell(Memory(refused=refused, micro_batch=loop.micro_batch, parts=step.parts))


def _fits(loop: Loop) -> bool:
    """One part forward and backward on this rank alone, with room for the optimizer's state; leaves no trace."""
    step = loop.step
    devices = loop.strategy.devices
    generators, buffers = state.generators(devices), state.buffers(step.model, step.task.statistics(step.model))
    sums = step.loss.state()
    step.wrapped.train()
    try:
        _try(loop)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False  # here the error goes, and with its frames what they hold
    finally:
        step.optimizer.zero_grad(set_to_none=True)
        state.restore_generators(generators, devices)
        state.restore_buffers(step.model, buffers, step.task.statistics(step.model))
        step.loss.restore(sums)
        if loop.device.type == "cuda":
            torch.cuda.empty_cache()
    return True


def _try(loop: Loop) -> None:
    step = loop.step
    indices = [i % len(loop.batches.data) for i in range(loop.micro_batch)]
    inputs, targets = step.to_device(*loop.batches.data[Draw(0, indices)])
    # AdamW keeps two numbers per parameter; they come with the first step.
    moments = [torch.empty_like(p) for p in step.model.parameters() for _ in range(2) if not step.optimizer.state]
    reserve = torch.empty(RESERVE_BYTES, dtype=torch.uint8, device=loop.device)
    loop.strategy.learn_alone(step, inputs, targets)
    if loop.device.type == "cuda":
        torch.cuda.synchronize()
    del moments, reserve
