"""Counts the bytes of tensors that are alive, now and at most, while a program runs: with values or
without.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from cloudtrain_trainer.memory.device import Exceeded
from cloudtrain_trainer.memory.scratch import scratch, with_workspace

BLOCK = 512
"""CUDA's caching allocator of torch rounds each tensor up to so many bytes (kMinBlockSize)."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, the memory of every tensor that an operation makes is counted until it is freed.

    Where tensors have no values, an operation that asks for one gets 1: a count, a scale, a loss.
    `block`: memory is rounded up to a multiple of so many bytes.
    """

    def __init__(
        self, block: int = 1, *, values: bool = False, gloo: bool = False, limit: int = 0
    ) -> None:
        """`values`: whether the tensors have values. `gloo`: whether to add what it takes, as on a
        CPU.

        `limit`: bytes alive above which `Exceeded` is raised; 0: none.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: dict[int, int] = {}
        self.peaks: dict[int, int] = {}
        """By number of the device: bytes alive, and the most of them since the start or `restart`.
        """
        self._block = block
        self._values = values
        self._gloo = gloo
        self._limit = limit
        self._sizes: dict[int, tuple[int, int]] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> LiveBytes:
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = self._resize(storage, size)
            self._count(storage, 0)
            return result

        # FSDP frees and makes gathered parameters so, which is no operation on tensors.
        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment, method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @property
    def peak(self) -> int:
        """Of the device that held most."""
        return max(self.peaks.values(), default=0)

    def restart(self) -> None:
        """Look for the peak from here on."""
        self.peaks = dict(self.now)

    @contextmanager
    def as_if_before(self) -> Iterator[None]:
        """What is made inside and stays counts as if it had been there at the peak before; what
        does not stay, not.

        Nothing is too much inside: DTensor finds out shapes there by tensors that exist for a
        rehearsal alone.
        """
        peaks = dict(self.peaks)
        before = dict(self.now)
        limit = self._limit
        self._limit = 0
        yield
        self._limit = limit
        for device, now in self.now.items():
            self.peaks[device] = max(now, peaks.get(device, 0) + now - before.get(device, 0))

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that were made before."""
        for tensor in tensors:
            self._count(tensor.untyped_storage(), tensor.device.index or 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "_local_tensor") or kind.__name__ == "DTensor" for kind in types):
            return (
                NotImplemented  # it computes with the tensors that it holds, which come here then
            )
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return _one(args[0])
        result = self._call(func, args, kwargs or {})
        if not self._values:
            result = with_workspace(func._schema.name, args, result)
        for tensor in _tensors((result,)):
            if tensor.layout is torch.strided:
                self._count(tensor.untyped_storage(), tensor.device.index or 0)
        self._add_scratch(func, args, result)
        return result

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Tensors that have values keep them until they meet one that has none: meshes of devices
        look at them.
        """
        if self._values:
            return func(*args, **kwargs)
        given = [*_tensors(args), *_tensors(kwargs.values())]
        if not given or any(isinstance(tensor, FakeTensor) for tensor in given):
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            return func(*args, **kwargs)

    def _add_scratch(self, func: Any, args: Any, result: Any) -> None:
        needed = scratch(func._schema.name, args, result, gloo=self._gloo)
        if not needed:
            return
        device = next((x.device.index or 0 for x in args if isinstance(x, Tensor)), 0)
        self.peaks[device] = max(self.peaks.get(device, 0), self.now.get(device, 0) + needed)

    def _count(self, storage: torch.UntypedStorage, device: int) -> None:
        key = storage._cdata
        size = -(-storage.nbytes() // self._block) * self._block
        device, before = self._sizes.get(key, (device, 0))
        if key not in self._sizes:
            weakref.finalize(storage, self._forget, key)
        self._sizes[key] = device, size
        now = self.now[device] = self.now.get(device, 0) + size - before
        self.peaks[device] = max(self.peaks.get(device, 0), now)
        if self._limit and now > self._limit:
            raise Exceeded

    def _forget(self, key: int) -> None:
        device, size = self._sizes.pop(key)
        self.now[device] -= size


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Those among arguments and in lists of them: operations take no other structures."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _one(tensor: Tensor) -> float | int | bool:
    """In place of a value that is not there: 1, of the tensor's type; False as a flag."""
    if tensor.dtype is torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1


def sizes(tensors: Iterable[Tensor]) -> int:
    """The bytes of tensors, of a shared one once; of a sharded one those of this rank."""
    found: dict[int, int] = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found[id(tensor)] = local.numel() * local.element_size()
    return sum(found.values())
