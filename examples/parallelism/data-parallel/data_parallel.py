"""DataParallel: one process copies the model to every GPU of its machine, for each batch anew.

Memory: all weights on each GPU; gradients and optimizer state on the first one, which also
collects the outputs.
Messages: per step a copy of the weights to each GPU, and of its gradients back to the first. One
Python process serves all GPUs, so they wait for it.
Use it when torchrun is not available. Elsewhere `ddp` is faster with two more lines; PyTorch
advises it too.
For real work: DDP, by the trainer of cloudtrain, Lightning or Accelerate.

    python data_parallel.py             # without a GPU it trains the model itself
"""

import argparse
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 64  # over all GPUs
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIGITS = load_digits()
PIXELS = torch.tensor(DIGITS.data, dtype=torch.float32) / 16
LABELS = torch.tensor(DIGITS.target)


def build() -> nn.Module:
    """Build a model of digits."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return the pixels and labels of a step."""
    generator = torch.Generator().manual_seed(step)
    chosen = torch.randint(len(LABELS), (BATCH,), generator=generator)
    return PIXELS[chosen], LABELS[chosen]


def main() -> None:
    """Train, and print the loss of each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()

    model = build().to(DEVICE)
    # Splits its input along the first dimension, one part for each GPU, and joins the outputs.
    parallel = nn.DataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step in range(1, options.steps + 1):
        pixels, labels = batch(step)
        loss = F.cross_entropy(parallel(pixels.to(DEVICE)), labels.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}", flush=True)

    folder = Path(os.environ.get("CLOUDTRAIN_MODEL_DIR", "."))
    torch.save(model.state_dict(), folder / "model.pt")  # without the wrapper


if __name__ == "__main__":
    main()
