"""Model parallelism: one process puts the first layers on one device, and the others on the next.

Memory: each device holds the weights, gradients, optimizer state and activations of its layers.
Messages: the activations of one layer, from device to device, and their gradients back.
Use it when a model exceeds one GPU, and simple matters more than fast: one GPU computes while the
others wait. `pipeline` lets them work at the same time, and `fsdp2` needs no cut.
For real work: `device_map="auto"` of Transformers or Accelerate does this for inference; train
large models with FSDP2 or a pipeline.

    python model_parallel.py
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
CLASSES = 1000
PIXELS = 64  # of a side; 224 in the paper
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride
CUT = 11  # the second device begins with the third stage


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the stride is in the middle one, as in ResNet v1.5."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        self.shortcut = nn.Sequential()
        if before != after:
            self.shortcut.append(nn.Conv2d(before, after, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def build() -> nn.Sequential:
    """Build ResNet-50: 25.6 million parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    model.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for width, blocks, stride in STAGES:
        for number in range(blocks):
            model.append(Bottleneck(before, width, stride if number == 0 else 1))
            before = 4 * width
    return model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES)])


class Split(nn.Module):
    """A sequence of layers on two devices."""

    def __init__(self, model: nn.Sequential, devices: list[str]) -> None:
        super().__init__()
        self.devices = devices
        self.first = model[:CUT].to(devices[0])
        self.second = model[CUT:].to(devices[1])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.to(self.devices[0]))
        return self.second(x.to(self.devices[1]))  # backward sends the gradient to the first


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return pictures of noise and their classes, the same in every fourth step."""
    generator = torch.Generator().manual_seed(step % 4)
    pictures = torch.randn(BATCH, 3, PIXELS, PIXELS, generator=generator)
    return pictures, torch.randint(CLASSES, (BATCH,), generator=generator)


def main() -> None:
    """Train, and print the loss of each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    devices = ["cpu", "cpu"]
    if torch.cuda.device_count() > 1:
        devices = ["cuda:0", "cuda:1"]

    model = Split(build(), devices)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, options.steps + 1):
        pictures, labels = batch(step)
        loss = F.cross_entropy(model(pictures), labels.to(devices[1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
