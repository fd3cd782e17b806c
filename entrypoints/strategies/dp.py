"""One process drives all GPUs of this machine: `nn.DataParallel`.

When: hardly ever; on one machine, where torchrun cannot be used. `ddp` is better even there: dp copies the
model to every GPU at each forward pass, gathers all outputs on the first GPU (which so runs out of memory
first), and feeds all of them from one Python interpreter. Memory: one copy per GPU, and all outputs on the
first. Communication: the whole model out and all gradients back, every step. Batch norm keeps the first GPU's
statistics. Without a GPU it calls the model directly.

Source: torch/nn/parallel/data_parallel.py; "Comparison between DataParallel and DistributedDataParallel" in
PyTorch's DDP tutorial.
"""

from __future__ import annotations

from torch import nn

from arguments import Refused
from ranks import Ranks
from strategies import Strategy


class DataParallel(Strategy):
    def wrap(self, model: nn.Module) -> nn.Module:
        return nn.DataParallel(model)


def build(ranks: Ranks) -> Strategy:
    if ranks.size > 1:
        raise Refused(
            f"--strategy dp drives all GPUs from one process, but there are {ranks.size} processes: "
            "use --strategy ddp (it is faster, too), or start one process (--nproc-per-node 1)"
        )
    return DataParallel(ranks)
