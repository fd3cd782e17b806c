"""State that differs between ranks besides their weights: random generators and buffers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def generator_states(devices: Sequence[torch.device]) -> dict[str, Any]:
    """Return the states of torch's, numpy's and Python's generators.

    `torch.load(weights_only=True)` accepts their types. `devices`: of this rank; each GPU has a
    generator.
    """
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "numpy": (name, torch.from_numpy(np.array(keys)), position, has_gauss, gauss),
        "python": random.getstate(),
    }
    if devices[0].type == "cuda":
        state["cuda"] = [torch.cuda.get_rng_state(device) for device in devices]

    return state


def restore_generators(state: dict[str, Any], devices: Sequence[torch.device]) -> None:
    """Restore `generator_states`, on as many GPUs as both have.

    KeyError if a generator is missing.
    """
    name, keys, *numbers = state["numpy"]
    torch.set_rng_state(state["torch"])
    np.random.set_state((name, keys.numpy(), *numbers))
    random.setstate(state["python"])
    if devices[0].type == "cuda" and "cuda" in state:
        for device, saved in zip(devices, state["cuda"], strict=False):
            torch.cuda.set_rng_state(saved, device)


def seed_generators(seed: int, devices: Sequence[torch.device] = ()) -> None:
    """Seed torch (all devices), numpy and Python.

    Each further GPU of `devices` gets another seed.
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    for number, device in enumerate(devices[1:], 1):
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed + number * 500_009)


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the model's buffers by name: they may differ between ranks (batch norm)."""
    return {name: value.detach().clone() for name, value in model.named_buffers()}


@torch.no_grad()
def restore_buffers(model: nn.Module, saved: dict[str, Tensor]) -> None:
    """Write the copies of `buffers` back, in place. KeyError if one is missing."""
    for name, value in model.named_buffers():
        value.copy_(saved[name])


def fingerprint(weights: dict[str, Tensor]) -> str:
    """Return 16 hex digits of a state dict's SHA-256; equal ones mean identical weights."""
    digest = hashlib.sha256()

    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )

    return digest.hexdigest()[:16]
