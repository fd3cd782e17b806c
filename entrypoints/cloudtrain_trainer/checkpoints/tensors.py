"""The tensors of a checkpoint: weights and optimizer state, by names that a model gives them.

They are `model.<name>`, `optimizer.<name of the parameter>.<slot>` and `ema.<name>`.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cloudtrain_trainer.factories import describe
from cloudtrain_trainer.rules import Refused


def tensors_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, left_out: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return all tensors by name, not copied. Numbers become tensors.

    `left_out`: names of weights to leave out. Raise `Refused` if a user's optimizer keeps anything
    else.
    """
    tensors = {}
    for name, value in weights_of(model).items():
        if name not in left_out:
            tensors[f"model.{name}"] = value

    for name, parameter in _trained_parameters(model, optimizer):
        for slot, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"optimizer.{name}.{slot}"] = _as_tensor(value, f"{slot} of {name}")

    return tensors


def weights_of(model: nn.Module, saved: Collection[str] = ()) -> dict[str, Tensor]:
    """Return the model's state dict with one name for each tied tensor.

    It is the first one, or else one of a checkpoint's names `saved`.
    """
    state = model.state_dict(keep_vars=True)
    names: dict[int, str] = {}
    for name, value in state.items():
        if id(value) not in names or f"model.{name}" in saved:
            names[id(value)] = name

    return {name: state[name].detach() for name in names.values()}


def missing(saved: Collection[str], model: nn.Module) -> list[str]:
    """Return the names of the model's weights that a checkpoint does not have."""
    return [name for name in weights_of(model, saved) if f"model.{name}" not in saved]


def read(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint. They stay on disk until they are used, if they can.

    The ranks of a node have written a file each, before format 5 one rank a single file. Files that
    the manifest does not name were not verified, and are not read.
    """
    manifest = json.loads((folder.parent / "manifest.json").read_text())
    files = [name for name in manifest["files"] if name.startswith(f"{folder.name}/tensors")]
    if not files:
        return _read_distributed(folder)

    tensors: dict[str, Tensor] = {}
    for name in files:
        path = folder.parent / name
        tensors |= torch.load(path, map_location="cpu", weights_only=True, mmap=True)

    return tensors


def _read_distributed(folder: Path) -> dict[str, Tensor]:
    """Return the tensors that torch.distributed.checkpoint wrote. It takes long to import."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

    reader = FileSystemReader(folder)
    saved = reader.read_metadata().state_dict_metadata
    tensors: dict[str, Any] = {}
    for name, metadata in saved.items():
        if isinstance(metadata, TensorStorageMetadata):
            tensors[name] = torch.empty(metadata.size, dtype=metadata.properties.dtype)

    alone = {}
    if "no_dist" in inspect.signature(load_distributed).parameters:  # since torch 2.9
        alone["no_dist"] = True

    with warnings.catch_warnings():  # that a single process has no process group
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable")
        load_distributed(tensors, storage_reader=reader, **alone)

    return tensors


def load(
    saved: Mapping[str, Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    left_out: Collection[str] = (),
) -> None:
    """Copy a checkpoint's tensors into the model and the optimizer.

    `optimizer`: None leaves its state out. `left_out`: names of weights that keep their values.
    Raise `Refused` if another weight of the model is missing or has another shape.
    """
    slots = {} if optimizer is None else _slots(saved)
    samples: dict[int, Tensor] = {}
    if optimizer is not None and slots:
        samples = _make_samples(model, optimizer, slots)

    for name, weight in weights_of(model, saved).items():
        if name not in left_out:
            _copy(saved.get(f"model.{name}"), weight, name)

    if optimizer is None or not slots:
        return

    for name, parameter in _trained_parameters(model, optimizer):
        sample = samples[id(parameter)]
        made = optimizer.state.get(sample, {})
        loaded = {}
        for slot, value in slots.get(name, {}).items():
            loaded[slot] = _as_made(
                made.get(slot), value, parameter, f"{slot} of {name}", is_own=sample is parameter
            )

        optimizer.state.pop(parameter, None)
        if loaded:
            optimizer.state[parameter] = loaded


def copy_known(saved: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy those of the tensors that a checkpoint has, in place."""
    for name, tensor in tensors.items():
        if name in saved:
            _copy(saved[name], tensor, name)


def _copy(saved: Tensor | None, target: Tensor, name: str) -> None:
    if saved is None or saved.shape != target.shape:
        if saved is None:
            found = "nothing"
        else:
            found = f"the shape {tuple(saved.shape)}"

        raise Refused(
            f"the checkpoint has {found} for {name}, which has the shape {tuple(target.shape)} now:"
            " use the same model and optimizer, or start from scratch: --no-resume here,"
            " cloudtrain rerun --fresh for a run"
        )

    with torch.no_grad():
        target.copy_(saved)


def _as_tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value

    if not isinstance(value, (int, float)):
        raise Refused(
            f"--optimizer: the state {name} is {describe(value)}: checkpoints keep tensors and"
            " numbers"
        )

    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


def _as_made(made: Any, saved: Tensor, parameter: Tensor, name: str, *, is_own: bool) -> Any:
    """Return a slot as the optimizer keeps it.

    `made`: what the optimizer has made for this parameter (`is_own`) or for one of its kind, a
    tensor or a number; None if it is made later.
    """
    if isinstance(made, (int, float)):
        return type(made)(saved.item())

    like = parameter if saved.shape == parameter.shape else saved
    if made is None:
        made = torch.empty_like(like, dtype=saved.dtype)
    elif not is_own:
        made = torch.empty_like(like, dtype=made.dtype, device=made.device)

    _copy(saved, made, name)

    return made


def _slots(saved: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the slots of optimizer state in a checkpoint, by the name of the parameter."""
    slots: dict[str, dict[str, Tensor]] = {}

    for key, value in saved.items():
        name, _, slot = key.removeprefix("optimizer.").rpartition(".")
        if key.startswith("optimizer."):
            slots.setdefault(name, {})[slot] = value

    return slots


def _make_samples(
    model: nn.Module, optimizer: torch.optim.Optimizer, slots: Mapping[str, Mapping[str, Tensor]]
) -> dict[int, Tensor]:
    """Make the optimizer create the state of one parameter of each kind, by a step without gradients.

    Return this sample by the id of each parameter. A kind is a group, a device, a dtype and what a
    checkpoint has in `slots`: names, dtypes, and which of them have the parameter's shape. Only the
    optimizer knows the device of each slot: a fused kernel reads its step on the GPU, any other on
    the CPU. Weights and state are loaded afterwards.
    """
    saved: dict[int, Collection[Any]] = {}
    for name, parameter in _trained_parameters(model, optimizer):
        saved[id(parameter)] = frozenset(
            (slot, value.dtype, value.shape == parameter.shape)
            for slot, value in slots.get(name, {}).items()
        )

    before = [dict(group) for group in optimizer.param_groups]
    samples: dict[int, Tensor] = {}

    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"] = torch.zeros_like(group["lr"])
        else:
            group["lr"] = 0.0

        of_kinds: dict[Any, Tensor] = {}
        for parameter in sorted(group["params"], key=Tensor.numel):
            kind = parameter.device, parameter.dtype, saved.get(id(parameter))
            samples[id(parameter)] = of_kinds.setdefault(kind, parameter)

        group["params"] = list(of_kinds.values())
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)

    optimizer.step()
    for group, values in zip(optimizer.param_groups, before, strict=True):
        group.update(values)

    optimizer.zero_grad(set_to_none=True)

    return samples


def _trained_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, parameter) of each parameter that the optimizer updates."""
    trained: set[int] = set()
    for group in optimizer.param_groups:
        trained.update(map(id, group["params"]))

    for name, parameter in model.named_parameters():
        if id(parameter) in trained:
            yield name, parameter
