"""A language model of your own on files of tokens, the input `tokens`.

Its samples are pairs (tokens, next tokens), so that the default loss, the cross-entropy over
tokens, fits.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from cloudtrain_trainer.tasks import Task

CONTEXT = 64
VOCABULARY = int(os.environ.get("VOCABULARY", "50304"))
"""Tokens per sequence; all tokens are less than the second."""


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Sequences of a file of uint16 tokens, as nanoGPT writes it, each with its next tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tokens = np.memmap(path, dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens = self._tokens[index * CONTEXT : (index + 1) * CONTEXT + 1].astype(np.int64)
        return torch.from_numpy(tokens[:-1]), torch.from_numpy(tokens[1:])


class SmallGpt(nn.Module):
    """A decoder: tokens (batch, CONTEXT), int64 -> logits (batch, CONTEXT, VOCABULARY)."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of each next token."""
        length = tokens.shape[1]
        values = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        for block in self.blocks:
            values = block(values, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(self.norm(values))
        return logits


def task() -> Task:
    """The task; the last tenth of all sequences is for validation."""
    paths = sorted(Path(os.environ["CLOUDTRAIN_INPUT_TOKENS"]).glob("*.bin"))
    sequences: ConcatDataset[tuple[Tensor, Tensor]] = ConcatDataset(
        [Tokens(path) for path in paths]
    )
    first = len(sequences) * 9 // 10
    return Task(
        model=SmallGpt,
        train=Subset(sequences, range(first)),
        validation=Subset(sequences, range(first, len(sequences))),
        batch_size=32,
        lr=3e-3,
        unit="sequences",
        tokens=CONTEXT,
    )
