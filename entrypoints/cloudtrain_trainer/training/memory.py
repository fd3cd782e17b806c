"""Find the largest micro-batch that fits on all ranks.

Before training, one micro-batch is tried. A rank that runs out of memory during training stores
half of the size that it tried and exits with `OOM_EXIT`; the next start uses that size. In both
cases more accumulation steps keep the global batch the same.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import torch

from cloudtrain_job import emit_event
from cloudtrain_trainer import state
from cloudtrain_trainer.data.streams import first_batch
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.training.optimizers import NUMBERS_PER_PARAMETER
from cloudtrain_trainer.training.run import TrainingRun
from cloudtrain_wire.events import Memory

OOM_EXIT = 12
"""The exit code of a rank that ran out of memory: the number of ENOMEM."""

FILE = "micro-batch.json"
"""The cache's file, in the checkpoint folder: it is kept as long as the checkpoints are."""

RESERVE_BYTES = 64 << 20
"""Memory that a trial must leave free for checkpoint threads, libraries and fragmentation."""

_OOM_MESSAGES = re.compile(
    r"out of memory"
    r"|can't allocate memory|Cannot allocate memory|bad_alloc|not enough memory"
    r"|CUDNN_STATUS_(ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)"
    r"|(CUBLAS|CUSOLVER)_STATUS_ALLOC_FAILED"
    r"|NCCL.*Failed to (CUDA )?(m|c)alloc"
    r"|Unable to find (a valid|an) (cuDNN algorithm|engine)"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is, probably, out of memory.

    On a CPU and in cuDNN only the text of a RuntimeError shows it.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(_OOM_MESSAGES.search(str(error)))


def describe_error(error: BaseException) -> str:
    """Return the error's first line, at most 300 characters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


class MicroBatchCache:
    """The largest micro-batch known to fit (samples per rank), by task, strategy and GPU."""

    def __init__(self, folder: Path, ranks: Ranks, key: str) -> None:
        self.path = folder / FILE
        self.ranks = ranks
        self.key = key

    def read(self) -> int | None:
        """Return the smallest size that a rank has stored, or None. Called by all ranks."""
        mine = None
        with suppress(OSError, ValueError, AttributeError):
            mine = json.loads(self.path.read_text()).get(self.key)

        stored = [value for value in self.ranks.all_gather(mine) if isinstance(value, int)]
        return min((value for value in stored if value >= 1), default=None)

    def write(self, micro_batch: int) -> None:
        """Store a size in samples by this rank alone: its peers may wait in a collective.

        OSError on a full disk.
        """
        temporary = self.path.with_name(f"{FILE}.{self.ranks.rank}.partial")
        temporary.write_text(json.dumps({self.key: micro_batch}))
        temporary.replace(self.path)


def fit_micro_batch(run: TrainingRun, cache: MicroBatchCache) -> None:
    """Increase the accumulation steps until a micro-batch fits: the cached size, then trials.

    Raise `Refused` if the batch cannot be split further. Called by all ranks.
    """
    step = run.step
    device = run.device
    cached = cache.read()

    if cached is not None and cached < run.micro_batch:
        run.split_to_fit(cached)
        run.ranks.log(
            f"an earlier start ran out of memory: micro-batches of {run.micro_batch} samples per"
            f" rank, {step.accumulation_steps} per step; the batch stays {run.batches.batch_size}"
        )

    probe = run.options.probe_memory
    if probe == "no" or run.options.eval_only or (probe == "auto" and device.type != "cuda"):
        return

    refused = []
    while run.ranks.all_reduce_max(not fits(run))()[0]:
        refused.append(run.micro_batch)
        run.split_to_fit(run.micro_batch // 2)

    if refused:
        cache.write(run.micro_batch)
        run.ranks.log(
            f"memory: micro-batches of {' and '.join(map(str, refused))} samples per rank do not"
            f" fit on all ranks; they now have {run.micro_batch} samples, with"
            f" {step.accumulation_steps} per step; the batch stays {run.batches.batch_size}. Batch"
            " norm sees the smaller micro-batches"
        )
        if run.ranks.rank == 0:
            emit_event(
                Memory(refused=refused, micro_batch=run.micro_batch, parts=step.accumulation_steps)
            )


def fits(run: TrainingRun) -> bool:
    """Try one micro-batch with the optimizer's state on this rank; return whether they fit.

    Model and generators are restored.
    """
    step = run.step
    generators = state.generator_states(run.devices)
    buffers = state.buffers(step.model)
    sums = step.loss.state()
    step.wrapped.train()

    try:
        _try(run)
        return True
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False  # the error's frames hold tensors, which are freed here
    finally:
        step.optimizer.zero_grad(set_to_none=True)
        state.restore_generators(generators, run.devices)
        state.restore_buffers(step.model, buffers)
        step.loss.restore(sums)
        if run.device.type == "cuda":
            torch.cuda.empty_cache()


def _try(run: TrainingRun) -> None:
    step = run.step
    inputs, targets = first_batch(run.task.train, run.micro_batch)
    # The optimizer's first step allocates its state; of a user's it is not known.
    if step.optimizer.state:
        copies = 0
    else:
        copies = NUMBERS_PER_PARAMETER.get(step.options.optimizer, 2)

    trained = [p for p in step.model.parameters() if p.requires_grad]
    moments = [torch.empty_like(p) for p in trained for _ in range(copies)]
    reserve = torch.empty(RESERVE_BYTES, dtype=torch.uint8, device=run.device)
    step.forward_backward_alone(inputs, targets)
    if run.device.type == "cuda":
        torch.cuda.synchronize()

    del moments, reserve
