"""Save and load weights and optimizer state with torch.distributed.checkpoint.

Each rank handles the shards it holds. Tensors have names that do not depend on the strategy,
`model.<name>` and `optimizer.<name of the parameter>.<slot>`. So another strategy, or another
number of ranks, can load the checkpoint: each rank reads the slices it needs.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, Partial, Replicate

from cloudtrain_trainer.factories import describe
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.training.optimizers import grouped, sharding
from cloudtrain_trainer.trees import local_part


def tensors_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, left_out: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return all tensors of this rank's shard by name, not copied. Numbers become tensors.

    `left_out`: names of weights to leave out. Raise `Refused` if a user's optimizer keeps anything
    else.
    """
    tensors = {
        f"model.{name}": value for name, value in weights_of(model).items() if name not in left_out
    }

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


def missing(folder: Path, model: nn.Module) -> list[str]:
    """Return the names of the model's weights that a checkpoint does not have."""
    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    return [name for name in weights_of(model, saved) if f"model.{name}" not in saved]


def _as_tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value

    if not isinstance(value, (int, float)):
        raise Refused(
            f"--optimizer: the state {name} is {describe(value)}: checkpoints keep tensors and"
            " numbers"
        )

    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


def write(folder: Path, tensors: dict[str, Tensor], group: Any) -> None:
    """Write the group's shards into one folder.

    `group`: a gloo group of the ranks that write; None: this rank alone.
    """
    _silence_warning()
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    save(
        dict(tensors),
        storage_writer=FileSystemWriter(folder, overwrite=False),
        planner=planner,
        process_group=group,
    )


def read(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    left_out: Collection[str] = (),
) -> None:
    """Load a checkpoint of any strategy into the model and the optimizer, in place.

    `optimizer`: None leaves its state out. `left_out`: names of weights that keep their values.
    CheckpointException if another weight of the model is missing or has another shape. Called by
    all ranks.
    """
    _silence_warning()
    reader = FileSystemReader(folder)
    saved = reader.read_metadata().state_dict_metadata
    to_load = {
        f"model.{name}": value
        for name, value in weights_of(model, saved).items()
        if name not in left_out
    }
    slots = {} if optimizer is None else _slots(saved)
    if optimizer is None or not slots:
        _load(to_load, reader)
        return

    _make_state(optimizer)

    for name, parameter in _trained_parameters(model, optimizer):
        made = optimizer.state.get(parameter, {})
        for slot, metadata in slots.get(name, {}).items():
            to_load[f"optimizer.{name}.{slot}"] = _place_for(made.get(slot), parameter, metadata)

    _load(to_load, reader)

    for name, parameter in _trained_parameters(model, optimizer):
        made = optimizer.state.pop(parameter, {})
        loaded = {
            slot: _as_made(made.get(slot), to_load[f"optimizer.{name}.{slot}"])
            for slot in slots.get(name, {})
        }
        if loaded:
            optimizer.state[parameter] = loaded


def read_known(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Load those of the tensors that a checkpoint has, in place. Called by all ranks."""
    reader = FileSystemReader(folder)
    saved = reader.read_metadata().state_dict_metadata
    known = {name: value for name, value in tensors.items() if name in saved}
    if known:
        _load(known, reader)


def _load(tensors: dict[str, Tensor], reader: FileSystemReader) -> None:
    # The parameter exists since torch 2.9.
    options = {"no_dist": True} if "no_dist" in inspect.signature(load).parameters else {}
    load(tensors, storage_reader=reader, **options)


def _slots(saved: Mapping[str, Any]) -> dict[str, dict[str, TensorStorageMetadata]]:
    """Return the slots of optimizer state in a checkpoint, by the name of the parameter."""
    slots: dict[str, dict[str, TensorStorageMetadata]] = {}

    for key, metadata in saved.items():
        name, _, slot = key.removeprefix("optimizer.").rpartition(".")
        if key.startswith("optimizer.") and isinstance(metadata, TensorStorageMetadata):
            slots.setdefault(name, {})[slot] = metadata

    return slots


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer create its state, by a step without gradients.

    Only the optimizer knows the device and sharding of each tensor: a fused kernel reads its step
    on the GPU, any other on the CPU. Weights and state are loaded afterwards.
    """
    before = [dict(group) for group in optimizer.param_groups]

    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)

    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, values in zip(optimizer.param_groups, before, strict=True):
        group.update(values)


def _trained_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, parameter) of each parameter that the optimizer updates."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        if id(parameter) in trained:
            yield name, parameter


def _place_for(made: Any, parameter: Tensor, metadata: TensorStorageMetadata) -> Tensor:
    """Return the tensor to load a slot into: the optimizer's, or a new one.

    A slot that is a number, or that the optimizer has not created yet, needs a new one.
    """
    if isinstance(made, Tensor):
        return made
    if metadata.size == parameter.shape and made is None:
        return torch.zeros_like(parameter, dtype=metadata.properties.dtype)

    return torch.zeros(metadata.size, dtype=metadata.properties.dtype)


def _as_made(made: Any, loaded: Tensor) -> Any:
    """Return a number if the optimizer keeps it as one; else the tensor."""
    return type(made)(loaded.item()) if isinstance(made, (int, float)) else loaded


def _silence_warning() -> None:
    """Hide torch's warning that a single process has no process group."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")


WORDS = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}
"""Bytes of an element -> integer of the same size."""
NAMED = 3
"""Maximum number of names in a message."""


class FrozenWeights:
    """The frozen weights of a model, as its factory made them.

    All ranks call each method together. `choice`: the value of `--save-frozen`.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, choice: str) -> None:
        self._model = model
        self._ranks = ranks
        self.lines: dict[str, str] = {}
        """A line for each frozen weight of the whole model; empty if checkpoints keep them."""
        frozen = self._frozen()
        distinct = {id(p): p.numel() for p in frozen.values()}
        by_rank = ranks.all_gather(
            (sum(distinct.values()), sum(p.numel() for p in model.parameters()))
        )
        left_out = sum(size for size, _ in by_rank)
        everything = sum(size for _, size in by_rank)
        if choice == "yes" or not left_out or (choice == "auto" and 2 * left_out <= everything):
            return
        for lines in ranks.all_gather(bit_sums(frozen)):
            self.lines |= lines

        ranks.log(
            f"checkpoints and the model file leave out {len(self.lines)} frozen tensors,"
            f" {100 * left_out / everything:.1f} % of the parameters: each start builds them"
            " again (--save-frozen yes keeps them)"
        )

    @property
    def metadata(self) -> dict[str, str]:
        """Return a note for the file of the model if it lacks frozen weights."""
        if not self.lines:
            return {}
        return {"left_out": f"{len(self.lines)} frozen tensors of the base model"}

    def unchanged(self) -> set[str]:
        """Return the names of frozen weights of this rank that have their first values."""
        if not self.lines:
            return set()

        lines = bit_sums(self._frozen())
        return {name for name, line in lines.items() if self.lines.get(name) == line}

    def check(self, names: Iterable[str], saved: Mapping[str, str], source: object) -> None:
        """Raise `Refused` if weights that a checkpoint lacks are not those of its run.

        `names`: missing weights of this rank. `saved`: the `lines` of the run. Weights without a
        line are left to the reader of the checkpoint.
        """
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        lines = bit_sums({name: parameters[name] for name in names if name in saved})
        mine = [name for name, line in lines.items() if line != saved[name]]
        other = [name for differing in self._ranks.all_gather(mine) for name in differing]

        if other:
            named = ", ".join(dict.fromkeys(other[:NAMED]))
            raise Refused(
                f"{source} was saved without its frozen weights, and the model has other ones now"
                f" ({named}): build it from the same base weights (inputs, --seed), or"
                " start from scratch: --no-resume here, cloudtrain rerun --fresh for a run"
            )

    def _frozen(self) -> dict[str, Tensor]:
        # Weights of another class, such as quantized ones, have no plain values: they are saved.
        return {
            name: p
            for name, p in self._model.named_parameters(remove_duplicate=False)
            if not p.requires_grad and type(p.data) in (Tensor, DTensor)
        }


@torch.no_grad()
def bit_sums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return dtype, shape and a sum of the bits of each tensor, whatever its strategy or device.

    Called by all ranks that share a tensor.
    """
    distinct = {id(tensor): tensor for tensor in tensors.values()}
    lines = {}

    for group in grouped(list(distinct.values()), sharding):
        sums = torch.stack([_sum_of_bits(tensor) for tensor in group])
        if isinstance(group[0], DTensor):
            placements = [
                Partial() if placement.is_shard() else Replicate()
                for placement in group[0].placements
            ]
            sums = DTensor.from_local(
                sums, group[0].device_mesh, placements, run_check=False
            ).full_tensor()

        for tensor, total in zip(group, sums.tolist(), strict=True):
            lines[id(tensor)] = f"{tensor.dtype} {list(tensor.shape)} {total}"

    return {name: lines[id(tensor)] for name, tensor in tensors.items()}


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """Return the sum of the elements' bits as integers, over this rank's shard: shape (), int64."""
    local = local_part(tensor)
    if local.is_complex():
        local = torch.view_as_real(local)

    return local.detach().view(WORDS[local.element_size()]).sum(dtype=torch.int64)
