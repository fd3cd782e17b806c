"""What a rank has of its own besides the weights: with it a resume is bit-identical."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def generators(device: torch.device) -> dict[str, Any]:
    """The states of torch's, numpy's and python's generators, as `weights_only` loading accepts them."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "numpy": (name, torch.from_numpy(np.array(keys)), position, has_gauss, gauss),
        "python": random.getstate(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_generators(state: dict[str, Any], device: torch.device) -> None:
    name, keys, *rest = state["numpy"]
    torch.set_rng_state(state["torch"])
    np.random.set_state((name, keys.numpy(), *rest))
    random.setstate(state["python"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def seed_generators(seed: int) -> None:
    """Seed torch (all devices), numpy and python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """Copies. Ranks hold different batch norm statistics until the next forward pass makes them equal."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def restore_buffers(model: nn.Module, saved: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(saved[name])


def fingerprint(model: nn.Module) -> str:
    """The first 16 hex digits of the SHA-256 of parameters and buffers: equal means bit-identical."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
