"""Count the bytes of tensors without values that are alive, now and at most."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

CUDA_BLOCK = 512
"""torch's CUDA allocator rounds each tensor up to a multiple of this (kMinBlockSize)."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the memory of every tensor that an operation makes, until it is freed.

    An operation that asks for a value gets 1: a count, a scale, a loss. `block`: memory is rounded
    up to a multiple of it.
    """

    def __init__(self, block: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._block = block
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> LiveBytes:
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = self._resize(storage, size)
            self._count(storage)
            return result

        # FSDP frees and allocates gathered parameters so, without an operation on tensors.
        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment, method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @contextmanager
    def as_if_before(self) -> Iterator[None]:
        """Count tensors that are created inside and stay as if the earlier peak had them."""
        peak = self.peak
        before = self.now
        yield
        self.peak = max(self.now, peak + self.now - before)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that were made before."""
        for tensor in tensors:
            self._count(tensor.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "_local_tensor") or kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # its operations on local tensors come here, too
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return _one(args[0])
        result = _call(func, args, kwargs or {})
        for tensor in _tensors((result,)):
            if tensor.layout is torch.strided:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        size = -(-storage.nbytes() // self._block) * self._block
        if key not in self._sizes:
            weakref.finalize(storage, self._forget, key)
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute with real values if all tensors have them: meshes of devices read theirs."""
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    if not tensors or any(isinstance(tensor, FakeTensor) for tensor in tensors):
        return func(*args, **kwargs)
    with unset_fake_temporarily():
        return func(*args, **kwargs)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments and in lists of them; operations take no others."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _one(tensor: Tensor) -> float | int | bool:
    """Return 1 of the tensor's type; False for a flag."""
    if tensor.dtype is torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1


def sizes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors: a shared one once, of a sharded one this rank's part."""
    by_tensor: dict[int, int] = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        by_tensor[id(tensor)] = local.numel() * local.element_size()
    return sum(by_tensor.values())
