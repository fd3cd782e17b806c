"""ResNet-50 v1.5 on random images, for measurements, or on the data of `--data module:factory`.

examples/images reads folders of classes, like ImageNet's. The model has bottlenecks whose stride is
in the 3 x 3 convolution. It is one `nn.Sequential`. Modules have torchvision's names, so that
weights can be exchanged with it.

Sources: He et al., arXiv:1512.03385; Goyal et al., arXiv:1706.02677, section 5.1 (the last batch
norm of a block starts at zero, so that each block starts as the identity); NVIDIA's "ResNet50 v1.5"
(the stride).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cloudtrain_trainer.partition import split
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, Task, digits

INPUT = "CLOUDTRAIN_INPUT_IMAGES"
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Means and standard deviations of ImageNet's pixels (red, green, blue; 0 to 1)."""
LABEL_SMOOTHING = 0.1
FLOPS = 24.30e9
"""FLOPs of an image of 224 x 224 pixels through ResNet-50, forward and backward.

Counted with torch's FlopCounterMode.
"""
SYNTHETIC_IMAGES = 64
"""Number of different synthetic images, each with one label."""


EXPANSION = 4
"""Output channels of a block per channel of its middle convolution."""


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


class Bottleneck(nn.Module):
    """(batch, inside, height, width) -> (batch, 4 * `width`, height / stride, width / stride).

    `inside`: input channels. `width`: channels of the middle convolution.
    """

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = width * EXPANSION
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outside, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outside)
        self.downsample = (
            nn.Identity()
            if stride == 1 and inside == outside
            else nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def resnet(blocks: Sequence[int], width: int, classes: int) -> nn.Sequential:
    """Return a model: images (batch, 3, height, width) -> logits (batch, classes).

    `blocks`: number in each group; each group halves height and width. ResNet-50 has (3, 4, 6, 3)
    blocks of width 64: 25,557,032 parameters with 1,000 classes.
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, width, 7, 2, 3, bias=False),
        bn1=nn.BatchNorm2d(width),
        relu=nn.ReLU(),
        maxpool=nn.MaxPool2d(3, 2, 1),
    )
    inside = width

    for group, count in enumerate(blocks):
        group_width = width << group
        layer = []
        for index in range(count):
            layer.append(Bottleneck(inside, group_width, 2 if group and index == 0 else 1))
            inside = group_width * EXPANSION

        parts[f"layer{group + 1}"] = nn.Sequential(*layer)

    parts.update(
        avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(inside, classes)
    )
    model = nn.Sequential(parts)

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)

    return model


def stages(model: nn.Module, count: int) -> Sequence[nn.Module]:
    """Return `count` stages: all blocks cost the same. ValueError if there are fewer blocks."""
    return split(model, count, lambda piece: isinstance(piece, Bottleneck))


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy with label smoothing in float32, shape ().

    `logits`: (batch, classes). `labels`: (batch,), int64.
    """
    return F.cross_entropy(logits.float(), labels, label_smoothing=LABEL_SMOOTHING)


def build(seed: int, size: str = "full") -> Task:
    """Return the task. `size`: full or tiny, which is the same code, for a CPU.

    Raise `Refused` if the job has images, which this task would not read.
    """
    if os.environ.get(INPUT):
        raise Refused(
            "--task resnet50 does not read the input images: name a function that does by --data"
            " module:factory, as in examples/images"
        )

    tiny = size == "tiny"
    pixels = 64 if tiny else 224
    classes = 10 if tiny else 1000

    return Task(
        model=partial(
            resnet,
            (1, 1, 1, 1) if tiny else (3, 4, 6, 3),
            8 if tiny else 64,
            classes,
        ),
        loss=loss,
        correct=digits.correct,
        train=Synthetic(512 if tiny else 12_800, pixels, classes, seed),
        validation=Synthetic(SYNTHETIC_IMAGES, pixels, classes, seed),
        epochs=2,
        batch_size=32 if tiny else 256,
        lr=4e-3 if tiny else 1e-3,
        weight_decay=5e-2,
        unit="images",
        flops=0.0 if tiny else FLOPS,
        channels_last=True,
        on_device=digits.Normalize(MEAN, DEVIATION),
        stages=stages,
        max_stages=4 if tiny else 16,
    )
