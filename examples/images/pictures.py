"""Classifies pictures in folders, train/CLASS/*.jpg and val/CLASS/*.jpg, with a small convolutional
network.

The input `pictures` has the folders; Pillow decodes them (in the clone: `pip install -e ".[images]"`).
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from cloudtrain_trainer.tasks import Task

SIZE = 32
"""Pixels of a side."""


class Pictures(Dataset[tuple[Tensor, int]]):
    """One picture per sample, (3, SIZE, SIZE), uint8, and its class, in the order of the folders'
    names.
    """

    def __init__(self, folder: Path, augment: bool = False) -> None:
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((folder / name).iterdir())
        ]
        self.augment = augment

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as file:
            picture = file.convert("RGB").resize((SIZE, SIZE))
        # The trainer seeds this by the sample and the epoch.
        if self.augment and random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1), label


def net(classes: int) -> nn.Module:
    """A network of input shape (batch, 3, SIZE, SIZE) and logits (batch, classes)."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def task() -> Task:
    """The task: its loss and `val_accuracy` are the defaults for classes."""
    folder = Path(os.environ["CLOUDTRAIN_INPUT_PICTURES"])
    train = Pictures(folder / "train", augment=True)
    validation = Pictures(folder / "val")
    return Task(
        model=lambda: net(len(train.classes)),
        train=train,
        validation=validation,
        epochs=10,
        batch_size=64,
        lr=3e-3,
        workers=None,
        unit="pictures",
        channels_last=True,
        on_device=lambda pictures: pictures / 127.5 - 1,  # they travel to the GPU as bytes
    )
