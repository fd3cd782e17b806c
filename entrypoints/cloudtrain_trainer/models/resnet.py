"""ResNet with bottlenecks, version 1.5: the stride is in the 3 x 3 convolution.

It is one `nn.Sequential`. Modules have torchvision's names, so that weights can be exchanged with
it.

Sources: He et al., arXiv:1512.03385; Goyal et al., arXiv:1706.02677, section 5.1 (the last batch
norm of a block starts at zero, so that each block starts as the identity); NVIDIA's "ResNet50 v1.5"
(the stride).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cloudtrain_trainer.partition import split

EXPANSION = 4
"""Output channels of a block per channel of its middle convolution."""


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


def bottlenecks(model: nn.Module) -> Sequence[nn.Module]:
    """Return the model's blocks, in order."""
    return [module for module in model.modules() if isinstance(module, Bottleneck)]


def stages(model: nn.Module, count: int) -> Sequence[nn.Module]:
    """Return `count` stages: all blocks cost the same. ValueError if there are fewer blocks."""
    return split(model, count, lambda piece: isinstance(piece, Bottleneck))
