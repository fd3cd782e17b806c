"""DDP: each rank has the whole model and its own part of every batch; gradients are averaged.

Memory: all weights, gradients and optimizer state on each rank; activations of batch / ranks.
Messages: one all-reduce of the gradients per step, in buckets, while the backward pass goes on.
Use it when model and optimizer fit on one device: nothing is faster then, on several nodes too.
For real work: the trainer of cloudtrain, Lightning or Accelerate.

    torchrun --nproc-per-node 2 ddp.py
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 64  # over all ranks
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def build() -> nn.Module:
    """Build a model of digits. DDP sends the weights of rank 0 to the other ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def digits() -> TensorDataset:
    """Return handwritten digits, each with 64 pixels and a label."""
    data = load_digits()
    pixels = torch.tensor(data.data, dtype=torch.float32) / 16
    return TensorDataset(pixels, torch.tensor(data.target))


def main() -> None:
    """Train, and print the mean loss of each epoch on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    data = digits()
    # Gives this rank the samples rank, rank + ranks, …
    sampler: DistributedSampler[object] = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, BATCH // dist.get_world_size(), sampler=sampler, drop_last=True)
    model = build().to(DEVICE)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)  # without it each epoch has the same order
        total = torch.zeros((), device=DEVICE)
        for pixels, labels in loader:
            loss = F.cross_entropy(parallel(pixels.to(DEVICE)), labels.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients over the ranks
            optimizer.step()
            total += loss.detach()

        dist.all_reduce(total)
        mean = total.item() / len(loader) / dist.get_world_size()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {mean:.6f}", flush=True)

    if dist.get_rank() == 0:  # all ranks have the same weights
        folder = Path(os.environ.get("CLOUDTRAIN_MODEL_DIR", "."))
        torch.save(model.state_dict(), folder / "model.pt")


if __name__ == "__main__":
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # NCCL between GPUs, gloo between CPUs
    main()
    dist.destroy_process_group()  # after the model, which needs it
