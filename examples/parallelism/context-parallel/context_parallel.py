"""Context parallelism: each rank holds a part of every sequence.

Memory: all weights on each rank; activations of tokens / ranks.
Messages: two exchanges of activations per layer and direction. Before the attention ranks trade
tokens for heads, so that each has all tokens of its share of the heads; afterwards they trade back.
One all-reduce of the gradients per step.
Use it when one sequence exceeds a device, after recomputing activations. The result is exact; the
number of ranks must divide heads and tokens. With large models, use FSDP2 for the weights.
For real work: torchtitan, or `ulysses` of DeepSpeed with Transformers.

Source: Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509.

    torchrun --nproc-per-node 2 context_parallel.py
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS = 4
VOCABULARY = 64
WIDTH = 64


def exchange(x: Tensor, *, gather: int, scatter: int) -> Tensor:
    """Send slice n of dimension `scatter` to rank n; join what arrives in `gather`."""
    if not dist.is_initialized():
        return x
    group: Any = dist.group.WORLD
    sizes = [1] * group.size()
    parts = torch.stack(x.chunk(group.size(), dim=scatter))
    parts = all_to_all_single_autograd(parts, sizes, sizes, group)
    return torch.cat(parts.unbind(), dim=gather)


class Block(nn.Module):
    """A layer of a decoder. Everything but its attention treats each token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.heads = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.heads(self.norms[0](x)).view(*x.shape[:2], HEADS, -1)
        heads = exchange(heads, gather=1, scatter=2)  # now all tokens
        query, key, value = heads.transpose(1, 2).chunk(3, dim=-1)
        result = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result = exchange(result.transpose(1, 2), gather=2, scatter=1)  # now all heads
        x = x + self.out(result.flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def build() -> nn.Sequential:
    """Build a small decoder, with the same weights on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), Block(), Block(), nn.Linear(WIDTH, VOCABULARY)
    )


def batch(step: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Return two whole sequences of a step and their next tokens, the same on each rank."""
    generator = torch.Generator().manual_seed(step)
    first = torch.randint(VOCABULARY, (2, 1), generator=generator)
    sequences = (first + 3 * torch.arange(tokens + 1)) % VOCABULARY
    return sequences[:, :-1], sequences[:, 1:]


def main() -> None:
    """Train, and print the loss of each step on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096, help="per sequence")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    rank = dist.get_rank()
    ranks = dist.get_world_size()
    if HEADS % ranks or options.tokens % ranks:
        raise SystemExit(f"{ranks} ranks must divide {HEADS} heads and {options.tokens} tokens")

    model = build().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, options.steps + 1):
        tokens, targets = (
            part.chunk(ranks, dim=1)[rank].to(DEVICE) for part in batch(step, options.tokens)
        )
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()) / ranks
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():  # DDP would send them during the backward pass
            dist.all_reduce(parameter.grad)
        optimizer.step()

        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item():.6f}", flush=True)


if __name__ == "__main__":
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # NCCL between GPUs, gloo between CPUs
    main()
    dist.destroy_process_group()  # after the model, which needs it
