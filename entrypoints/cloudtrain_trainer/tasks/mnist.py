"""MNIST: 70,000 handwritten digits of 28 x 28 pixels, from an input.

The input has the four files in the idx format, also of other data such as Fashion-MNIST. Source:
LeCun, Cortes, Burges; the format: http://yann.lecun.com/exdb/mnist.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_trainer.data.pixels import Normalize
from cloudtrain_trainer.partition import stages
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, Task, digits

INPUT = "CLOUDTRAIN_INPUT_MNIST"
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
PIXELS = 28
CLASSES = 10
MEAN = 0.1307
DEVIATION = 0.3081
"""Mean and standard deviation of the training images' pixels (0 to 1)."""
normalize = Normalize([MEAN], [DEVIATION])
SHIFT = 2
"""Maximum shift of training images, in pixels."""


MAX_IDX_BYTES = 1 << 28
"""The largest file, unpacked. MNIST's largest has 47 MB."""
IDX_UINT8 = 8
"""The format's code for unsigned bytes."""


class Images:
    """Images (batch, 1, 28, 28), uint8, and labels (batch,), int64.

    With a seed, the images are shifted at random by (seed, epoch, index).
    """

    def __init__(self, pixels: Tensor, labels: Tensor, seed: int | None = None) -> None:
        """`pixels`: (n, 28, 28), uint8. `labels`: (n,), any integer dtype."""
        self.pixels = pixels
        self.labels = labels.long()
        self.seed = seed
        self._shifts_epoch = -1
        self._shifts = torch.empty(0)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        images = self.pixels[draw.indices]
        if self.seed is not None:
            images = self._shifted(images, draw)
        return images[:, None], self.labels[draw.indices]

    def _shifted(self, images: Tensor, draw: Draw) -> Tensor:
        # Drawn once per epoch for all samples: depends only on the index.
        if draw.epoch != self._shifts_epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + draw.epoch)  # type: ignore[operator]
            self._shifts = torch.randint(0, 2 * SHIFT + 1, (len(self), 2), generator=generator)
            self._shifts_epoch = draw.epoch
        top, left = self._shifts[draw.indices].unbind(1)
        pixels = torch.arange(PIXELS)
        rows = (top[:, None] + pixels)[:, :, None]
        columns = (left[:, None] + pixels)[:, None, :]
        return F.pad(images, (SHIFT,) * 4)[torch.arange(len(images))[:, None, None], rows, columns]


def read() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images (n, 28, 28) and labels (n,), then validation's; all uint8.

    Raise `Refused` if a file is missing or has another format.
    """
    input_folder = os.environ.get(INPUT)
    if not input_folder:
        raise Refused(
            f"--data mnist needs an input called mnist with its four files (${INPUT}), or use"
            " --data digits"
        )
    paths = [Path(input_folder, name) for name in FILES]
    arrays = [read_idx(path, dimensions=3 if "images" in path.name else 1) for path in paths]
    for at in (0, 2):
        images, labels = arrays[at : at + 2]
        if images.shape != (len(labels), PIXELS, PIXELS):
            raise Refused(
                f"{paths[at]} has {tuple(images.shape)} pixels: expected ({len(labels)}, 28, 28),"
                " as labels"
            )
        if labels.max() >= CLASSES:
            raise Refused(
                f"{paths[at + 1]} has the label {int(labels.max())}: expected 0 to {CLASSES - 1}"
            )
    return arrays[0], arrays[1], arrays[2], arrays[3]


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the content of a gzipped idx file: uint8, of the shape in its header.

    `dimensions`: number of dimensions that the shape must have. At most the announced bytes, and at
    most `MAX_IDX_BYTES`, are unpacked: a small file may unpack to a huge one. Raise `Refused` if it
    is not such a file.
    """
    try:
        with gzip.open(path, "rb") as content:
            header = content.read(4 + 4 * dimensions)
            if (
                header[:4] != bytes((0, 0, IDX_UINT8, dimensions))
                or len(header) < 4 + 4 * dimensions
            ):
                raise Refused(f"{path} is not an idx file of bytes in {dimensions} dimensions")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size = math.prod(shape)
            if not 0 < size <= MAX_IDX_BYTES:
                raise Refused(f"{path} announces {size} bytes: expected 1 to {MAX_IDX_BYTES}")
            values = bytearray(content.read(size))
            if len(values) < size:
                raise Refused(f"{path} is truncated: {len(values)} of {size} bytes")
            if content.read(1):
                raise Refused(f"{path} has data after its {size} bytes")
    except (OSError, EOFError, zlib.error) as error:  # missing, not gzip, truncated, damaged
        raise Refused(f"{path} cannot be read: {error}") from error
    return torch.frombuffer(values, dtype=torch.uint8).reshape(shape)


def enlarged_digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scikit-learn's digits in the shapes of `read`; labels are int64.

    Every pixel becomes nine, with a margin of 2.
    """
    images, labels = digits.read()
    large = F.pad(F.interpolate(images, scale_factor=3), (2,) * 4)[:, 0].mul(255).round().byte()
    train, validation = digits.split(labels, seed)
    return large[train], labels[train], large[validation], labels[validation]


def images(data: str, seed: int) -> tuple[Images, Images]:
    """Return training and validation data. `data`: mnist or digits. Raise `Refused` as `read`."""
    pixels, labels, validation_pixels, validation_labels = (
        read() if data == "mnist" else enlarged_digits(seed)
    )
    return Images(pixels, labels, seed), Images(validation_pixels, validation_labels)


def model() -> nn.Module:
    """Return a model: (batch, 1, 28, 28) -> logits (batch, 10); 421,738 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def build(seed: int, data: str = "mnist") -> Task:
    """Return the task. `data`: mnist or digits.

    Raise `Refused` if the files of MNIST are missing or damaged.
    """
    train, validation = images(data, seed)
    return Task(
        model=model,
        loss=digits.loss,
        correct=digits.correct,
        train=train,
        validation=validation,
        epochs=5,
        batch_size=128,
        lr=4e-3,
        weight_decay=1e-2,
        unit="images",
        channels_last=True,
        on_device=normalize,
        layers=digits.layers,
        tensor_plan=digits.tensor_plan,
        tensor_limit=digits.tensor_limit,
        stages=stages,
        max_stages=4,
    )
