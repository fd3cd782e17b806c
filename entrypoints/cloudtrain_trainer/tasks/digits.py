"""Handwritten digits: 1,797 grey images of 8 x 8 pixels that come with scikit-learn.

They are UCI's "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998). One in
five is for validation (stratified, fixed by the seed). A small convolutional network with batch
norm and dropout trains on them in seconds on a CPU.
"""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_trainer.tasks import Draw, Task

SIDE = 8
"""Pixels of a side."""
SHIFT = 1
"""Maximum shift of a training image, in pixels."""
NOISE = 0.05
"""Standard deviation of the noise in every pixel (0 to 1)."""
VALIDATION_SHARE = 5
"""One sample of this many is for validation."""


class Images:
    """Images (batch, 1, height, width) and labels (batch,), int64, from memory.

    With a seed, images are shifted at random by (seed, epoch, index), and have noise.
    """

    def __init__(self, images: Tensor, labels: Tensor, seed: int | None = None) -> None:
        self.images = images
        self.labels = labels
        self.seed = seed
        self._epoch = -1
        self._noise = self._shifts = torch.empty(0)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        images = self.images[draw.indices]
        if self.seed is not None:
            self._draw_noise(self.seed, draw.epoch)
            images = self._augment(images, draw.indices)

        return images, self.labels[draw.indices]

    def _draw_noise(self, seed: int, epoch: int) -> None:
        """Draw it once per epoch for all samples, so that it depends only on the index."""
        if epoch == self._epoch:
            return

        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        self._noise = NOISE * torch.randn(self.images.shape, generator=generator)
        self._shifts = torch.randint(0, 2 * SHIFT + 1, (len(self), 2), generator=generator)
        self._epoch = epoch

    def _augment(self, images: Tensor, indices: list[int]) -> Tensor:
        top, left = self._shifts[indices].unbind(1)
        pixels = torch.arange(images.shape[-1])
        rows = (top[:, None] + pixels)[:, :, None]
        columns = (left[:, None] + pixels)[:, None, :]
        sample = torch.arange(len(images))[:, None, None]
        shifted = F.pad(images, (SHIFT,) * 4)[sample, 0, rows, columns][:, None]

        return shifted + self._noise[indices]


def build(seed: int) -> Task:
    """Return the task. `seed`: of the split and the noise.

    ModuleNotFoundError without scikit-learn.
    """
    images, labels = read()
    train, validation = split(labels, seed)

    return Task(
        model=model,
        loss=loss,
        correct=correct,
        train=Images(images[train], labels[train], seed),
        validation=Images(images[validation], labels[validation]),
        epochs=3,
        batch_size=32,
        lr=4e-3,
        weight_decay=1e-2,
        workers=0,
        unit="images",
        channels_last=True,
    )


def read() -> tuple[Tensor, Tensor]:
    """Return images (1797, 1, 8, 8) from 0 to 1, float32, and labels (1797,), int64.

    They come from scikit-learn's file, since importing it would take a second. ModuleNotFoundError
    if it is not installed.
    """
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
        )

    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"

    if path.is_file():
        with gzip.open(path) as lines:
            table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
        pixels = table[:, :-1]
        labels = table[:, -1]
    else:  # another release may have moved it
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)

    images = torch.from_numpy(np.asarray(pixels, dtype=np.float32)).reshape(-1, 1, SIDE, SIDE)

    return images / 16, torch.from_numpy(np.asarray(labels, dtype=np.int64))


def split(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return indices for training (n,) and validation (m,), int64: every fifth of each digit.

    `labels`: of shape (n + m,). `seed`: shuffles before the split.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_digit = order[torch.argsort(labels[order], stable=True)]
    held_out = torch.arange(len(labels)) % VALIDATION_SHARE == 0

    return by_digit[~held_out], by_digit[held_out]


def model() -> nn.Module:
    """Return a model of about 75,000 parameters: (batch, 1, 8, 8) -> logits (batch, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(64 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy in float32, shape ().

    `logits`: (batch, classes). `labels`: (batch,), int64.
    """
    return F.cross_entropy(logits.float(), labels)


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the number of correct predictions, shape ().

    `logits`: (batch, classes). `labels`: (batch,).
    """
    return (logits.argmax(1) == labels).sum()
