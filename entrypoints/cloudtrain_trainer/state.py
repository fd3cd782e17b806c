"""What a rank has of its own besides the weights: with it a resume is bit-identical."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def generators(devices: Sequence[torch.device]) -> dict[str, Any]:
    """The states of torch's, numpy's and python's generators, as `weights_only` loading accepts them.

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
    name, keys, *rest = state["numpy"]
    torch.set_rng_state(state["torch"])
    np.random.set_state((name, keys.numpy(), *rest))
    random.setstate(state["python"])
    if devices[0].type == "cuda" and "cuda" in state:
        known = state["cuda"]  # of one GPU alone in checkpoints of earlier releases
        for device, one in zip(devices, [known] if isinstance(known, Tensor) else known, strict=False):
            torch.cuda.set_rng_state(one, device)


def seed_generators(seed: int, devices: Sequence[torch.device] = ()) -> None:
    """Seed torch (all devices), numpy and python; each further one of `devices` gets other noise than the first."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    for number, device in enumerate(devices[1:], 1):
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed + number * 500_009)


def buffers(model: nn.Module, statistics: Sequence[Tensor] = ()) -> dict[str, Tensor]:
    """Copies. Ranks hold different batch norm statistics until something makes them equal."""
    return {name: value.detach().clone() for name, value in _following(model, statistics)}


@torch.no_grad()
def restore_buffers(model: nn.Module, saved: dict[str, Tensor], statistics: Sequence[Tensor] = ()) -> None:
    for name, value in _following(model, statistics):
        value.copy_(saved[name])


@torch.no_grad()
def restore_buffers_where(
    so: Tensor, model: nn.Module, saved: dict[str, Tensor], statistics: Sequence[Tensor] = ()
) -> None:
    """The same if `so` is true, which the host need not know."""
    for name, value in _following(model, statistics):
        value.copy_(torch.where(so.to(value.device), saved[name], value))


def _following(model: nn.Module, statistics: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What follows the data: buffers, and what a task names besides."""
    yield from model.named_buffers()
    yield from ((f"statistics {number}", value) for number, value in enumerate(statistics))


def fingerprint(weights: dict[str, Tensor]) -> str:
    """The first 16 hex digits of the SHA-256 of parameters and buffers: equal means bit-identical."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
