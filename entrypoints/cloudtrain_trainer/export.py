"""The trained model as a file: safetensors, or torch's own format where the package safetensors is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

BEST = "best"
"""The name, without its ending, of the best weights so far, kept beside the checkpoints."""


def write_model(path: Path, state: dict[str, Tensor], say: Callable[[str], None]) -> Path:
    """Write a state dict, whole or not at all. `path` has no ending; the one it got is in what comes back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    try:
        from safetensors.torch import save_file
    except ImportError:
        final = path.with_name(path.name + ".pt")
        say(f"the package safetensors is not installed here: the model is written by torch.save to {final}")
        temporary = final.with_name(final.name + ".partial")
        torch.save(state, temporary)
    else:
        final = path.with_name(path.name + ".safetensors")
        temporary = final.with_name(final.name + ".partial")
        save_file(_unshared(state), str(temporary), metadata={"format": "pt"})
    temporary.replace(final)
    return final


def take_best(checkpoints: Path, model: Path) -> Path | None:
    """Copy the best weights so far to where the model belongs; None when there are none."""
    for ending in (".safetensors", ".pt"):
        best = checkpoints / (BEST + ending)
        if best.is_file():
            model.parent.mkdir(parents=True, exist_ok=True)
            temporary = model.with_name(model.name + ending + ".partial")
            shutil.copyfile(best, temporary)
            return temporary.replace(model.with_name(model.name + ending))
    return None


def _unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory, such as tied weights: each gets its own."""
    seen: set[int] = set()
    for name, value in state.items():
        if value.untyped_storage().data_ptr() in seen:
            state[name] = value.clone()
        seen.add(state[name].untyped_storage().data_ptr())
    return state
