"""Starts training from given weights: a .safetensors or .pt file, or a folder in Hugging Face's
format.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cloudtrain_trainer.rules import Refused

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
FILES = ("model.safetensors", "model.pt", "pytorch_model.bin", "adapter_model.safetensors")
"""What a folder may have: an index of several files, or one file. The first that exists counts.

Source: transformers/utils/__init__.py (SAFE_WEIGHTS_INDEX_NAME and others),
peft/utils/constants.py.
"""
PREFIXES = ("module.", "_orig_mod.")
"""What DDP and torch.compile put before the names of parameters."""
NAMED = 5
"""How many names a message has at most."""


def load(model: nn.Module, path: Path, partly: bool) -> str:
    """`check`, then `read`: returns the line of the first."""
    said = check(model, path, partly)
    read(model, path)
    return said


def check(model: nn.Module, path: Path, partly: bool) -> str:
    """Compare the names and shapes in the files with those of the model; returns a line about what
    it starts from.

    `partly`: leave out what only one side has, or what has another shape. Raises `Refused` if the
    files cannot be read, or the names or shapes do not match.
    """
    wanted = model.state_dict()
    loaded = set[str]()
    other = list[str]()
    unknown = list[str]()
    for file in files(path):
        for name, shape, _ in _read(file):
            name = _without_prefix(name)
            if name not in wanted:
                unknown.append(name)
            elif wanted[name].shape != shape:
                other.append(f"{name} {tuple(shape)}, not {tuple(wanted[name].shape)}")
            else:
                loaded.add(name)
    places = {_place(wanted[name]) for name in loaded}  # safetensors has tied weights only once
    missing = [
        name
        for name, tensor in wanted.items()
        if name not in loaded and _place(tensor) not in places
    ]
    missing = [name for name in missing if not any(each.startswith(f"{name} ") for each in other)]
    problems = {
        "have another shape": other,
        "are missing": missing,
        "are not in the model": unknown,
    }
    found = "; ".join(
        f"{len(names)} {what}: {_some(names)}" for what, names in problems.items() if names
    )
    if found and (not partly or not loaded):
        hint = "" if not loaded else ", or --partial-weights to take what fits"
        raise Refused(
            f"--weights {path} does not fit the model: {found}. Give the weights of this"
            f" model{hint}"
        )
    return f"training starts from {len(loaded)} tensors of {path}" + (f"; {found}" if found else "")


def read(model: nn.Module, path: Path) -> set[str]:
    """Copy what fits into the model, in place, one tensor at a time and in its own dtypes; returns
    the names.

    The model may be a stage of the one that was checked, or have tensors of which this rank has a
    shard.
    """
    wanted = model.state_dict()
    loaded = set[str]()
    for file in files(path):
        for name, shape, tensor in _read(file):
            name = _without_prefix(name)
            if name in wanted and wanted[name].shape == shape:
                copy_part(wanted[name], tensor())
                loaded.add(name)
    return loaded


@torch.no_grad()
def copy_part(target: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into one of the same shape, of which this rank may have only a shard, in
    place.
    """
    if isinstance(target, DTensor):
        (chunk,) = target.__create_chunk_list__()  # type: ignore[no-untyped-call]
        whole = whole[
            tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
        ]
        target = target.to_local()
    target.copy_(whole)


def _place(tensor: Tensor) -> tuple[int, int]:
    """Where its values are: the same for tied weights, also without memory (meta device)."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def files(path: Path) -> list[Path]:
    """The files of a file or folder of weights. Raises `Refused` if there are none, or one of an
    index is missing.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise Refused(f"--weights {path} does not exist (in a job an input is ${{inputs.NAME}})")
    for name in INDEXES:
        if (path / name).is_file():
            try:
                found = sorted(
                    {
                        path / Path(each).name
                        for each in json.loads((path / name).read_text())["weight_map"].values()
                    }
                )
            except (ValueError, KeyError, AttributeError) as error:
                raise Refused(
                    f"--weights {path / name} is not an index of weights: {error}"
                ) from None
            missing = [str(each.name) for each in found if not each.is_file()]
            if missing:
                raise Refused(f"--weights {path} lacks {_some(missing)}, which its {name} names")
            return found
    for name in FILES:
        if (path / name).is_file():
            return [path / name]
    raise Refused(
        f"--weights {path} has no weights: expected {', '.join(FILES[:-1])} or {FILES[-1]}"
    )


def _read(path: Path) -> Iterator[tuple[str, torch.Size, Callable[[], Tensor]]]:
    """(name, shape, a function that reads it) of each tensor, where the format allows for it."""
    if path.suffix == ".safetensors":
        yield from _read_safetensors(path)
        return
    try:
        found = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise Refused(f"--weights {path} cannot be read: {str(error).splitlines()[0]}") from None
    state = found.get("state_dict", found.get("model", found)) if isinstance(found, dict) else None
    if not isinstance(state, dict) or not all(
        isinstance(value, Tensor) for value in state.values()
    ):
        raise Refused(
            f"--weights {path} is not a state dict: write it with torch.save(model.state_dict(),"
            " path)"
        )
    for name, value in state.items():
        yield name, value.shape, partial(_same, value)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _read_safetensors(path: Path) -> Iterator[tuple[str, torch.Size, Callable[[], Tensor]]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise Refused(
            f"--weights {path} needs the package safetensors: pip install safetensors"
        ) from None
    try:
        with safe_open(path, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118  (it is not a dict)
                yield (
                    name,
                    torch.Size(content.get_slice(name).get_shape()),
                    partial(content.get_tensor, name),
                )
    except (OSError, SafetensorError) as error:
        raise Refused(f"--weights {path} cannot be read: {error}") from None


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (
        f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    )
