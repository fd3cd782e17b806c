"""Counts what one optimizer step asks of a GPU, without one: operations, bytes moved, waits of the
host.

The step runs on fake tensors (FakeTensorMode): every operation is dispatched with its shapes and
dtypes but not computed, so that GPT-2 124M at 16 x 1024 tokens takes seconds on any machine. The
tensors are on the CPU, since a torch without CUDA lacks the device "cuda" even for fake tensors.

- A launch is an operation, other than a view or an allocation, that reaches the dispatcher below
  autograd and autocast. A GPU launches about one kernel for it, more for some.
- Bytes are the inputs plus the outputs of each operation, a tensor that is both (in place) twice,
  since it is read and written; broadcast dimensions are read once. Caches are not considered, which
  is right for tensors larger than them.
- Matrix products, convolutions and attention are left out of the bytes: arithmetic limits them.
- A message is an operation of a process group.
- A wait is an operation whose result the host needs (`_local_scalar_dense`, which `.item()` and
  `bool()` call).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import _resolve_process_group
from torch._subclasses import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
VIEWS = {"_unsafe_view", "detach", "lift_fresh", "set_", "alias", "_reshape_alias", "resize_"}
"""Operations that launch nothing and are not marked as views in their schema."""
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}
ATTENTION = "_scaled_dot_product"
MESSAGES = {
    "allreduce_": "all_reduce",
    "all_reduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "recv_": "receive",
}
"""Operations of torch's process groups -> their names here; others keep theirs."""
SPARSE = {
    "gather": 1,
    "embedding": 1,
    "nll_loss_forward": 0,
    "nll_loss_backward": 1,
    "scatter_add_": 0,
}
"""Operations that read or write only the elements which an index names: how often their output
counts as moved.
"""


class Message(NamedTuple):
    """A collective that this rank takes part in, or a tensor that it sends or receives."""

    kind: str
    size: int
    """Bytes of the whole tensor: the result of a gather, the input of a sum or its scatter."""
    ranks: tuple[int, ...]
    """The ranks of its group, or the one at the other end."""


@dataclass
class Counts:
    """The counts of a step."""

    launches: int = 0
    other_bytes: int = 0
    """Moved by all but matrix products and attention."""
    waits: list[str] = field(default_factory=list)
    """Operations that the host waits for."""
    messages: list[Message] = field(default_factory=list)
    by_name: Counter[str] = field(default_factory=Counter)
    """Launches of each operation."""

    def add_kernel(self, name: str, moved: int) -> None:
        """Add an operation, which moves this many bytes."""
        self.launches += 1
        self.by_name[name] += 1
        if name not in PRODUCTS and not name.startswith(ATTENTION):
            self.other_bytes += moved


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that are dispatched inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            # it dispatches operations on this rank's part, and collectives, which are counted
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        library, _, name = func._schema.name.partition("::")
        if (ranks := _ranks_of(func, args, kwargs or {})) is not None:
            largest = max(map(_bytes, tensors_in((args, kwargs, result))), default=0)
            self.counts.messages.append(Message(MESSAGES.get(name, name), largest, ranks))
        if library != "aten":  # questions such as prim::device, marks for profilers
            return result
        if name == "_local_scalar_dense":
            self.counts.waits.append(name)
        elif not (func.is_view or name in VIEWS or name in ALLOCATIONS):
            self._add(func, name, (args, kwargs), result)
        return result

    def _add(self, func: Any, name: str, arguments: Any, result: Any) -> None:
        moved = sum(_bytes(value) for value in tensors_in(arguments) + tensors_in(result))
        if name in SPARSE:
            index = sum(
                _bytes(value) for value in tensors_in(arguments) if value.dtype == torch.int64
            )
            moved = 3 * index + SPARSE[name] * sum(_bytes(value) for value in tensors_in(result))
        # Such as _foreach_mul_, which returns nothing.
        if func._schema.is_mutable and result is None:
            moved += sum(_bytes(value) for value in _written(func, arguments[0]))
        self.counts.add_kernel(name, moved)


def _ranks_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[int, ...] | None:
    """Return the ranks of a message by the arguments of its operation; None for other operations."""
    names = [argument.name for argument in func._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    if "process_group" in arguments:
        group = dist.ProcessGroup.unbox(arguments["process_group"])
    elif "group_name" in arguments:
        group = _resolve_process_group(arguments["group_name"])
    else:
        return None
    members = dist.get_process_group_ranks(group)
    peer = arguments.get("dst", arguments.get("src"))
    return tuple(members) if peer is None else (members[peer],)


def tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _bytes(value: Tensor) -> int:
    """Return the bytes that a kernel touches: a dimension with stride 0 is one element."""
    sizes = [size for size, stride in zip(value.shape, value.stride(), strict=True) if stride]
    return math.prod(sizes) * value.element_size() if value.numel() else 0


def _written(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """The arguments that an operation changes in place."""
    named = zip(func._schema.arguments, args, strict=False)
    return tensors_in(
        [value for argument, value in named if argument.alias_info and argument.alias_info.is_write]
    )


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made inside have a shape and no memory. Modules stay where they are, which fake ones
    can only do.
    """
    to = nn.Module.to
    nn.Module.to = lambda module, *_, **__: module  # type: ignore[method-assign, assignment]
    try:
        with FakeTensorMode():
            yield
    finally:
        nn.Module.to = to  # type: ignore[method-assign]


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts what happens inside, on tensors of the surrounding FakeTensorMode."""
    with CountingMode() as mode:
        yield mode.counts
