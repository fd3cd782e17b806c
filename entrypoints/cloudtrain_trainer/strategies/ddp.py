"""One process per device, each with the whole model and a share of the batch.

Use `DistributedDataParallel` if the model fits on one device, and you have several, on one node or
many. It is the default for several processes. Memory: a full copy of parameters, gradients and
optimizer state on each rank; the gradients are views of the communication buckets
(`gradient_as_bucket_view`), which saves another copy. Communication: one all-reduce of the
gradients per step (2 x their size per rank, in a ring), in buckets that are sent during the
backward pass; none while gradients are accumulated.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
2020; torch/nn/parallel/distributed.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cloudtrain_trainer import hardware
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.strategies import Step, Strategy


class DistributedData(Strategy):
    """DDP around the model and its loss."""

    replicated: Callable[..., nn.Module] = DistributedDataParallel

    def start(self) -> None:
        self.ranks.init_process_group(self.options.backend)

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        model, with_loss = super().wrap(model, step)
        devices = [self.ranks.local_rank] if self.ranks.device.type == "cuda" else None
        return model, self.replicated(with_loss, device_ids=devices, gradient_as_bucket_view=True)

    def forward_backward(self, step: Step, inputs: Any, targets: Any) -> None:
        """Raise `Refused` with the names of parameters without gradients.

        The last step did not use them.
        """
        try:
            super().forward_backward(step, inputs, targets)
        except RuntimeError as error:
            indices = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
            if indices is None:
                raise

            names = [
                name for name, parameter in step.model.named_parameters() if parameter.requires_grad
            ]
            unused = ", ".join(names[int(index)] for index in indices[1].split()[:5])
            raise Refused(
                "the loss does not depend on these parameters, so ranks would wait for their"
                f" gradients: {unused}. Freeze them (requires_grad_(False)), or use --strategy fsdp"
            ) from None

    def forward_backward_alone(self, step: Step, inputs: Any, targets: Any) -> None:
        """Run it without the DDP wrapper and without the compiler.

        The wrapper would wait for the peers. A graph compiled outside of the wrapper would be
        reused inside, where torch splits graphs at DDP's buckets so that gradients are sent while
        others are computed.
        """
        with hardware.run_eagerly():
            self._run(step, step.wrapped.module, inputs, targets)  # type: ignore[arg-type]

    def accumulation_context(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = wrapped.no_sync()  # type: ignore[operator]
        return context

    def average_statistics(self, statistics: Sequence[Tensor]) -> None:
        for tensor in statistics:
            dist.all_reduce(tensor.detach())
            tensor.detach().div_(self.data_ranks)


def build(ranks: Ranks, options: Options) -> Strategy:
    return DistributedData(ranks, options)
