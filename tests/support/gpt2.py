"""GPT-2 and its optimizer step as one would write them by hand: what the shared trainer's step is
counted against.

The same operations as in nanoGPT's training on GPUs without `torch.compile`: query, key and value
in one matrix, layer norm and matrices without biases, GELU, learnt positions, tied embedding;
autocast in bf16, clipping by the norm of all gradients, fused AdamW with decay of matrices only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 768
LAYERS = 12
HEADS = 12
CONTEXT = 1024
VOCABULARY = 50_304


class Layer(nn.Module):
    """Attention and feed-forward part: (batch, sequence, width) -> the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_feed = (
            nn.LayerNorm(WIDTH, bias=False) for _ in range(2)
        )
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).split(WIDTH, -1)
        ]
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).contiguous().flatten(2))
        out: Tensor = x + self.narrow(F.gelu(self.wide(self.before_feed(x))))
        return out


class GPT2(nn.Module):
    """Tokens and next tokens (batch, sequence) -> the mean loss, shape ()."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(layers)))
        self.last = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        at = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.last(self.layers(self.tokens(tokens) + self.positions(at))))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Only matrices decay."""
    matrices, vectors = (
        [p for p in model.parameters() if (p.dim() >= 2) is is_matrix]
        for is_matrix in (True, False)
    )
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=6e-4, fused=True)


def backward(forward: Callable[[Tensor, Tensor], Tensor], tokens: Tensor, targets: Tensor) -> None:
    """Forward pass in bf16, and backward pass. `forward`: (tokens, targets) -> the loss."""
    with torch.autocast("cpu", torch.bfloat16):
        loss = forward(tokens, targets)
    loss.backward()  # type: ignore[no-untyped-call]


def training_step(
    model: nn.Module, forward: Callable[[Tensor, Tensor], Tensor], optimizer: torch.optim.Optimizer
) -> Callable[[Tensor, Tensor], None]:
    """A function (tokens, targets) that does one step of the model."""

    def step(tokens: Tensor, targets: Tensor) -> None:
        backward(forward, tokens, targets)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
