"""How a model is divided: into stages for pipelines, and into the repeated blocks that FSDP shards one by one.

Parameters keep their names in both, so that a checkpoint does not depend on how the model was divided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise

from torch import nn


def split(model: nn.Module, count: int, cost: Callable[[nn.Module], float]) -> list[nn.Sequential]:
    """`count` stages that in sequence are the model; they share its modules, and nothing is copied.

    `cost`: what a piece costs, in any unit; the dearest stage is made as cheap as can be. A piece that costs nothing
    goes with the one before it, and the first pieces with the first that costs something. Nested `nn.Sequential`s are
    cut as well; all else stays whole. ValueError if fewer pieces than `count` cost anything.
    """
    pieces = list(_pieces(model))
    priced = [(at, cost(piece)) for at, (_, piece) in enumerate(pieces) if cost(piece)]
    if not 1 <= count <= len(priced):
        raise ValueError(f"the model can be split into 1 to {len(priced)} stages, not {count}")
    firsts = _balanced([price for _, price in priced], count)
    cuts = [0, *(priced[first][0] for first in firsts[1:]), len(pieces)]
    return [_join(pieces[begin:end]) for begin, end in pairwise(cuts)]


def _pieces(model: nn.Module, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], nn.Module]]:
    """What is run one after the other, with the path of names that leads to it."""
    for name, child in model.named_children():
        if type(child) is nn.Sequential:
            yield from _pieces(child, (*path, name))
        else:
            yield (*path, name), child


def _join(pieces: Sequence[tuple[tuple[str, ...], nn.Module]]) -> nn.Sequential:
    """The pieces in nested `nn.Sequential`s again, each under its old path."""
    whole = nn.Sequential()
    for path, piece in pieces:
        place = whole
        for name in path[:-1]:
            if name not in dict(place.named_children()):
                place.add_module(name, nn.Sequential())
            place = getattr(place, name)
        place.add_module(path[-1], piece)
    return whole


def _balanced(costs: Sequence[float], count: int) -> tuple[int, ...]:
    """Where each of `count` runs of neighbours begins, so that the dearest run is as cheap as can be."""

    @cache
    def best(first: int, left: int) -> tuple[float, tuple[int, ...]]:
        if left == 1:
            return sum(costs[first:]), (first,)
        found = []
        for end in range(first + 1, len(costs) - left + 2):
            dearest, begins = best(end, left - 1)
            found.append((max(sum(costs[first:end]), dearest), (first, *begins)))
        return min(found)

    return best(0, count)[1]


def stages(model: nn.Module, count: int) -> Sequence[nn.Module]:
    """Stages of a small net of convolutions and linear layers, each of which costs the same."""
    return split(model, count, lambda piece: isinstance(piece, (nn.Conv2d, nn.Linear)))


ROWS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""What holds modules side by side."""


def repeated_blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Modules of one class that lie beside each other and have parameters of their own: the outermost such.

    Left out is a block that shares a parameter with anything else, such as tied weights: FSDP would cut them apart. And
    a block that is used twice, in which FSDP would have to see which use is the last.
    """
    owners = _owned(model)
    found = {id(block): block for block in _blocks(model)}  # a module that is used twice is one
    return [block for block in found.values() if _is_alone(block, owners)]


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    kinds = Counter(type(child) for child in module.children()) if isinstance(module, ROWS) else Counter()
    for child in module.children():
        if kinds[type(child)] > 1 and not isinstance(child, ROWS) and any(True for _ in child.parameters()):
            yield child
        else:
            yield from _blocks(child)


def _is_alone(block: nn.Module, owners: Counter[int]) -> bool:
    return all(owners[parameter] == times for parameter, times in _owned(block).items())


def _owned(module: nn.Module) -> Counter[int]:
    """Each parameter's identity, and in how many places it is; those of a module that is used twice are in two."""
    return Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
