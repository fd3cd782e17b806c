"""ResNet-50 v1.5 on a folder of images, or on synthetic ones; no download.

The folder has train/CLASS/*.jpg and val/CLASS/*.jpg, like ImageNet. Images are decoded with Pillow.
"""

from __future__ import annotations

import os
import random
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cloudtrain_trainer.data.pixels import Normalize
from cloudtrain_trainer.models.resnet import bottlenecks, resnet, stages
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, Task, digits

INPUT = "CLOUDTRAIN_INPUT_IMAGES"
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
"""File name extensions of images."""
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Means and standard deviations of ImageNet's pixels (red, green, blue; 0 to 1)."""
LABEL_SMOOTHING = 0.1
FLOPS = 24.30e9
"""FLOPs of an image of 224 x 224 pixels through ResNet-50, forward and backward.

Counted with torch's FlopCounterMode.
"""
MIN_CROP_SIDE = 0.4
CENTER_SIDE = 224 / 256
"""Sides of a random and of a validation crop, as shares of the image's shorter side."""
SYNTHETIC_IMAGES = 64
"""Number of different synthetic images, each with one label."""


class Images:
    """Images (batch, 3, size, size), uint8, and labels (batch,), int64, read on demand.

    With a seed, each is cropped and flipped at random by (seed, epoch, index); without, the center
    is cropped.
    """

    def __init__(self, files: list[tuple[str, int]], size: int, seed: int | None = None) -> None:
        self.files = files
        self.size = size
        self.seed = seed

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        pixels = np.stack([self._pixels(index, draw.epoch) for index in draw.indices])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.tensor(
            [self.files[index][1] for index in draw.indices]
        )

    def _pixels(self, index: int, epoch: int) -> Any:
        """Return one image (size, size, 3), uint8. RuntimeError names a file that is unreadable."""
        path = self.files[index][0]
        image: Any = import_module("PIL.Image")
        try:
            with image.open(path) as file:
                whole = file.convert("RGB")
        except (
            OSError,
            ValueError,
            SyntaxError,
            image.DecompressionBombError,
        ) as error:  # what Pillow may raise
            raise RuntimeError(f"{path} cannot be read as an image: {error}") from error
        rng = None if self.seed is None else random.Random(f"{self.seed} {epoch} {index}")
        width, height = whole.size
        box = crop(width, height, rng)
        cut = whole.resize((self.size, self.size), image.Resampling.BILINEAR, box=box)
        if rng and rng.random() < 0.5:
            cut = cut.transpose(image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(cut)


class Synthetic:
    """A few random images, repeated: (batch, 3, size, size), uint8, and labels (batch,), int64."""

    def __init__(self, count: int, size: int, classes: int, seed: int) -> None:
        self.count = count
        self.classes = classes
        shape = (SYNTHETIC_IMAGES, 3, size, size)
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        image = torch.tensor(draw.indices) % SYNTHETIC_IMAGES
        return self.images[image], image % self.classes


def crop(width: int, height: int, rng: random.Random | None) -> tuple[float, float, float, float]:
    """Return (left, top, right, bottom) of a square, in fractional pixels.

    It is random, or without a generator the center.
    """
    side = min(width, height) * (rng.uniform(MIN_CROP_SIDE, 1) if rng else CENTER_SIDE)
    across = rng.random() if rng else 0.5
    down = rng.random() if rng else 0.5
    left = (width - side) * across
    top = (height - side) * down
    return left, top, left + side, top + side


def read(folder: Path) -> tuple[list[tuple[str, int]], list[tuple[str, int]], int]:
    """Return (path, label) of training and of validation images, sorted, and the number of classes.

    Raise `Refused` if the folder has another layout or no images.
    """
    train = folder / "train"
    validation = folder / "val"
    for part in (train, validation):
        if not part.is_dir():
            raise Refused(
                f"{part} does not exist: the input needs train/CLASS/*.jpg and val/CLASS/*.jpg"
            )
    classes = sorted(path.name for path in train.iterdir() if path.is_dir())
    unknown = sorted({path.name for path in validation.iterdir() if path.is_dir()} - set(classes))
    if unknown:
        raise Refused(f"{validation / unknown[0]} is a class that {train} does not have")
    samples = []
    for part in (train, validation):
        samples.append(
            [
                (str(path), label)
                for label, name in enumerate(classes)
                for path in sorted((part / name).glob("*"))
                if path.suffix.lower() in EXTENSIONS
            ]
        )
        if not samples[-1]:
            raise Refused(f"{part} has no images in class folders ({' '.join(EXTENSIONS)})")
    return samples[0], samples[1], len(classes)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy with label smoothing in float32, shape ().

    `logits`: (batch, classes). `labels`: (batch,), int64.
    """
    return F.cross_entropy(logits.float(), labels, label_smoothing=LABEL_SMOOTHING)


def build(
    seed: int, size: str = "full", image_size: int | None = None, data: str | None = None
) -> Task:
    """Return the task. `size`: full or tiny. `image_size`: in pixels. `data`: images or synthetic.

    Raise `Refused` if the images or Pillow are missing.
    """
    tiny = size == "tiny"
    pixels = image_size or (64 if tiny else 224)

    input_folder = os.environ.get(INPUT)
    train: Images | Synthetic
    validation: Images | Synthetic
    if data == "images" or (data is None and input_folder):
        if not input_folder:
            raise Refused(
                f"--data images needs an input called images (${INPUT}), or use --data synthetic"
            )
        if find_spec("PIL") is None:
            raise Refused(
                "images are decoded with Pillow, which is not installed: pip install pillow"
            )
        files, held_out, classes = read(Path(input_folder))
        train = Images(files, pixels, seed)
        validation = Images(held_out, pixels)
    else:
        classes = 10 if tiny else 1000
        train = Synthetic(512 if tiny else 12_800, pixels, classes, seed)
        validation = Synthetic(SYNTHETIC_IMAGES, pixels, classes, seed)

    return Task(
        model=partial(resnet, (1, 1, 1, 1) if tiny else (3, 4, 6, 3), 8 if tiny else 64, classes),
        loss=loss,
        correct=digits.correct,
        train=train,
        validation=validation,
        epochs=90 if isinstance(train, Images) and not tiny else 2,
        batch_size=32 if tiny else 256,
        lr=4e-3 if tiny else 1e-3,
        weight_decay=5e-2,
        workers=None if isinstance(train, Images) else 0,
        unit="images",
        flops=0.0 if tiny else FLOPS * (pixels / 224) ** 2,
        channels_last=True,
        on_device=Normalize(MEAN, DEVIATION),
        layers=bottlenecks,
        stages=stages,
        max_stages=4 if tiny else 16,
    )
