"""One process, one device: the plain loop.

When: the model and its batch fit on one device, or you are debugging. Memory: one copy of
everything (parameters, gradients, and two more copies for AdamW). Communication: none.
"""

from __future__ import annotations

from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import Strategy


def build(ranks: Ranks, options: Options) -> Strategy:
    return Strategy(ranks, options)
