"""State that differs between ranks besides their weights, and that a resume restores: random
generators, buffers.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def generator_states(devices: Sequence[torch.device]) -> dict[str, Any]:
    """The states of torch's, numpy's and Python's generators, in types that
    `torch.load(weights_only=True)` accepts.

    `devices`: those that this rank computes on; each GPU has a generator of its own.
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
    """Restore `generator_states`, on as many GPUs as there are in both. KeyError if a generator is
    missing.
    """
    name, keys, *rest = state["numpy"]
    torch.set_rng_state(state["torch"])
    np.random.set_state((name, keys.numpy(), *rest))
    random.setstate(state["python"])
    if devices[0].type == "cuda" and "cuda" in state:
        known = state["cuda"]  # a single tensor in checkpoints of earlier releases
        for device, one in zip(
            devices, [known] if isinstance(known, Tensor) else known, strict=False
        ):
            torch.cuda.set_rng_state(one, device)


def seed_generators(seed: int, devices: Sequence[torch.device] = ()) -> None:
    """Seed torch (all devices), numpy and Python. Each further GPU of `devices` gets a seed of its
    own.
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    for number, device in enumerate(devices[1:], 1):
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed + number * 500_009)


def buffers(model: nn.Module, statistics: Sequence[Tensor] = ()) -> dict[str, Tensor]:
    """Copies of the model's buffers, and of `statistics`, by name. They may differ between ranks
    (batch norm).
    """
    return {
        name: value.detach().clone() for name, value in _data_dependent_tensors(model, statistics)
    }


@torch.no_grad()
def restore_buffers(
    model: nn.Module, saved: dict[str, Tensor], statistics: Sequence[Tensor] = ()
) -> None:
    """Write the copies of `buffers` back, in place. KeyError if one is missing."""
    for name, value in _data_dependent_tensors(model, statistics):
        value.copy_(saved[name])


@torch.no_grad()
def restore_buffers_where(
    condition: Tensor, model: nn.Module, saved: dict[str, Tensor], statistics: Sequence[Tensor] = ()
) -> None:
    """The same if `condition`, a bool tensor of shape (), is true. Does not wait for its device."""
    for name, value in _data_dependent_tensors(model, statistics):
        value.copy_(torch.where(condition.to(value.device), saved[name], value))


def _data_dependent_tensors(
    model: nn.Module, statistics: Sequence[Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Tensors that depend on the data without being trained: buffers, and the task's statistics."""
    yield from model.named_buffers()
    yield from ((f"statistics {number}", value) for number, value in enumerate(statistics))


def fingerprint(weights: dict[str, Tensor]) -> str:
    """The first 16 hex digits of the SHA-256 digest of a state dict; equal ones mean bit-identical
    weights.
    """
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:16]
