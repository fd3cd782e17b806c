"""Weights and optimizer state through torch.distributed.checkpoint: each rank writes and reads what it holds.

Tensors go by names that no strategy changes, `model.<name>` and `optimizer.<name of the parameter>.<slot>`, so that a
checkpoint of one strategy or number of ranks can be read by another: each rank reads the slices it needs.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All tensors of this rank's part, by their names; they are the live ones."""
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter, _ in _learnt(model, optimizer):
        for slot, value in optimizer.state.get(parameter, {}).items():
            found[f"optimizer.{name}.{slot}"] = value
    return found


def staged(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies in host memory, on which training has no more influence."""
    with torch.no_grad():
        return {name: _copy(value) for name, value in tensors.items()}


def write(folder: Path, tensors: dict[str, Tensor], group: Any) -> None:
    """Write the members' parts into one folder. `group`: a gloo group of those who write it; None alone."""
    _hush()
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    save(
        dict(tensors),
        storage_writer=FileSystemWriter(folder, overwrite=False),
        planner=planner,
        process_group=group,
    )


def read(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a checkpoint's tensors into the model and the optimizer, whoever wrote them."""
    _hush()
    reader = FileSystemReader(folder)
    known = reader.read_metadata().state_dict_metadata
    state: dict[str, dict[str, Tensor]] = {}
    wanted = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter, group in _learnt(model, optimizer):
        begin = f"optimizer.{name}."
        for key, about in known.items():
            slot = key.removeprefix(begin)
            if key.startswith(begin) and "." not in slot:
                wanted[key] = state.setdefault(name, {})[slot] = _room(slot, parameter, group, about)
    alone = {"no_dist": True} if "no_dist" in inspect.signature(load).parameters else {}  # since torch 2.9
    load(wanted, storage_reader=reader, **alone)
    for name, parameter, _ in _learnt(model, optimizer):
        if name in state:
            optimizer.state[parameter] = state[name]


def _learnt(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """The parameters that the optimizer changes: their names, themselves, and their groups."""
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        if id(parameter) in groups:
            yield name, parameter, groups[id(parameter)]


def _room(slot: str, parameter: Tensor, group: dict[str, Any], about: Any) -> Tensor:
    """For one tensor of the optimizer's state: cut like its parameter, or a number such as AdamW's step.

    A kernel that updates all at once reads the steps on the GPU, any other on the CPU, as torch creates them itself:
    "Note [special device hosting for step]" in torch/optim.
    """
    assert isinstance(about, TensorStorageMetadata)  # noqa: S101  (written above)
    dtype = about.properties.dtype
    if about.size == parameter.shape and slot != "step":
        return torch.zeros_like(parameter, dtype=dtype)
    on_device = group.get("fused") or group.get("capturable")
    return torch.zeros(about.size, dtype=dtype, device=parameter.device if on_device else "cpu")


def _copy(value: Tensor) -> Tensor:
    value = value.detach()
    return value.clone() if value.device.type == "cpu" else value.cpu()


def _hush() -> None:
    """One process needs no group, and says so itself."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
