"""Images reach the device as bytes, a quarter of float32, and are normalized there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Normalize:
    """Images (batch, channels, height, width) of uint8 -> float32, normalized per channel.

    The result is (pixel / 255 - mean) / deviation.
    """

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        means, deviations = (
            torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, deviation)
        )
        self._scale = (1 / (255 * deviations)).float()
        self._shift = (-means / deviations).float()
        self._by_device: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, images: Tensor) -> Tensor:
        """Return the images on their device, in one kernel; their memory format stays."""
        if images.device not in self._by_device:
            self._by_device[images.device] = (
                self._scale.to(images.device),
                self._shift.to(images.device),
            )
        scale, shift = self._by_device[images.device]
        return torch.addcmul(shift, images, scale)
