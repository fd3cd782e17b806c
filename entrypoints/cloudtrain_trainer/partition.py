"""Divide a model into stages for pipelines, and into repeated blocks that FSDP shards.

Parameters keep their names in both, so that a checkpoint does not depend on the division. Layers
may compute their activations twice, which saves memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from cloudtrain_trainer.rules import Refused


def split(model: nn.Module, count: int, cost: Callable[[nn.Module], float]) -> list[nn.Sequential]:
    """Split a model into `count` consecutive stages, which share its modules without copies.

    `cost`: the cost of a piece, in any unit; the most expensive stage is made as cheap as possible.
    A piece without cost joins the piece before it, and the first pieces join the first one with a
    cost. Nested `nn.Sequential`s are split as well; all other modules stay whole. ValueError if
    fewer than `count` pieces have a cost.
    """
    pieces = list(_pieces(model))
    weighted = [(at, cost(piece)) for at, (_, piece) in enumerate(pieces) if cost(piece)]
    if not 1 <= count <= len(weighted):
        raise ValueError(f"the model can be split into 1 to {len(weighted)} stages, not {count}")

    firsts = _balanced([weight for _, weight in weighted], count)
    borders = [0, *(weighted[first][0] for first in firsts[1:]), len(pieces)]

    return [_join(pieces[begin:end]) for begin, end in pairwise(borders)]


def _pieces(
    model: nn.Module, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], nn.Module]]:
    """Yield the modules that run one after the other, each with its path of names."""
    for name, child in model.named_children():
        if type(child) is nn.Sequential:
            yield from _pieces(child, (*path, name))
        else:
            yield (*path, name), child


def _join(pieces: Sequence[tuple[tuple[str, ...], nn.Module]]) -> nn.Sequential:
    """Return the pieces in nested `nn.Sequential`s, each under its path: names stay."""
    whole = nn.Sequential()

    for path, piece in pieces:
        parent = whole
        for name in path[:-1]:
            if name not in dict(parent.named_children()):
                parent.add_module(name, nn.Sequential())
            parent = getattr(parent, name)

        parent.add_module(path[-1], piece)

    return whole


def _balanced(costs: Sequence[float], count: int) -> tuple[int, ...]:
    """Return the first index of each group, so that the most expensive is as cheap as possible."""

    @cache
    def best(first: int, remaining: int) -> tuple[float, tuple[int, ...]]:
        if remaining == 1:
            return sum(costs[first:]), (first,)

        splits = []
        for end in range(first + 1, len(costs) - remaining + 2):
            highest, firsts = best(end, remaining - 1)
            splits.append((max(sum(costs[first:end]), highest), (first, *firsts)))

        return min(splits)

    return best(0, count)[1]


def stages(model: nn.Module, count: int) -> Sequence[nn.Module]:
    """Return `count` stages of a small network; convolutions and linear layers cost the same.

    ValueError as `split`.
    """
    return split(model, count, lambda piece: isinstance(piece, (nn.Conv2d, nn.Linear)))


CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""Modules that only contain others."""


def repeated_blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Return the blocks that a model repeats: outermost siblings of one class with parameters.

    Blocks that share a parameter, such as tied weights, are left out, since FSDP would separate it.
    So are blocks that are used twice, since FSDP does not know which use is the last.
    """
    uses = _parameter_uses(model)
    # A module that is used twice counts once.
    blocks = {id(block): block for block in _blocks(model)}
    return [block for block in blocks.values() if _shares_nothing(block, uses)]


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    kinds = (
        Counter(type(child) for child in module.children())
        if isinstance(module, CONTAINERS)
        else Counter()
    )
    for child in module.children():
        if (
            kinds[type(child)] > 1
            and not isinstance(child, CONTAINERS)
            and any(True for _ in child.parameters())
        ):
            yield child
        else:
            yield from _blocks(child)


def _shares_nothing(block: nn.Module, uses: Counter[int]) -> bool:
    return all(uses[parameter] == times for parameter, times in _parameter_uses(block).items())


def _parameter_uses(module: nn.Module) -> Counter[int]:
    """Return id(parameter) -> number of modules that have it; a module used twice counts twice."""
    return Counter(
        id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False)
    )


def recompute(layers: Sequence[nn.Module]) -> None:
    """Make each layer compute its activations again in the backward pass, in place.

    Raise `Refused` without layers, or if one has batch norm, which
    would count each batch twice.
    """
    if not layers:
        raise Refused("--recompute finds no layers that this model repeats: leave it out")

    if any(isinstance(module, _BatchNorm) for layer in layers for module in layer.modules()):
        raise Refused(
            "--recompute would count each batch twice in the statistics of batch norm: leave it out"
        )

    for layer in layers:
        layer.forward = _recomputed(layer)


def _recomputed(layer: nn.Module) -> Callable[..., Any]:
    original = layer.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*inputs, **named)
        return checkpoint(original, *inputs, use_reentrant=False, **named)

    return forward
