"""This rank and its device, the process group, and the collectives of the loop."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d

from cloudtrain_trainer.rules import Refused
from cloudtrain_wire.cores import available_cores

START_SECONDS = 1800.0
TRAINING_SECONDS = 600.0
"""Timeouts until the first step and afterwards: torch's defaults for gloo and for NCCL.

A collective of the first step waits for ranks that still compile or read their data. After a
timeout torch ends the job and writes down the last collectives of each rank (`fetch` brings them).
"""
EXCHANGE_SECONDS = 0.2
"""Approximate time between two exchanges of flags.

Each costs every rank a message: a tenth of a step of 13 ms.
"""
MAX_STRIDE = 16
"""Maximum steps between two exchanges.

The host's clock measures steps, and a host first runs ahead of its GPU.
"""


class Ranks:
    """This process and its world, read from torchrun's environment variables.

    `rank`, `size`: in the world; `local_rank`, `local_size`: on this node. Before
    `init_process_group` every collective here returns this rank's own value.
    """

    def __init__(self, start_timeout: float = START_SECONDS) -> None:
        """Read the environment. `start_timeout`: seconds of a collective before training."""
        self._start_timeout = start_timeout
        self._has_begun = False
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.device = _device(self.local_rank, self.local_size)
        self._control: Any = None

    def init_process_group(self, backend: str = "auto") -> None:
        """Join the default process group.

        With NCCL, a gloo group on the CPU carries the control messages. `backend`: auto, nccl or
        gloo. Raise `Refused` if this machine or this torch does not support it.
        """
        if backend == "auto":
            backend = "nccl" if self.device.type == "cuda" else "gloo"

        if backend == "nccl" and (self.device.type != "cuda" or not dist.is_nccl_available()):
            raise Refused(
                "--backend nccl needs a GPU and a torch that has it: use --backend gloo on CPUs"
            )

        alone: dict[str, Any] = {"timeout": timedelta(seconds=self._start_timeout)}
        if "MASTER_ADDR" not in os.environ:  # not under torchrun: a world of one process
            alone |= {"store": HashStore(), "rank": 0, "world_size": 1}

        if backend == "nccl":
            # Its streams get high priority, so that a GPU starts a message before the next kernel.
            # Torch reads it when it makes a communicator (ProcessGroupNCCL.cpp).
            os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
            alone["device_id"] = self.device

        dist.init_process_group(backend, **alone)
        self._control = dist.group.WORLD
        if backend == "nccl":
            seconds = max(self._start_timeout, START_SECONDS)
            self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))

    def check_world_size(self) -> None:
        """Raise `Refused` if the world is smaller than the job.

        Each part of the job would train a separate model.
        """
        if dist.is_initialized():
            size = dist.get_world_size()
        else:
            size = self.size

        nodes = os.environ.get("CLOUDTRAIN_NODES")
        processes = os.environ.get("CLOUDTRAIN_PROCESSES")

        if nodes and processes and int(nodes) * int(processes) != size:
            raise Refused(
                f"the world has {size} ranks, but the job has {nodes} nodes x {processes} processes"
                f" = {int(nodes) * int(processes)}: several models would be trained. Start torchrun"
                " with --nnodes, --node-rank, --master-addr and --nproc-per-node (the launcher"
                " does)"
            )

    def begin_training(self, timeout: float | None) -> None:
        """Shorten the timeout of collectives, once, after the first step.

        `timeout`: seconds; None: `TRAINING_SECONDS` on GPUs, no change on CPUs. Called by all
        ranks, and waits for all: a message of the second step must not time out while a peer still
        compiles the first.
        """
        if self._has_begun:
            return

        self._has_begun = True
        if self.device.type == "cuda":
            timeout = timeout or TRAINING_SECONDS
            torch.cuda.synchronize(self.device)

        if timeout is not None:
            self.barrier()
            set_timeout(timeout)

    def all_reduce_max(self, *values: int) -> Callable[[], list[int]]:
        """Start an all-reduce of int32 values; return a function that waits for the maxima.

        The maximum of a flag (0 or 1) is whether any rank has set it. The message is sent while the
        step computes. Called by all ranks.
        """
        if self._control is None:
            return lambda: list(values)

        shared = torch.tensor(values, dtype=torch.int32)
        work = dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self._control, async_op=True)

        def wait() -> list[int]:
            work.wait()
            return [int(x) for x in shared.tolist()]

        return wait

    def all_reduce_sum(self, *values: float) -> list[float]:
        """Return the sums over all ranks, in float64. Called by all ranks."""
        if self._control is None:
            return list(values)

        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self._control)

        return [float(x) for x in total.tolist()]

    def all_gather(self, value: Any, group: Any = None) -> list[Any]:
        """Return all ranks' values, by rank. Called by all ranks.

        `value`: anything that can be pickled. `group`: another process group, for use in another
        thread.
        """
        if self._control is None:
            return [value]

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=group or self._control)

        return values

    def new_gloo_group(self) -> Any:
        """Return another group of all ranks, for use in a thread; None without a process group.

        Called by all ranks.
        """
        if self._control is None:
            return None

        return dist.new_group(backend="gloo")

    def barrier(self) -> None:
        """Wait until all ranks have called it; returns at once without a process group."""
        if self._control is not None:
            dist.barrier(group=self._control)

    def log(self, text: str) -> None:
        """Print a line from rank 0 only, in a single write, so that no output is mixed into it."""
        if self.rank == 0:
            sys.stdout.flush()
            os.write(1, (text + "\n").encode())

    def exit(self) -> NoReturn:
        """End the process with exit code 0, after a barrier of all ranks.

        This skips the interpreter's teardown, where torch may abort (SIGABRT).
        """
        self.barrier()
        if dist.is_initialized():
            dist.destroy_process_group()

        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class CollectiveFlags:
    """Flags that any rank may raise, and that all ranks see after the same step.

    They are exchanged every few steps. With each exchange rank 0 announces the number of steps
    until the next one.
    """

    def __init__(self, ranks: Ranks, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks = ranks
        self._clock = clock
        self._next = 0
        self._stride = 1
        self._exchanged = clock()

    def start(
        self, step: int, flags: Callable[[], tuple[bool, ...]]
    ) -> Callable[[], list[bool]] | None:
        """Start an exchange of `flags()` if one is due at this step, else return None.

        The returned function waits for the result: per flag, whether any rank has raised it. The
        message is sent while the step computes.
        """
        if step < self._next:
            return None

        stride = 1
        if self._next:
            stride = self._next_stride()

        answer = self._ranks.all_reduce_max(stride, *flags())
        self._exchanged = self._clock()

        def wait() -> list[bool]:
            self._stride, *raised = answer()
            self._next = step + self._stride
            return [bool(flag) for flag in raised]

        return wait

    def _next_stride(self) -> int:
        """Return the steps until the next exchange, by the speed of the last ones.

        Rank 0 decides; other ranks return 0.
        """
        if self._ranks.rank:
            return 0

        seconds = max(self._clock() - self._exchanged, 1e-9) / self._stride
        return max(1, min(int(EXCHANGE_SECONDS / seconds), 2 * self._stride, MAX_STRIDE))


def exit_on_uncaught_errors() -> None:
    """Exit with code 1 after an uncaught error.

    Peers wait in a collective until this process has ended.
    """
    before = sys.excepthook

    def hook(*error: Any) -> None:
        before(*error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    sys.excepthook = hook


def configure_threads(ranks: Ranks, *, deterministic: bool = False) -> None:
    """Divide the cores among this node's ranks, allow TF32, set deterministic algorithms.

    More threads than cores make training several times slower. `deterministic`: on GPUs too.
    """
    torch.set_num_threads(
        int(os.environ.get("OMP_NUM_THREADS") or max(1, available_cores() // ranks.local_size))
    )
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs, which convolutions use by default

    # On a GPU some operations lack a deterministic form and raise.
    if ranks.device.type == "cpu" or deterministic:
        torch.use_deterministic_algorithms(True)
        # No operation here reads memory before it writes it; filling it takes 5 % of a step on a CPU.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    if deterministic:
        # cuBLAS reads this at its first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False  # it chooses algorithms by their times


def _device(local_rank: int, local_size: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")

    if torch.cuda.device_count() < local_size:
        raise Refused(
            f"{local_size} processes on this node, but {torch.cuda.device_count()} GPUs are"
            " visible: start one process per GPU (--nproc-per-node), or set CUDA_VISIBLE_DEVICES="
            " to train on the CPU"
        )

    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def set_timeout(seconds: float) -> None:
    """Set the timeout of later collectives of the default group, if there is one."""
    if not dist.is_initialized():
        return

    timeout = timedelta(seconds=seconds)
    group: Any = dist.group.WORLD

    if hasattr(group, "set_timeout"):  # public since torch 2.13
        group.set_timeout(timeout)
    else:
        distributed_c10d._set_pg_timeout(timeout, group)
