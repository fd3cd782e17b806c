"""Write the weights of a model: the exported model, and the best weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

BEST = "best"
"""File name, without extension, of the best weights, beside the checkpoints."""


def write_model(path: Path, state: dict[str, Tensor], say: Callable[[str], None]) -> Path:
    """Write a state dict to a new .safetensors file, or .pt without that package.

    Return its path. `path`: without extension. `say`: called with a line of text in the second
    case.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    try:
        from safetensors.torch import save_file
    except ImportError:
        final = path.with_name(path.name + ".pt")
        say(
            "the package safetensors is not installed here: the model is written by torch.save to"
            f" {final}"
        )
        temporary = final.with_name(final.name + ".partial")
        torch.save(state, temporary)
    else:
        final = path.with_name(path.name + ".safetensors")
        temporary = final.with_name(final.name + ".partial")
        save_file(_with_own_memory(state), str(temporary), metadata={"format": "pt"})
    temporary.replace(final)
    return final


def copy_best_model(checkpoints: Path, model: Path) -> Path | None:
    """Copy the best weights to `model`, a path without extension; None if there are none."""
    for ending in (".safetensors", ".pt"):
        best = checkpoints / (BEST + ending)
        if best.is_file():
            model.parent.mkdir(parents=True, exist_ok=True)
            temporary = model.with_name(model.name + ending + ".partial")
            shutil.copyfile(best, temporary)
            return temporary.replace(model.with_name(model.name + ending))
    return None


def _with_own_memory(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Clone tensors that share memory, such as tied weights: safetensors refuses them."""
    addresses: set[int] = set()
    for name, value in state.items():
        if value.untyped_storage().data_ptr() in addresses:
            state[name] = value.clone()
        addresses.add(state[name].untyped_storage().data_ptr())
    return state
