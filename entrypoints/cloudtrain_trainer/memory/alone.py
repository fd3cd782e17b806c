"""One rank without its peers: their messages are not sent, and what would come from them has the
right shape only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cloudtrain_trainer.ranks import Ranks

FIRST_BUCKET = 1 << 20
BUCKET = 25 << 20
"""DDP's buckets hold about so many bytes of gradients, the first one less
(torch/nn/parallel/distributed.py).
"""


class World(NamedTuple):
    """The ranks of a job."""

    ranks: int
    per_node: int
    devices: int = 1
    """GPUs that one process drives, for the strategies dp and model-parallel."""


class Alone(Ranks):
    """One rank of a world, on the CPU, in a process group whose messages go nowhere."""

    def __init__(self, world: World, rank: int = 0, devices: int = 1) -> None:
        self.rank = rank
        self.size = world.ranks
        self.local_size = world.per_node
        self.local_rank = rank % world.per_node
        self._count = devices
        self.device = torch.device("cpu", 0) if devices > 1 else torch.device("cpu")
        self._start_timeout = 0.0
        self._has_begun = False
        self._groups = []
        self._control = None

    def all_devices(self) -> list[torch.device]:
        """Devices of other numbers, though there are no such CPUs: tensors without values can be on
        them.
        """
        return (
            [torch.device("cpu", number) for number in range(self._count)]
            if self._count > 1
            else [self.device]
        )

    def init_process_group(self, backend: str = "auto") -> None:  # noqa: ARG002
        """Join a group of so many ranks that are not there."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.size)

    def any_on_device(self, flag: Tensor) -> Tensor:
        """This rank's."""
        return flag

    def log(self, text: str) -> None:
        """Nothing is printed."""

    def exit(self) -> NoReturn:
        """Not of a rehearsal."""
        raise NotImplementedError


class Buckets(nn.Module):
    """What DDP does with memory: gradients are copied into buckets, which stay; they are its views
    where it says so.

    DDP itself is in C++ and reads the values of tensors.
    """

    def __init__(
        self, module: nn.Module, *_: Any, gradient_as_bucket_view: bool = False, **__: Any
    ) -> None:
        super().__init__()
        self.module = module
        self._syncs = True
        self._views = dict[Tensor, Tensor]()
        self._are_gradients = gradient_as_bucket_view
        for parameters in _buckets([p for p in module.parameters() if p.requires_grad]):
            flat = parameters[0].new_empty(sum(p.numel() for p in parameters))
            parts = torch.split(flat, [p.numel() for p in parameters])
            self._views |= {
                p: part.view(p.shape) for p, part in zip(parameters, parts, strict=True)
            }
        for parameter in self._views:
            parameter.register_post_accumulate_grad_hook(self._after)  # type: ignore[no-untyped-call]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients are no views of the buckets yet."""
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    def _after(self, parameter: Tensor) -> None:
        assert parameter.grad is not None  # noqa: S101  (it was added just now)
        if self._syncs:
            view = self._views[parameter].copy_(parameter.grad)
            if self._are_gradients:
                parameter.grad = view


def _buckets(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """From the last parameter to the first, of one dtype each."""
    limit = FIRST_BUCKET
    bucket = list[Tensor]()
    size = 0
    for parameter in reversed(parameters):
        if bucket and parameter.dtype != bucket[0].dtype:
            yield bucket
            bucket = []
            size = 0
        bucket.append(parameter)
        size += parameter.numel() * parameter.element_size()
        if size >= limit:
            yield bucket
            limit = BUCKET
            bucket = []
            size = 0
    if bucket:
        yield bucket


class Replicas(nn.Module):
    """What `nn.DataParallel` does on the first of so many GPUs: it computes its share, and gathers
    all outputs.
    """

    def __init__(self, module: nn.Module, devices: int) -> None:
        super().__init__()
        self.module = module
        self._devices = devices

    def forward(self, *inputs: Any, **named: Any) -> Any:
        from cloudtrain_trainer import trees

        own = trees.map_tensors(lambda t: t.chunk(self._devices)[0], inputs)
        count = max((len(t) for t in trees.tensors(inputs)), default=0)
        return trees.map_tensors(lambda t: _gathered(t, count), self.module(*own, **named))


def _gathered(output: Tensor, samples: int) -> Tensor:
    if not output.ndim or len(output) == samples:
        return output
    return torch.cat([output, output.new_empty(samples - len(output), *output.shape[1:])])
