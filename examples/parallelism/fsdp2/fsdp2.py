"""FSDP2: each rank holds a slice of every weight, and gathers a layer just before its computation.

Memory: 1 / ranks of weights, gradients and optimizer state, and one or two whole layers.
Messages: per step all weights are gathered twice, and gradients are reduced and scattered: half
more than DDP, while other layers compute.
Use it when weights, gradients and optimizer state exceed one device, and the network is fast.
For real work: torchtitan for language models; Accelerate, Lightning or Transformers otherwise.

Checkpoints are written by all ranks, each its slices, and read by any other number of ranks.

    torchrun --nproc-per-node 4 fsdp2.py --steps 20
    torchrun --nproc-per-node 2 fsdp2.py --steps 40     # continues at step 21
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

BATCH = 64  # over all ranks
CHECKPOINTS = Path(os.environ.get("CLOUDTRAIN_CHECKPOINT_DIR", "checkpoints"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIGITS = load_digits()
PIXELS = torch.tensor(DIGITS.data, dtype=torch.float32) / 16
LABELS = torch.tensor(DIGITS.target)


def build() -> nn.Sequential:
    """Build a model of digits: layers of which none is large."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return the pixels and labels of a step, the same on each rank."""
    generator = torch.Generator().manual_seed(step)
    chosen = torch.randint(len(LABELS), (BATCH,), generator=generator)
    return PIXELS[chosen], LABELS[chosen]


def save(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Write a checkpoint. Its `.metadata` comes last: without it the checkpoint does not count."""
    weights, slots = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": slots}, checkpoint_id=CHECKPOINTS / f"step-{step:06}")


def load(model: nn.Module, optimizer: Optimizer) -> int:
    """Read the newest complete checkpoint, and return its step: 0 if there is none."""
    complete = sorted(CHECKPOINTS.glob("step-*/.metadata"))
    if not complete:
        return 0
    folder = complete[-1].parent
    weights, slots = get_state_dict(model, optimizer)  # says which slices this rank needs
    dcp.load({"model": weights, "optimizer": slots}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=slots)
    return int(folder.name.removeprefix("step-"))


def main() -> None:
    """Train from the newest checkpoint on, and print the loss of each step on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10)
    options = parser.parse_args()
    rank = dist.get_rank()
    ranks = dist.get_world_size()

    model = build().to(DEVICE)
    for layer in model:
        fully_shard(layer)  # gathered and freed as one
    fully_shard(model)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    first = load(model, optimizer) + 1

    for step in range(first, options.steps + 1):
        pixels, labels = (part.chunk(ranks)[rank].to(DEVICE) for part in batch(step))
        loss = F.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item() / ranks:.6f}", flush=True)
        if step % options.save_every == 0 or step == options.steps:
            save(model, optimizer, step)


if __name__ == "__main__":
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # NCCL between GPUs, gloo between CPUs
    main()
    dist.destroy_process_group()  # after the model, which needs it
