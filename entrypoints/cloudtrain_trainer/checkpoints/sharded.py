"""Saves and loads weights and optimizer state with torch.distributed.checkpoint: each rank handles the shards it holds.

Tensors have names that do not depend on the strategy, `model.<name>` and `optimizer.<name of the parameter>.<slot>`. So
another strategy, or another number of ranks, can load the checkpoint: each rank reads the slices it needs.
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
    """All tensors of this rank's shard by name; the tensors themselves, not copies."""
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter, _ in _trained_parameters(model, optimizer):
        for slot, value in optimizer.state.get(parameter, {}).items():
            found[f"optimizer.{name}.{slot}"] = value
    return found


def copy_to_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies in host memory, by the same names, shapes and dtypes; training no longer changes them."""
    with torch.no_grad():
        return {name: _copy(value) for name, value in tensors.items()}


def write(folder: Path, tensors: dict[str, Tensor], group: Any) -> None:
    """Write the group's shards into one folder. `group`: a gloo group of the ranks that write; None: this rank
    alone.
    """
    _silence_warning()
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    save(
        dict(tensors),
        storage_writer=FileSystemWriter(folder, overwrite=False),
        planner=planner,
        process_group=group,
    )


def read(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a checkpoint into the model and the optimizer, in place, whatever strategy wrote it.

    CheckpointException if a weight of the model is missing or has another shape.
    """
    _silence_warning()
    reader = FileSystemReader(folder)
    known = reader.read_metadata().state_dict_metadata
    state: dict[str, dict[str, Tensor]] = {}
    to_load = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter, group in _trained_parameters(model, optimizer):
        prefix = f"optimizer.{name}."
        for key, metadata in known.items():
            slot = key.removeprefix(prefix)
            if key.startswith(prefix) and "." not in slot:
                to_load[key] = state.setdefault(name, {})[slot] = _empty_slot(slot, parameter, group, metadata)
    options = {"no_dist": True} if "no_dist" in inspect.signature(load).parameters else {}  # since torch 2.9
    load(to_load, storage_reader=reader, **options)
    for name, parameter, _ in _trained_parameters(model, optimizer):
        if name in state:
            optimizer.state[parameter] = state[name]


def _trained_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """(name, parameter, parameter group) of each parameter that the optimizer updates."""
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        if id(parameter) in groups:
            yield name, parameter, groups[id(parameter)]


def _empty_slot(slot: str, parameter: Tensor, group: dict[str, Any], metadata: Any) -> Tensor:
    """An empty tensor for a slot of the optimizer: sharded like its parameter, or a number (AdamW's step).

    A fused kernel reads the step on the GPU, any other on the CPU, and torch creates it likewise: "Note [special device
    hosting for step]" in torch/optim.
    """
    assert isinstance(metadata, TensorStorageMetadata)  # noqa: S101  (written above)
    dtype = metadata.properties.dtype
    if metadata.size == parameter.shape and slot != "step":
        return torch.zeros_like(parameter, dtype=dtype)
    on_device = group.get("fused") or group.get("capturable")
    return torch.zeros(metadata.size, dtype=dtype, device=parameter.device if on_device else "cpu")


def _copy(value: Tensor) -> Tensor:
    value = value.detach()
    return value.clone() if value.device.type == "cpu" else value.cpu()


def _silence_warning() -> None:
    """A single process needs no process group; torch warns that there is none."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
