"""Counts the kernels and bytes of what torch.compile makes of a model's forward and backward pass,
without a GPU.

Dynamo, AOT autograd with its partitioner, and inductor's lowering and fusion run as they do before
code is generated; there they end, and each group of operations that inductor has fused is a kernel.
Inductor is told to treat the CPU by Triton's rules (`cpu_backend`), since those decide on a GPU
which operations become one kernel: its own for CPUs fuse fewer. What a GPU does otherwise is not
seen here: it splits large sums into two kernels, and may choose a matrix product that takes what
comes after it along. Both sides of a comparison are counted alike.

Bytes are those that inductor itself estimates for a group (`get_read_write_buffers_sizes`). What a
model does not compile, clipping and optimizer, is counted as counts.py counts it.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what inductor imports
    from torch._inductor import compile_fx, config, ir
    from torch._inductor.scheduler import NopKernelSchedulerNode, Scheduler

from tests.support.counts import SEVERAL, counted_as


class _Fused(Exception):
    """Inductor has decided what becomes one kernel."""


Kernels = list[tuple[str, int, int]]
"""Name, launches and bytes of each kernel of a graph."""


class KernelCounter:
    """A backend of torch.compile, `counter.compile`, whose graphs count as what inductor makes of
    them.
    """

    def __init__(self) -> None:
        self.graphs: list[Kernels] = []
        """Forward and backward passes that inductor was given."""

    def compile(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Return a function that runs the graph unchanged, and counts its kernels."""
        inner: Any = self._count
        compiled: Any = compile_fx.compile_fx(graph, inputs, inner_compile=inner)
        run: Callable[..., Any] = compiled
        return run

    def _count(
        self, graph: torch.fx.GraphModule, inputs: Any, **options: Any
    ) -> Callable[..., Any]:
        uncompiled = copy.deepcopy(graph)
        before = len(self.graphs)
        try:
            compile_fx.compile_fx_inner(graph, inputs, **options)
        except Exception:
            if len(self.graphs) == before:  # not ours
                raise
        kernels = self.graphs[-1]

        def run(*arguments: Any) -> Any:
            with counted_as(kernels):
                return uncompiled.forward(*arguments)

        boxed: Callable[..., Any] = make_boxed_func(run)
        return boxed


def kernels_of(scheduler: Any) -> Kernels:
    """Return the kernels of a graph."""
    counts = []
    for node in scheduler.nodes:
        made = getattr(node, "node", None)
        # Of complex numbers.
        is_view = getattr(getattr(made, "op_overload", None), "is_view", False)
        if not (
            is_view or isinstance(node, NopKernelSchedulerNode) or isinstance(made, ir.MultiOutput)
        ):
            name = _name(made)
            counts.append((name, SEVERAL.get(name, 1), node.get_read_write_buffers_sizes()))
    return counts


def _name(made: Any) -> str:
    """Return the operation that inductor calls; `fused` for generated code."""
    kernel = getattr(made, "python_kernel_name", None)
    if not isinstance(made, ir.ExternKernel) or not kernel:
        return "fused"
    parts = kernel.removeprefix("torch.ops.aten.").removeprefix("extern_kernels.").split(".")
    return str(parts[0])


@contextmanager
def counting_compiled() -> Iterator[KernelCounter]:
    """A counter for what `torch.compile(..., backend=counter.compile)` makes inside, on fake
    tensors.
    """
    counter = KernelCounter()

    def end(scheduler: Any) -> None:
        counter.graphs.append(kernels_of(scheduler))
        raise _Fused

    logger = logging.getLogger("torch._inductor.utils")
    torch._dynamo.reset()
    with (
        patch.object(Scheduler, "codegen", end),
        patch.object(logger, "disabled", True),  # it tells of each compilation that ended
        config.patch(cpu_backend="triton", force_disable_caches=True),
        functorch_config.patch(enable_autograd_cache=False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield counter
    torch._dynamo.reset()
