"""Counts what one optimizer step asks of a GPU, without one: kernel launches, bytes moved, waits of
the host.

The step runs on fake tensors (FakeTensorMode): every operation is dispatched with its shapes and
dtypes but not computed, so that GPT-2 124M at 16 x 1024 tokens takes seconds on any machine. The
tensors are on the CPU, since a torch without CUDA lacks the device "cuda" even for fake tensors;
rules below cover the differences of a GPU. Both sides of a comparison are counted by the same
rules, so that what a rule leaves out is left out for both.

- A launch is an operation, other than a view, that reaches the dispatcher below autograd and
  autocast, since eager torch launches one kernel for it. Allocations and views launch nothing.
- `SEVERAL` has operations of several kernels, `ON_GPUS` operations that the CPU decomposes and a
  GPU does not.
- Foreach and fused optimizer operations launch as many kernels as their lists need: the arguments
  of one kernel hold a fixed number of tensors and chunks (`multi_tensor_apply`,
  aten/src/ATen/native/cuda/MultiTensorApply.cuh).
- Bytes are the inputs plus the outputs of each operation, a tensor that is both (in place) twice,
  since it is read and written; broadcast dimensions are read once. Caches are not considered, which
  is right for tensors larger than them.
- Matrix products, convolutions and attention are apart: they are limited by arithmetic,
  `other_bytes` by memory.
- Autocast runs as on the CPU, which treats matrix products like a GPU. A GPU also computes
  cross-entropy in float32: its input is converted as on a GPU.
- A collective is an operation of c10d; it is counted with the bytes of what this rank gathers, or
  gives to a sum.
- A wait is an operation whose result the host needs (`_local_scalar_dense`, which `.item()` and
  `bool()` call). On the
  CPU a copy to the host shows as nothing at all; a step that needs one would call `.item()` or `.tolist()` on it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
VIEWS = {"_unsafe_view", "detach", "lift_fresh", "set_", "alias", "_reshape_alias", "resize_"}
"""Operations that launch nothing and are not marked as views in their schema."""
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}
ATTENTION = "_scaled_dot_product"
SEVERAL = {
    # flash attention: a sum over rows first, a conversion of the queries' gradient last
    "_scaled_dot_product_flash_attention_for_cpu_backward": 3,
    # the gradients of the input and of the weights
    "native_layer_norm_backward": 2,
    "rms_norm_backward": 2,
    "convolution_backward": 2,
    # a fill with zeros, then the scatter
    "nll_loss_backward": 2,
}
LIST_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""How many tensors fit into one launch, by how many lists there are (`depth_to_max_tensors`)."""
COLLECTIVES = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "send": "send",
    "recv_": "receive",
}
"""Operations of torch's process groups -> their names here."""
CHUNK = 65_536
BLOCKS = 320
"""Elements per chunk (`kChunkSize`), and chunks per launch (`depth_to_max_blocks`)."""
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
LISTS = {
    "_foreach_norm": 1,
    "_foreach_mul_": 1,
    "_foreach_copy_": 2,
    "_fused_adamw_": 4,
    "_fused_sgd_": 3,
}
"""How many lists an operation reads or writes; others: as many as its arguments have."""


@dataclass
class Counts:
    """The counts of a step."""

    launches: int = 0
    other_bytes: int = 0
    """Moved by all but matrix products and attention."""
    waits: list[str] = field(default_factory=list)
    """Operations that the host waits for."""
    collectives: Counter[str] = field(default_factory=Counter)
    """How many of each kind."""
    collective_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of whole tensors: the result of a gather, the input of a sum or its scatter."""
    by_name: Counter[str] = field(default_factory=Counter)
    """Launches of each operation."""

    def add_kernel(self, name: str, launches: int, moved: int) -> None:
        """Add an operation of this many launches, which moves this many bytes."""
        self.launches += launches
        self.by_name[name] += launches
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
        if library in ("c10d", "_c10d_functional") and name in COLLECTIVES:
            self.counts.collectives[COLLECTIVES[name]] += 1
            largest = max(_bytes(value) for value in _tensors((args, kwargs, result)))
            self.counts.collective_bytes[COLLECTIVES[name]] += largest
        if library not in ("aten", "counts"):  # questions such as prim::device, marks for profilers
            return result
        if name == "_local_scalar_dense":
            self.counts.waits.append(name)
        elif not (func.is_view or name in VIEWS or name in ALLOCATIONS):
            self._add(func, name, (args, kwargs), result)
        return result

    def _add(self, func: Any, name: str, arguments: Any, result: Any) -> None:
        launches = launches_of(name, arguments[0])
        moved = sum(_bytes(value) for value in _tensors(arguments) + _tensors(result))
        if name in SPARSE:
            index = sum(
                _bytes(value) for value in _tensors(arguments) if value.dtype == torch.int64
            )
            moved = 3 * index + SPARSE[name] * sum(_bytes(value) for value in _tensors(result))
        # Such as _foreach_mul_, which returns nothing.
        if func._schema.is_mutable and result is None:
            moved += sum(_bytes(value) for value in _written(func, arguments[0]))
        self.counts.add_kernel(name, launches, moved)


def launches_of(name: str, args: Sequence[Any]) -> int:
    """The number of kernels of an operation with these positional arguments."""
    if not name.startswith(("_foreach_", "_fused_")):
        return SEVERAL.get(name, 1)
    lists = [
        value
        for value in args
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor)
    ]
    depth = LISTS.get(name, min(len(lists), 5))
    launches = tensors = blocks = 0
    for tensor in lists[0]:
        chunks = math.ceil(tensor.numel() / CHUNK)
        tensors += 1
        for chunk in range(1, chunks + 1):
            blocks += 1
            if blocks == BLOCKS or (chunk == chunks and tensors == LIST_TENSORS[depth]):
                launches = launches + 1
                blocks = 0
                tensors = 0 if chunk == chunks else 1
    # The norms of the chunks are added up at the end.
    return launches + bool(blocks) + (name == "_foreach_norm")


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _bytes(value: Tensor) -> int:
    """Return the bytes that a kernel touches: a dimension with stride 0 is one element."""
    sizes = [size for size, stride in zip(value.shape, value.stride(), strict=True) if stride]
    return math.prod(sizes) * value.element_size() if value.numel() else 0


def _written(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """The arguments that an operation changes in place."""
    named = zip(func._schema.arguments, args, strict=False)
    return _tensors(
        [value for argument, value in named if argument.alias_info and argument.alias_info.is_write]
    )


@torch.library.custom_op("counts::rms_norm", mutates_args=())
def _rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("only counted, on fake tensors")


@_rms_norm.register_fake
def _(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("counts::rms_norm_backward", mutates_args=())
def _rms_norm_backward(
    grad: Tensor, x: Tensor, deviation: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("only counted, on fake tensors")


@_rms_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, deviation: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


_rms_norm.register_autograd(
    lambda ctx, grad, _: _rms_norm_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: (
        ctx.save_for_backward(inputs[0], output[1], inputs[1]),
        ctx.set_materialize_grads(False),
    ),
)


_cpu_rms_norm = F.rms_norm
_cpu_cross_entropy = F.cross_entropy


def _rms_norm_on_gpu(x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    """One kernel, where x and weight have one dtype; autocast computes it in float32."""
    # Inductor makes its own kernel.
    if not isinstance(x, FakeTensor) or torch.compiler.is_compiling():
        return _cpu_rms_norm(x, shape, weight, eps)
    whole, factor = (x.float(), weight.float()) if torch.is_autocast_enabled("cpu") else (x, weight)
    if whole.dtype != factor.dtype:  # torch decomposes it on a GPU as well
        return _cpu_rms_norm(x, shape, weight, eps)
    normed: Tensor = _rms_norm(whole, factor)[0]
    return normed


def _cross_entropy_on_gpu(logits: Tensor, *args: Any, **named: Any) -> Tensor:
    """Autocast computes it in float32."""
    return _cpu_cross_entropy(
        logits.float() if torch.is_autocast_enabled("cpu") else logits, *args, **named
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
def rules_of_gpus() -> Iterator[None]:
    """Norms and losses are the kernels that they are on a GPU."""
    norm = patch.object(F, "rms_norm", _rms_norm_on_gpu)
    loss = patch.object(F, "cross_entropy", _cross_entropy_on_gpu)
    with norm, loss:
        yield


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts what happens inside, on tensors of the surrounding FakeTensorMode."""
    with rules_of_gpus(), CountingMode() as mode:
        yield mode.counts
