"""Context parallelism: each rank holds a part of every sequence, by torchrun or alone.

Activations per rank shrink with the number of ranks. Before the attention the ranks exchange
tokens for heads, so that each attends over all tokens for its share of the heads; afterwards they
exchange back. The result is exact. The number of ranks must divide the heads and the tokens.

Source: Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509.
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives
from torch.nn import functional as F

WIDTH = 64
HEADS = 4
VOCABULARY = 64


class Attention(nn.Module):
    """Causal attention over whole sequences, of which each rank holds a part."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).view(*x.shape[:2], HEADS, -1)
        heads = self.exchange(heads, gather=1, scatter=2)
        query, key, value = heads.transpose(1, 2).chunk(3, dim=-1)
        result = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result = self.exchange(result.transpose(1, 2), gather=2, scatter=1)
        output: Tensor = self.out(result.flatten(2))
        return output

    def exchange(self, x: Tensor, *, gather: int, scatter: int) -> Tensor:
        """Send slice n of dimension `scatter` to rank n; join what arrives in `gather`."""
        if self.ranks == 1:
            return x
        sizes = [1] * self.ranks
        parts = torch.stack(x.chunk(self.ranks, dim=scatter))
        group: Any = dist.group.WORLD
        parts = collectives.all_to_all_single_autograd(parts, sizes, sizes, group)
        return torch.cat(parts.unbind(), dim=gather)


class Block(nn.Module):
    """A layer. Everything but the attention treats each token alone."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = Attention(ranks)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        output: Tensor = x + self.feed(self.norms[1](x))
        return output


def main() -> None:
    """Train a small decoder and print the mean loss over each sequence."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096, help="per sequence")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if gpu else "gloo")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if HEADS % ranks or options.tokens % ranks:
        raise SystemExit(f"{ranks} ranks must divide {HEADS} heads and {options.tokens} tokens")

    torch.manual_seed(0)
    layers = [Block(ranks) for _ in range(2)]
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step in range(1, options.steps + 1):
        generator = torch.Generator().manual_seed(step)
        first = torch.randint(VOCABULARY, (2, 1), generator=generator)
        sequence = (first + 3 * torch.arange(options.tokens + 1)) % VOCABULARY
        inputs, targets = (
            part.chunk(ranks, dim=1)[rank].to(device)
            for part in (sequence[:, :-1], sequence[:, 1:])
        )

        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) / ranks
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        total = loss.detach()
        if ranks > 1:
            dist.all_reduce(total)
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            for gradient in gradients:
                dist.all_reduce(gradient)
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {total.item():.5f}")

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
