"""Checkpoints of earlier releases, in which a matrix of today was several: they are rewritten under
today's names.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


class Joined(NamedTuple):
    """How a matrix is made of earlier ones: the rows of each are `groups` equal parts, which
    alternate in it.
    """

    parts: Sequence[str]
    """The ends of the earlier names, such as `attention.query.weight`, in the order of their rows
    in a group.
    """
    groups: int


def has_parts(folder: Path, joined: Mapping[str, Joined]) -> bool:
    """Whether a checkpoint's folder of weights has parts of matrices that are joined today."""
    if not joined:
        return False
    known = FileSystemReader(folder).read_metadata().state_dict_metadata
    return any(_split(name, one.parts[0]) for name in known for one in joined.values())


def write_joined(folder: Path, target: Path, joined: Mapping[str, Joined]) -> None:
    """Write a folder of weights under today's names, in one process. The whole model is in host
    memory meanwhile.
    """
    warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
    reader = FileSystemReader(folder)
    tensors: dict[str, Tensor] = {}
    for name, about in reader.read_metadata().state_dict_metadata.items():
        if isinstance(about, TensorStorageMetadata):
            tensors[name] = torch.empty(about.size, dtype=about.properties.dtype)
    load(tensors, storage_reader=reader, no_dist=True)
    for end, one in joined.items():
        for name in [name for name in tensors if _split(name, one.parts[0])]:
            before, after = _split(name, one.parts[0]) or ("", "")
            parts = [tensors.pop(f"{before}{part}{after}") for part in one.parts]
            tensors[f"{before}{end}{after}"] = join(parts, one.groups)
    save(tensors, storage_writer=FileSystemWriter(target), no_dist=True)


def join(parts: Sequence[Tensor], groups: int) -> Tensor:
    """The matrix of these parts, which have the same shape; of numbers, such as AdamW's step, the
    first.
    """
    if parts[0].dim() < 2:
        return parts[0]
    return torch.stack(
        [part.reshape(groups, -1, *part.shape[1:]) for part in parts], dim=1
    ).flatten(0, 2)


def _split(name: str, end: str) -> tuple[str, str] | None:
    """What is before and behind `end` in the name of a weight or of its state in the optimizer;
    None without it.
    """
    before, found, after = name.partition(f".{end}")
    return (f"{before}.", after) if found and (not after or after.startswith(".")) else None
