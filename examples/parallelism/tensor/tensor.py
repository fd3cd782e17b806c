"""Tensor parallelism: each rank holds a part of every large matrix, and computes with it.

Memory: 1 / ranks of the matrices, their gradients and optimizer state, and of the activations
between the two matrices of a pair.
Messages: two all-reduces of activations per block and direction, and computation waits for them.
Use it within a machine whose GPUs are linked (NVLink), if a layer or one sample exceeds a device,
or a small batch has to be fast. The number of ranks must divide the heads.
For real work: torchtitan; Transformers by `tp_plan="auto"`; Lightning's ModelParallelStrategy.

    torchrun --nproc-per-node 2 tensor.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAD = 16  # width of an attention head
TOKENS = 32  # per sequence
VOCABULARY = 64
WIDTH = 64


class Block(nn.Module):
    """A layer of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        # On a rank these have its share of the heads: hence -1.
        shape = (*x.shape[:2], -1, HEAD)
        query, key, value = (
            layer(y).view(shape).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def build() -> nn.Sequential:
    """Build a small decoder."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), Block(), Block(), nn.Linear(WIDTH, VOCABULARY)
    )


def split(model: nn.Sequential) -> None:
    """Give each rank its part: columns of a matrix, then rows of the next one, then a sum."""
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    plan = {
        "query": ColwiseParallel(),
        "key": ColwiseParallel(),
        "value": ColwiseParallel(),
        "out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    for block in list(model)[1:-1]:
        parallelize_module(block, mesh, plan)
    parallelize_module(model[-1], mesh, ColwiseParallel(output_layouts=Replicate()))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return 8 sequences of a step and their next tokens, the same on each rank."""
    generator = torch.Generator().manual_seed(step)
    first = torch.randint(VOCABULARY, (8, 1), generator=generator)
    sequences = (first + 3 * torch.arange(TOKENS + 1)) % VOCABULARY
    return sequences[:, :-1], sequences[:, 1:]


def main() -> None:
    """Train, and print the loss of each step on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    model = build().to(DEVICE)
    split(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step in range(1, options.steps + 1):
        tokens, targets = batch(step)
        logits = model(tokens.to(DEVICE))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.to(DEVICE).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:  # each rank has the same loss
            print(f"step {step}: loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # NCCL between GPUs, gloo between CPUs
    main()
    dist.destroy_process_group()  # after the model, which needs it
