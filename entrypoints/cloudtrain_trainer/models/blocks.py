"""The repeated blocks of a model that nobody has described: what FSDP shards one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torch import nn

ROWS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""What holds modules side by side."""


def repeated(model: nn.Module) -> Sequence[nn.Module]:
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
