"""Pipeline parallelism: each rank holds some of the layers, and hands its activations to the next.

Memory: 1 / ranks of weights, gradients and optimizer state; activations of as many micro-batches
as there are stages.
Messages: the activations of one layer forward and their gradients back, per micro-batch and
boundary. Small, so a slow network between nodes will do.
Use it when the model exceeds a machine. Ranks are idle for (ranks - 1) / (micro-batches + ranks
- 1) of a step, so use many micro-batches; stages should take the same time.
For real work: torchtitan, which also has schedules with shorter pauses.

    torchrun --nproc-per-node 2 pipeline.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F

BATCH = 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIGITS = load_digits()
PIXELS = torch.tensor(DIGITS.data, dtype=torch.float32) / 16
LABELS = torch.tensor(DIGITS.target)


def build() -> nn.Sequential:
    """Build a model of digits, as a sequence that can be cut between its layers."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return the pixels and labels of a step, the same on each rank."""
    generator = torch.Generator().manual_seed(step)
    chosen = torch.randint(len(LABELS), (BATCH,), generator=generator)
    return PIXELS[chosen], LABELS[chosen]


def main() -> None:
    """Train, and print the loss of each step on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--micro-batches", type=int, default=4, help="at least the number of ranks")
    options = parser.parse_args()
    rank = dist.get_rank()
    ranks = dist.get_world_size()

    model = build()
    size = -(-len(model) // ranks)  # layers of a stage, rounded up
    part = model[rank * size : (rank + 1) * size].to(DEVICE)
    stage = PipelineStage(part, rank, ranks, torch.device(DEVICE))
    # One forward, one backward: activations are freed as early as possible.
    schedule = Schedule1F1B(stage, options.micro_batches, loss_fn=F.cross_entropy)
    optimizer = torch.optim.AdamW(part.parameters(), lr=3e-3)

    for step in range(1, options.steps + 1):
        pixels, labels = batch(step)
        inputs = [pixels.to(DEVICE)] if stage.is_first else []
        losses: list[Tensor] = []  # of the micro-batches, on the last rank
        optimizer.zero_grad()
        schedule.step(*inputs, target=labels.to(DEVICE), losses=losses)
        optimizer.step()

        loss = torch.zeros((), device=DEVICE)
        if stage.is_last:
            loss = torch.stack(losses).mean().detach()
        dist.broadcast(loss, src=ranks - 1)
        if rank == 0:
            print(f"step {step}: loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # NCCL between GPUs, gloo between CPUs
    main()
    dist.destroy_process_group()  # after the model, which needs it
