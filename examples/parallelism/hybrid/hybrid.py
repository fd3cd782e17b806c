"""FSDP2 around tensor parallelism: matrices are split within a machine, and slices of their parts
are spread over machines.

Memory: 1 / ranks of weights, gradients and optimizer state, and a rank's part of one or two layers.
Messages: as `tensor` within a group, where the network is fast; as `fsdp2` between groups, with
weights that are smaller by the size of a group.
Use it from some dozens of GPUs on: FSDP2 alone would have a tiny batch per rank, or wait for the
network between nodes.
For real work: torchtitan, with pipeline and context parallelism as further dimensions.

    torchrun --nproc-per-node 4 hybrid.py --tensor 2
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

BATCH = 64  # over all ranks
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIGITS = load_digits()
PIXELS = torch.tensor(DIGITS.data, dtype=torch.float32) / 16
LABELS = torch.tensor(DIGITS.target)


class Block(nn.Module):
    """The feed-forward part of a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def build() -> nn.Sequential:
    """Build a model of digits."""
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(64, 10))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return the pixels and labels of a step, the same on each rank."""
    generator = torch.Generator().manual_seed(step)
    chosen = torch.randint(len(LABELS), (BATCH,), generator=generator)
    return PIXELS[chosen], LABELS[chosen]


def main() -> None:
    """Train, and print the loss of each step on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tensor", type=int, default=2, help="ranks that split a matrix")
    options = parser.parse_args()

    # Ranks 0 and 1 are neighbours in the last dimension: torchrun puts them on one machine.
    shape = (dist.get_world_size() // options.tensor, options.tensor)
    mesh = init_device_mesh(DEVICE, shape, mesh_dim_names=("data", "tensor"))
    model = build().to(DEVICE)
    for block in list(model)[:-1]:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tensor"], plan)  # first the matrices,
        fully_shard(block, mesh=mesh["data"])  # then slices of their parts
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    replicas = mesh["data"].size()
    replica = mesh["data"].get_local_rank()
    for step in range(1, options.steps + 1):
        # Ranks of a tensor group have the same samples.
        pixels, labels = (part.chunk(replicas)[replica].to(DEVICE) for part in batch(step))
        loss = F.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        total = loss.detach()
        dist.all_reduce(total, group=mesh["data"].get_group())
        if dist.get_rank() == 0:
            print(f"step {step}: loss {total.item() / replicas:.6f}", flush=True)


if __name__ == "__main__":
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # NCCL between GPUs, gloo between CPUs
    main()
    dist.destroy_process_group()  # after the model, which needs it
