"""The graphs that `--compile` makes: counted by a backend that compiles nothing, for one process
and for two ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from cloudtrain_trainer import hardware
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.training.loop import Loop
from tests.entrypoints.trainer.ddp_checks import curve_of_one_process, shared_process_group
from tests.entrypoints.trainer.loss_curves import (
    TOLERANCE,
    begin,
    relative_difference,
    small_task,
    task_flags,
    train,
)

FIRST_BUCKET = "_DEFAULT_FIRST_BUCKET_BYTES"
"""The name of torch's setting for the size of DDP's first bucket."""


class GraphCounter:
    """A backend of torch.compile that records how many operations each graph has.

    `differentiate`: trace the backward pass too, as a compiler does, which takes several times as
    long.
    """

    def __init__(self, differentiate: bool = False) -> None:
        self.graphs: list[int] = []
        self.differentiate = differentiate

    def __call__(
        self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]
    ) -> Callable[..., object]:
        from torch._dynamo.backends.debugging import aot_eager  # seconds, for every test runner

        self.graphs.append(len(graph.graph.nodes))
        compiled: Callable[..., object] = (
            aot_eager(graph, inputs) if self.differentiate else graph.forward
        )
        return compiled


def compiled(
    name: str, argv: list[str], ranks: Ranks, before: Callable[[Loop], None]
) -> tuple[list[int], list[float]]:
    """(number of operations of each graph, losses) of a training. `before`: called with the loop
    before it trains.
    """
    counter = GraphCounter()
    torch._dynamo.reset()
    hardware.COMPILE_BACKEND = counter
    first = getattr(dist, FIRST_BUCKET)
    try:
        loop = begin(small_task(name), [*argv, "--compile"], ranks)
        before(loop)
        assert not counter.graphs, "a trial before training must leave no graph behind"
        return counter.graphs, train(loop).losses
    finally:
        hardware.COMPILE_BACKEND = "inductor"
        setattr(dist, FIRST_BUCKET, first)


def try_one_batch(loop: Loop) -> None:
    """As `--probe-memory` does."""
    loop.step.forward_backward_alone(*next(loop.batches.load(0, 0)))
    loop.step.optimizer.zero_grad()
    loop.step.loss.restore((0.0, 0))


def try_with_small_buckets(loop: Loop) -> None:
    """The same, and DDP gets several buckets."""
    try_one_batch(loop)
    setattr(dist, FIRST_BUCKET, 1 << 12)
    loop.step.wrapped.bucket_bytes_cap = 1 << 12  # type: ignore[assignment]


def graphs() -> None:
    """ddp: one graph, or one per bucket if there are several; recomputed layers are in it, too."""
    with shared_process_group() as ranks:
        check_graphs_under_ddp(ranks)
        check_losses_of_compiled_text(ranks)


def check_losses_of_compiled_text(ranks: Ranks) -> None:
    """Graphs with layers that are recomputed change no loss."""
    argv = [*task_flags("text"), "--strategy", "ddp", "--recompute", "blocks"]
    graphs, losses = compiled("text", argv, ranks, lambda _: None)
    assert graphs
    assert relative_difference(losses, curve_of_one_process("text", ranks).losses) < TOLERANCE


def check_graphs_under_ddp(ranks: Ranks) -> None:
    """Also with accumulation steps, whose first ones do not reduce gradients."""
    argv = [*task_flags("digits"), "--strategy", "ddp", "--accumulate", "2"]
    expected = curve_of_one_process("digits", ranks, "--accumulate", "2").losses
    one, graphs = compiled("digits", argv, ranks, try_one_batch)
    assert len(one) == 1, f"graphs of {one} operations"
    assert relative_difference(graphs, expected) < TOLERANCE
    by_bucket, graphs = compiled("digits", argv, ranks, try_with_small_buckets)
    assert len(by_bucket) > 1, f"still one graph of {by_bucket} operations with several buckets"
    assert relative_difference(graphs, expected) < TOLERANCE
