"""A language model of your own on files of tokens, the input `tokens`
(cloudtrain_trainer/data/token_files.py).

Its samples are pairs (tokens, next tokens), so that the default loss, the cross-entropy over
tokens, fits.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from cloudtrain_trainer.data.token_files import token_data
from cloudtrain_trainer.tasks import Task

CONTEXT = 64
VOCABULARY = int(os.environ.get("VOCABULARY", "50304"))
"""Tokens per sequence; all tokens are less than the second."""


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


def task(seed: int) -> Task:
    """The task. `seed`: of where the sequences of an epoch begin."""
    train, validation = token_data(
        os.environ["CLOUDTRAIN_INPUT_TOKENS"], CONTEXT, seed=seed, vocabulary=VOCABULARY
    )
    return Task(
        model=SmallGpt,
        train=train,
        validation=validation,
        batch_size=32,
        lr=3e-3,
        unit="sequences",
        tokens=CONTEXT,
    )
