"""MNIST: 70,000 handwritten digits of 28 x 28 pixels, from an input or downloaded.

An input has the four files, and may hold other data in the same format, such as Fashion-MNIST.
Source: LeCun, Cortes, Burges.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_trainer.data.dataset_files import cache_folder, fetch, read_idx
from cloudtrain_trainer.data.pixels import Normalize
from cloudtrain_trainer.models.partition import stages
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, Task, digits

INPUT = "CLOUDTRAIN_INPUT_MNIST"
ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
"""The mirror that torchvision uses."""
FILES = {
    "train-images-idx3-ubyte.gz": (
        9_912_422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels-idx1-ubyte.gz": (
        28_881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-images-idx3-ubyte.gz": (
        1_648_877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        4_542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}
"""File name -> size in bytes and SHA-256."""
PIXELS = 28
CLASSES = 10
MEAN = 0.1307
DEVIATION = 0.3081
"""Mean and standard deviation of the training images' pixels (0 to 1)."""
normalize = Normalize([MEAN], [DEVIATION])
SHIFT = 2
"""Maximum shift of training images, in pixels."""


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

    Raise `Refused` if a file is missing, cannot be downloaded, or has another format.
    """
    input_folder = os.environ.get(INPUT)
    if input_folder:
        paths = [Path(input_folder, name) for name in FILES]
    else:
        hint = (
            f"give the job an input called mnist with its four files (${INPUT}), or use --data"
            " digits"
        )
        folder = cache_folder("mnist")
        paths = [fetch(ADDRESS + name, folder, *checks, hint) for name, checks in FILES.items()]
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
