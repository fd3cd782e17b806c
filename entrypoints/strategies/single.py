"""One process, one device: the plain loop.

When: the model and its batch fit on one device, or you are debugging. Memory: one copy of everything
(parameters, gradients, and two more copies for AdamW). Communication: none.
"""

from __future__ import annotations

from arguments import Refused
from ranks import Ranks
from strategies import Strategy


def build(ranks: Ranks) -> Strategy:
    if ranks.size > 1:
        raise Refused(
            f"--strategy single trains in one process; there are {ranks.size} and each would train alone: "
            "use --strategy ddp, or start one process (--nproc-per-node 1)"
        )
    return Strategy(ranks)
