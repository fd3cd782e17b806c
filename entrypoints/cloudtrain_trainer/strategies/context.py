"""Each rank holds a part of every sequence, and attends over all of it for its share of the heads:
context parallelism.

When: sequences so long that the activations of a single one do not fit on a device, however small
the batch. Memory: activations divided by the ranks that share a sequence (`--context-ranks`, or all
of them), with the attention's result once more, as it was exchanged; parameters, gradients and
optimizer state divided by all ranks, as fsdp does. Communication: that of fsdp, and four
all-to-alls per layer: before the attention queries, keys and values are exchanged so that each rank
has all tokens of some heads, after it the result so that each has all heads of its tokens; in the
backward pass the other way round. Each sends (n - 1)/n of what a rank has, so that more ranks send
less each. Every rank does the same work, though the attention is causal, and any kernel for
attention does. There can be at most as many ranks per sequence as there are heads.

torch's own `context_parallel` (ring attention, torch 2.13) has no such limit, but only handles the
kernels of CUDA, and sends keys and values around once per layer for each rank.

Source: Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh

from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.rules import RefusedData
from cloudtrain_trainer.strategies.fsdp import FullyShardedData
from cloudtrain_trainer.trees import map_tensors, sample_count

if TYPE_CHECKING:
    from cloudtrain_trainer.training.step import Step


class ContextParallel(FullyShardedData):
    """FSDP2 over all ranks, of which `parts` consecutive ones share each sequence."""

    oom_hint = "let more ranks share a sequence, or use --recompute blocks, or larger machines"

    def __init__(self, ranks: Ranks, options: Options, parts: int) -> None:
        super().__init__(ranks, options)
        self.parts = parts
        self.number = ranks.rank % parts
        self.data_rank = ranks.rank // parts
        self.data_ranks = ranks.size // parts
        self.reports_metrics = self.number == 0

    @property
    def noise_rank(self) -> int:
        """Every rank has other tokens."""
        return self.ranks.rank

    @property
    def reports_evaluation(self) -> bool:
        """All parts of a sequence are as long, so that the mean over all ranks is that over all
        tokens.
        """
        return True

    def start(self) -> None:
        super().start()
        sizes = self.data_ranks, self.parts
        mesh = init_device_mesh(self.ranks.device.type, sizes, mesh_dim_names=("data", "context"))
        self.group = mesh.get_group("context")

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        assert step.task.context_plan is not None  # noqa: S101  (rules.py has refused the others)
        for before, after in step.task.context_plan(model):
            before.register_forward_hook(lambda _, __, output: self._all_tokens(output))
            after.register_forward_pre_hook(lambda _, inputs: self._all_heads(inputs[0]))
        return super().wrap(model, step)

    def _all_tokens(self, x: Tensor) -> Tensor:
        """(batch, tokens of this rank, features of all heads) -> (batch, all tokens, features of
        this rank's heads).
        """
        received = self._exchange(torch.stack(x.chunk(self.parts, dim=-1)))
        return received.transpose(0, 1).flatten(1, 2)

    def _all_heads(self, x: Tensor) -> Tensor:
        """(batch, all tokens, features of this rank's heads) -> (batch, tokens of this rank,
        features of all heads).
        """
        received = self._exchange(torch.stack(x.chunk(self.parts, dim=1)))
        return received.permute(1, 2, 0, 3).flatten(2)

    def _exchange(self, x: Tensor) -> Tensor:
        """Send slice n of (parts, ...) to rank n of the group; slice n of the result is from that
        rank.
        """
        sizes = [1] * self.parts
        return collectives.all_to_all_single_autograd(x, sizes, sizes, self.group)

    def own_part(self, batch: Any) -> Any:
        return map_tensors(self._own_tokens, batch)

    def _own_tokens(self, tensor: Tensor) -> Tensor:
        """This rank's part of (batch, tokens, ...). Raises `RefusedData` if the ranks cannot share
        it evenly.
        """
        if tensor.ndim < 2 or tensor.shape[1] % self.parts:
            raise RefusedData(
                f"--strategy context shares tokens out over {self.parts} ranks, and a tensor of the"
                f" batch has the shape {tuple(tensor.shape)}, not (batch, tokens, ...) with a"
                f" multiple of {self.parts} tokens: cut it"
            )
        return tensor.chunk(self.parts, dim=1)[self.number]

    def forward_backward(self, step: Step, inputs: Any, targets: Any) -> None:
        """The loss is that of this rank's tokens; the mean over the sequence is what is reported."""
        with step.precision():
            loss = step.wrapped(inputs, targets)
        mean = loss.detach() / self.parts
        dist.all_reduce(mean, group=self.group)
        step.backward(loss, sample_count(targets), reported=mean)


def build(ranks: Ranks, options: Options) -> ContextParallel:
    return ContextParallel(ranks, options, ranks.size)
