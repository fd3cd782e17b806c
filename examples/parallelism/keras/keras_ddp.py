"""Keras under DDP: with the torch backend a Keras model is a torch module, so DDP takes it.

Memory, messages and use are those of `ddp`. Three things differ:

- `model(x, training=True)`: Keras takes it as an argument and ignores `model.train()`. Without it
  dropout is off, and the statistics of batch norm never change.
- Those statistics are no buffers of torch, so DDP leaves them alone: `average_statistics`.
- `keras.distribution` and `model.fit` know nothing of torch's ranks.

For real work: DDP as here; on one GPU `model.fit`; for larger models Keras with JAX, or a model of
Transformers.

    torchrun --nproc-per-node 2 keras_ddp.py
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

os.environ["KERAS_BACKEND"] = "torch"  # before the import of keras
import keras

BATCH = 64  # over all ranks
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIGITS = load_digits()
PIXELS = torch.tensor(DIGITS.images, dtype=torch.float32).unsqueeze(-1) / 16
LABELS = torch.tensor(DIGITS.target)


def build() -> keras.Model:
    """Build a model of digits, with the same weights on each rank."""
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Conv2D(16, 3, padding="same", use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return the pictures and labels of a step, the same on each rank."""
    generator = torch.Generator().manual_seed(step)
    chosen = torch.randint(len(LABELS), (BATCH,), generator=generator)
    return PIXELS[chosen], LABELS[chosen]


def average_statistics(model: keras.Model) -> None:
    """Average the statistics of batch norm over the ranks, before an evaluation and at the end."""
    for variable in model.non_trainable_variables:
        if torch.is_floating_point(variable.value):  # not the state of random generators
            dist.all_reduce(variable.value.data)
            variable.value.data /= dist.get_world_size()


def main() -> None:
    """Train, and print the loss of each step on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    rank = dist.get_rank()
    ranks = dist.get_world_size()

    model = build()  # Keras puts it on the rank's GPU
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, options.steps + 1):
        pictures, labels = (part.chunk(ranks)[rank].to(DEVICE) for part in batch(step))
        loss = F.cross_entropy(parallel(pictures, training=True), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item() / ranks:.6f}", flush=True)

    average_statistics(model)
    if rank == 0:
        model.save(Path(os.environ.get("CLOUDTRAIN_MODEL_DIR", ".")) / "model.keras")


if __name__ == "__main__":
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # NCCL between GPUs, gloo between CPUs
    main()
    dist.destroy_process_group()  # after the model, which needs it
