"""Start training from a file, a folder in Hugging Face's format, or a checkpoint."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from cloudtrain_trainer.checkpoints import sharded
from cloudtrain_trainer.rules import Refused

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
FILES = ("model.safetensors", "model.pt", "pytorch_model.bin", "adapter_model.safetensors")
"""Files that a folder may have: an index of several files, or one file. The first one counts.

Source: transformers/utils/__init__.py (SAFE_WEIGHTS_INDEX_NAME and others),
peft/utils/constants.py.
"""
PREFIXES = ("module.", "_orig_mod.")
"""Prefixes of DDP and torch.compile in the names of parameters."""
NAMED = 5
"""Maximum number of names in a message."""


def check(model: nn.Module, path: Path, partly: bool) -> str:
    """Compare names and shapes in the files with the model's; return a line for the log.

    `partly`: leave out tensors that only one side has, or that have another shape. Raise `Refused`
    if the files cannot be read, or the names or shapes do not match.
    """
    expected = model.state_dict()
    loaded = set[str]()
    misshapen = list[str]()
    unknown = list[str]()
    for file in files(path):
        for name, shape, _ in _read(file):
            name = _without_prefix(name)
            if name not in expected:
                unknown.append(name)
            elif expected[name].shape != shape:
                misshapen.append(f"{name} {tuple(shape)}, not {tuple(expected[name].shape)}")
            else:
                loaded.add(name)

    places = {_place(expected[name]) for name in loaded}  # safetensors has tied weights only once
    missing = [
        name
        for name, tensor in expected.items()
        if name not in loaded and _place(tensor) not in places
    ]
    missing = [
        name for name in missing if not any(entry.startswith(f"{name} ") for entry in misshapen)
    ]

    problems = {
        "have another shape": misshapen,
        "are missing": missing,
        "are not in the model": unknown,
    }

    summary = "; ".join(
        f"{len(names)} {problem}: {_some(names)}" for problem, names in problems.items() if names
    )
    if summary and (not partly or not loaded):
        hint = "" if not loaded else ", or --partial-weights to take what fits"
        raise Refused(
            f"--weights {path} does not fit the model: {summary}. Give the weights of this"
            f" model{hint}"
        )
    return f"training starts from {len(loaded)} tensors of {path}" + (
        f"; {summary}" if summary else ""
    )


@torch.no_grad()
def read(model: nn.Module, path: Path) -> None:
    """Copy matching tensors into the model, in place and one at a time."""
    targets = model.state_dict()
    for file in files(path):
        for name, shape, tensor in _read(file):
            name = _without_prefix(name)
            if name in targets and targets[name].shape == shape:
                targets[name].copy_(tensor())


def _place(tensor: Tensor) -> tuple[int, int]:
    """Return the address of a tensor's values: the same for tied weights."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def files(path: Path) -> list[Path]:
    """Return the files of a file or folder of weights.

    Raise `Refused` if there are none, or one of an index is missing.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise Refused(f"--weights {path} does not exist (in a job an input is ${{inputs.NAME}})")

    for folder in (path, *sorted(path.glob("weights-*"))):
        if (folder / ".metadata").is_file():  # a checkpoint of ours, or its weights
            return [folder]

    for name in INDEXES:
        if (path / name).is_file():
            try:
                paths = sorted(
                    {
                        path / Path(shard).name
                        for shard in json.loads((path / name).read_text())["weight_map"].values()
                    }
                )
            except (ValueError, KeyError, AttributeError) as error:
                raise Refused(
                    f"--weights {path / name} is not an index of weights: {error}"
                ) from None
            missing = [str(shard.name) for shard in paths if not shard.is_file()]
            if missing:
                raise Refused(f"--weights {path} lacks {_some(missing)}, which its {name} names")
            return paths

    for name in FILES:
        if (path / name).is_file():
            return [path / name]
    raise Refused(
        f"--weights {path} has no weights: expected {', '.join(FILES[:-1])} or {FILES[-1]}"
    )


def _read(path: Path) -> Iterator[tuple[str, torch.Size, Callable[[], Tensor]]]:
    """Yield (name, shape, function that reads it) of each tensor."""
    if path.is_dir():
        yield from sharded.read_weights(path)
        return
    if path.suffix == ".safetensors":
        yield from _read_safetensors(path)
        return
    try:
        content = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise Refused(f"--weights {path} cannot be read: {str(error).splitlines()[0]}") from None
    state = (
        content.get("state_dict", content.get("model", content))
        if isinstance(content, dict)
        else None
    )
    if not isinstance(state, dict) or not all(
        isinstance(value, Tensor) for value in state.values()
    ):
        raise Refused(
            f"--weights {path} is not a state dict: write it with torch.save(model.state_dict(),"
            " path)"
        )
    for name, value in state.items():
        yield name, value.shape, value.detach


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
