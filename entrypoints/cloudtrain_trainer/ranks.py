"""The processes that train together: who this one is, on which device, and how all of them agree."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from cloudtrain_trainer.rules import Refused

ASK_SECONDS = 0.2
"""Between two questions, about. One costs every rank a message: of a step that takes 13 ms on a CPU it was a tenth."""
MOST_STEPS = 16
"""Between two questions: the clock is the host's, which at first runs ahead of a GPU."""


class Ranks:
    """This process among its peers. Until `form` is called it is alone, and agreeing costs nothing."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.device = _device(self.local_rank, self.local_size)
        self._control: Any = None

    def form(self, backend: str = "auto") -> None:
        """Join the process group. Beside another backend, a gloo group carries what must not wait for GPUs."""
        if backend == "auto":
            backend = "nccl" if self.device.type == "cuda" else "gloo"
        self._check_backend(backend)
        alone: dict[str, Any] = {}
        if "MASTER_ADDR" not in os.environ:  # not under torchrun: a group of one
            alone = {"store": HashStore(), "rank": 0, "world_size": 1}
        if backend == "nccl":
            alone["device_id"] = self.device
        if backend == "mpi":  # it counts its processes itself
            alone = {}
        dist.init_process_group(backend, **alone)
        if backend == "mpi" and dist.get_world_size() != self.size:
            raise Refused(
                f"MPI counts {dist.get_world_size()} processes, RANK and WORLD_SIZE say {self.size}: start them by "
                "mpirun, with RANK, LOCAL_RANK and WORLD_SIZE set, or use --backend gloo under torchrun"
            )
        self._control = dist.group.WORLD if backend != "nccl" else dist.new_group(backend="gloo")

    def _check_backend(self, backend: str) -> None:
        if backend == "nccl" and (self.device.type != "cuda" or not dist.is_nccl_available()):
            raise Refused("--backend nccl needs a GPU and a torch that has it: use --backend gloo on CPUs")
        if backend == "mpi" and not dist.is_mpi_available():
            raise Refused("--backend mpi: this torch was built without MPI: use --backend nccl on GPUs, gloo on CPUs")

    def check_size(self) -> None:
        """A world split into one per node trains each part apart and reports success: refuse it."""
        size = dist.get_world_size() if dist.is_initialized() else self.size
        nodes, processes = os.environ.get("CLOUDTRAIN_NODES"), os.environ.get("CLOUDTRAIN_PROCESSES")
        if nodes and processes and int(nodes) * int(processes) != size:
            raise Refused(
                f"{size} ranks found each other, but the job has {nodes} nodes x {processes} processes = "
                f"{int(nodes) * int(processes)}: each part would train alone. Start torchrun with --nnodes, "
                "--node-rank, --master-addr and --nproc-per-node (the launcher does)"
            )

    def agree(self, *values: int) -> Callable[[], list[int]]:
        """Start telling all ranks; call what comes back to learn the largest of each value: of a flag, if ANY set it.

        Asking is apart from learning so that the answer travels while the step computes.
        """
        if self._control is None:
            return lambda: list(values)
        shared = torch.tensor(values, dtype=torch.int32)
        work = dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self._control, async_op=True)

        def learn() -> list[int]:
            work.wait()
            return [int(x) for x in shared.tolist()]

        return learn

    def any_on_device(self, flag: Tensor) -> Tensor:
        """Whether it is set on any rank, as a bool on the device: no host waits. Called by all ranks."""
        if self.size == 1:
            return flag
        number = flag.float()
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        return number > 0

    def sum(self, *values: float) -> list[float]:
        """The sums over all ranks, in double precision."""
        if self._control is None:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self._control)
        return [float(x) for x in total.tolist()]

    def gather(self, value: Any, group: Any = None) -> list[Any]:
        """Everybody's value, by rank, on every rank. `group`: one of the caller's own, for another thread."""
        if self._control is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=group or self._control)
        return values

    def group_of(self, members: list[list[int]]) -> Any:
        """A gloo group of those members among which this rank is; None alone. Every rank makes all of them."""
        if self._control is None:
            return None
        groups = [dist.new_group(ranks, backend="gloo") for ranks in members]
        return next(group for group, ranks in zip(groups, members, strict=True) if self.rank in ranks)

    def barrier(self) -> None:
        if self._control is not None:
            dist.barrier(group=self._control)

    def say(self, text: str) -> None:
        """A line for people, from rank 0 only, whole in one write."""
        if self.rank == 0:
            sys.stdout.flush()
            os.write(1, (text + "\n").encode())

    def leave(self) -> NoReturn:
        """The end of a run that went well. `os._exit`: torch's own teardown aborts now and then (SIGABRT)."""
        self.barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class Agreement:
    """Asks at steps that all ranks know: with each question the first rank says how many steps the next is away."""

    def __init__(self, ranks: Ranks, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks, self._clock = ranks, clock
        self._next, self._stride, self._asked = 0, 1, clock()

    def ask(self, step: int, wishes: Callable[[], tuple[bool, ...]]) -> Callable[[], list[bool]] | None:
        """Start asking, if this step is one for it: what comes back tells which wishes ANY rank had.

        Asking is apart from learning so that the answer travels while the step computes.
        """
        if step < self._next:
            return None
        answer = self._ranks.agree(self._pace() if self._next else 1, *wishes())
        self._asked = self._clock()

        def learn() -> list[bool]:
            self._stride, *wished = answer()
            self._next = step + self._stride
            return [bool(wish) for wish in wished]

        return learn

    def _pace(self) -> int:
        """Steps until the next question, by the time that those since the last one took; the first rank's counts."""
        if self._ranks.rank:
            return 0
        seconds = max(self._clock() - self._asked, 1e-9) / self._stride
        return max(1, min(int(ASK_SECONDS / seconds), 2 * self._stride, MOST_STEPS))


def exit_at_once_on_errors() -> None:
    """Print an uncaught error and be gone: until then the peers wait in their collective."""
    before = sys.excepthook

    def hook(*error: Any) -> None:
        before(*error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    sys.excepthook = hook


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_threads(ranks: Ranks) -> None:
    """Share the cores between the node's ranks; too many threads cost factors, not percents."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or max(1, cores() // ranks.local_size)))
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs, as convolutions have it anyhow
    if ranks.device.type == "cpu":  # on a GPU some operations have no deterministic form and would raise
        torch.use_deterministic_algorithms(True)


def _device(local_rank: int, local_size: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if torch.cuda.device_count() < local_size:
        raise Refused(
            f"{local_size} processes on this node, but {torch.cuda.device_count()} GPUs are visible: start "
            "one process per GPU (--nproc-per-node), or set CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
