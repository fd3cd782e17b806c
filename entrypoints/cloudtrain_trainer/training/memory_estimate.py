"""An estimate of the memory that a rank needs, from the sizes of a model. Values only; standard library only."""

from __future__ import annotations

from dataclasses import astuple, dataclass

SHARDS = ("fsdp", "hsdp", "context")
"""Strategies that gather one layer at a time."""
MIB = 1 << 20


@dataclass(frozen=True)
class ModelSizes:
    """What one process needs that trains the whole model (memory_trace.py measures it), in bytes."""

    parameters: int
    """Of all parameters and buffers."""
    trained: int
    """Of the parameters with gradients."""
    layer: int
    """Of the largest layer that is sharded on its own."""
    rest: int
    """Of what is in no such layer."""
    activations: int
    """Of one micro-batch, at the peak of its forward and backward pass; gradients are not counted."""


@dataclass(frozen=True)
class Division:
    """How a strategy divides a model, each as the number of ranks that share it."""

    strategy: str
    parameters: int = 1
    """Ranks that share parameters, gradients and optimizer state."""
    activations: int = 1
    """Ranks that share the activations of a micro-batch."""
    in_flight: int = 1
    """Micro-batches whose activations a rank holds at once (pipelines)."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What a rank needs, in bytes. Kernels, libraries, messages and fragmentation come on top."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    """Whole layers of a sharded model, and their gradients."""
    activations: int

    @property
    def total(self) -> int:
        """The sum, as if all gradients were there at the peak of the activations, as when they are accumulated."""
        return sum(astuple(self))

    def __str__(self) -> str:
        parts = {name: value for name, value in vars(self).items() if value}
        table = ", ".join(f"{name} {value / MIB:,.1f}" for name, value in parts.items())
        return f"{self.total / MIB:,.1f} MiB per rank ({table})"


def division(
    strategy: str, ranks: int, *, shard: int, tensor: int | None, context: int | None, stages: int | None, schedule: str
) -> Division:
    """How a strategy divides a model over so many ranks.

    `shard`: ranks of a shard group. `tensor`, `context`, `stages`: those of hybrid; `schedule`: of a pipeline. Tensor
    parallel parts and stages are taken as equal.
    """
    if strategy in ("fsdp", "hsdp"):
        return Division(strategy, shard)
    if strategy == "context" or context:
        return Division("context", ranks, context or ranks)
    if strategy == "tp" or tensor:
        return Division("tp" if not tensor else "fsdp", ranks, tensor or ranks)
    if strategy in ("pipeline", "hybrid"):
        count = stages or ranks
        return Division("pipeline", count, count, 2 * count if schedule == "gpipe" else count)
    return Division(strategy, stages or 1, 1) if strategy == "model-parallel" else Division(strategy)


def estimate(sizes: ModelSizes, divided: Division, numbers_per_parameter: float) -> MemoryEstimate:
    """What a rank needs. `numbers_per_parameter`: how much state the optimizer has for each trained parameter.

    A sharded model has the rest and two layers gathered at a time, the next one while one computes, and the gradient of
    one before it is reduced.
    """
    n = divided.parameters
    gathers = divided.strategy in SHARDS
    return MemoryEstimate(
        parameters=sizes.parameters // n,
        gradients=sizes.trained // n,
        optimizer=int(sizes.trained * numbers_per_parameter) // n,
        gathered=sizes.rest + 3 * sizes.layer if gathers and n > 1 else 0,
        activations=sizes.activations * divided.in_flight // divided.activations,
    )
