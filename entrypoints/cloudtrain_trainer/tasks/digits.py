"""Handwritten digits, in grey: scikit-learn's of 8 x 8 pixels, and MNIST's of 28 x 28.

digits: 1,797 images that come with scikit-learn (UCI "Optical Recognition of Handwritten Digits",
E. Alpaydin and C. Kaynak, 1998). One in five is for validation (stratified, fixed by the seed). A
small convolutional network with batch norm and dropout trains on them in seconds on a CPU.

mnist: 70,000 images from an input, which has the four files in the idx format, also of other data
such as Fashion-MNIST (LeCun, Cortes, Burges; http://yann.lecun.com/exdb/mnist).
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_trainer.partition import stages
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, Task

CLASSES = 10
NOISE = 0.05
"""Standard deviation of the noise in every pixel (0 to 1) of scikit-learn's digits."""
VALIDATION_SHARE = 5
"""One sample of this many is for validation."""

INPUT = "CLOUDTRAIN_INPUT_MNIST"
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
PIXELS = 28
SHIFT = 2
"""Maximum shift of MNIST's training images, in pixels."""
MAX_IDX_BYTES = 1 << 28
"""The largest file, unpacked. MNIST's largest has 47 MB."""
IDX_UINT8 = 8
"""The format's code for unsigned bytes."""


class Images:
    """Images (batch, 1, height, width) and labels (batch,), int64, from memory.

    With a seed, images are shifted by up to `shift` pixels at random by (seed, epoch, index), and
    have noise of the standard deviation `noise`.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        seed: int | None = None,
        shift: int = 0,
        noise: float = 0.0,
    ) -> None:
        self.images = images
        self.labels = labels.long()
        self.seed = seed
        self.shift = shift
        self.noise = noise
        self._epoch = -1
        self._noise = self._shifts = torch.empty(0)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        images = self.images[draw.indices]
        labels = self.labels[draw.indices]
        return (images if self.seed is None else self._augment(images, draw)), labels

    def _augment(self, images: Tensor, draw: Draw) -> Tensor:
        # Drawn once per epoch for all samples: depends only on the index.
        if draw.epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + draw.epoch)  # type: ignore[operator]
            if self.noise:
                self._noise = self.noise * torch.randn(self.images.shape, generator=generator)

            self._shifts = torch.randint(
                0,
                2 * self.shift + 1,
                (len(self), 2),
                generator=generator,
            )
            self._epoch = draw.epoch

        top, left = self._shifts[draw.indices].unbind(1)
        pixels = torch.arange(images.shape[-1])
        rows = (top[:, None] + pixels)[:, :, None]
        columns = (left[:, None] + pixels)[:, None, :]
        sample = torch.arange(len(images))[:, None, None]
        shifted = F.pad(images, (self.shift,) * 4)[sample, 0, rows, columns][:, None]

        return shifted + self._noise[draw.indices] if self.noise else shifted


MEAN = 0.1307
DEVIATION = 0.3081
"""Mean and standard deviation of the pixels (0 to 1) of MNIST's training images."""


def normalize(images: Tensor) -> Tensor:
    """Return (pixel / 255 - mean) / deviation of uint8 images, in one kernel, as float32.

    Their memory format stays.
    """
    return torch.add(torch.tensor(-MEAN / DEVIATION), images, alpha=1 / (255 * DEVIATION))


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

    images = (
        torch.from_numpy(np.asarray(pixels, dtype=np.float32)).reshape(
            -1,
            1,
            8,
            8,
        )
        / 16
    )

    return images, torch.from_numpy(np.asarray(labels, dtype=np.int64))


def split(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return indices for training (n,) and validation (m,), int64: every fifth of each digit.

    `labels`: of shape (n + m,). `seed`: shuffles before the split.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_digit = order[torch.argsort(labels[order], stable=True)]
    held_out = torch.arange(len(labels)) % VALIDATION_SHARE == 0

    return by_digit[~held_out], by_digit[held_out]


def read_mnist() -> tuple[Tensor, Tensor, Tensor, Tensor]:
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

    `dimensions`: number of dimensions that the shape must have. At most `MAX_IDX_BYTES` are
    unpacked: a small file may unpack to a huge one. Raise `Refused` if it is not such a file.
    """
    try:
        with gzip.open(path, "rb") as content:
            data = bytearray(content.read(MAX_IDX_BYTES))
    except (OSError, EOFError, zlib.error) as error:  # missing, not gzip, truncated, damaged
        raise Refused(f"{path} cannot be read: {error}") from error

    header = 4 + 4 * dimensions
    if data[:4] != bytes((0, 0, IDX_UINT8, dimensions)) or len(data) <= header:
        raise Refused(f"{path} is not an idx file of bytes in {dimensions} dimensions")

    shape = struct.unpack(f">{dimensions}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise Refused(f"{path} has {len(data) - header} bytes, not those of its shape {shape}")

    return torch.frombuffer(data, dtype=torch.uint8, offset=header).reshape(shape)


def enlarged_digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scikit-learn's digits in the shapes of `read_mnist`; labels are int64.

    Every pixel becomes nine, with a margin of 2.
    """
    images, labels = read()
    large = F.pad(F.interpolate(images, scale_factor=3), (2,) * 4)[:, 0].mul(255).round().byte()
    train, validation = split(labels, seed)

    return large[train], labels[train], large[validation], labels[validation]


def mnist_images(data: str, seed: int) -> tuple[Images, Images]:
    """Return training and validation data. `data`: mnist or digits.

    Raise `Refused` as `read_mnist`.
    """
    pixels, labels, validation_pixels, validation_labels = (
        read_mnist() if data == "mnist" else enlarged_digits(seed)
    )
    train = Images(pixels[:, None], labels, seed, shift=SHIFT)
    return train, Images(validation_pixels[:, None], validation_labels)


def network(pixels: int, hidden: int, dropout: float) -> nn.Module:
    """Return a model: (batch, 1, pixels, pixels) -> logits (batch, 10).

    It has about 75,000 parameters for digits, 421,738 for mnist.
    """
    pool = [nn.MaxPool2d(2)] if pixels > 8 else []
    side = pixels // (4 if pool else 2)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        *pool,
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(64 * side * side, hidden),
        nn.ReLU(),
        nn.Linear(hidden, CLASSES),
    )


model = partial(network, 8, 64, 0.1)
"""The model of digits."""


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


def layers(model: nn.Module) -> list[nn.Module]:
    """Return the convolutions and linear layers, in order: large enough to shard one by one."""
    return [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]


def tensor_plan(model: nn.Module) -> dict[str, Any]:
    """Return a plan that splits the features between the two linear layers over the ranks."""
    from torch.distributed.tensor import parallel as styles

    hidden, last = (name for name, module in model.named_modules() if isinstance(module, nn.Linear))
    return {hidden: styles.ColwiseParallel(), last: styles.RowwiseParallel()}


def build_digits(seed: int) -> Task:
    """Return the task digits. `seed`: of the split and the noise.

    ModuleNotFoundError without scikit-learn.
    """
    images, labels = read()
    train, validation = split(labels, seed)
    return _task(
        model=model,
        train=Images(images[train], labels[train], seed, shift=1, noise=NOISE),
        validation=Images(images[validation], labels[validation]),
        epochs=3,
        batch_size=32,
        tensor_limit=64,
    )


def build_mnist(seed: int, data: str = "mnist") -> Task:
    """Return the task mnist. `data`: mnist or digits.

    Raise `Refused` if the files of MNIST are missing or damaged.
    """
    train, validation = mnist_images(data, seed)
    return _task(
        model=partial(network, PIXELS, 128, 0.25),
        train=train,
        validation=validation,
        epochs=5,
        batch_size=128,
        tensor_limit=128,
        on_device=normalize,
    )


def _task(**fields: Any) -> Task:
    return Task(
        loss=loss,
        correct=correct,
        lr=4e-3,
        weight_decay=1e-2,
        workers=0,
        unit="images",
        channels_last=True,
        layers=layers,
        tensor_plan=tensor_plan,
        stages=stages,
        max_stages=4,
        **fields,
    )
