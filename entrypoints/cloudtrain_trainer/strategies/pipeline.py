"""Pipeline parallelism: ranks hold consecutive layers, and micro-batches pass through them.

When: the model does not fit and the ranks are connected by a slow network: only activations at the
borders of stages are sent. Memory: parameters, gradients and optimizer state divided by the number
of stages; activations of all micro-batches with `--schedule gpipe`, with `1f1b` at most one per
stage. Communication: per micro-batch one tensor to the next stage and one gradient back. Idle time:
(stages - 1) / (stages - 1 + micro-batches), so use many micro-batches; accumulation
(`--accumulate`) multiplies them. Batch norm sees one micro-batch at a time. `hybrid --stages N`
makes several pipelines of N stages, with one DDP per stage around them.

Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019, and
"Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021 (1F1B);
torch/distributed/pipelining.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from cloudtrain_trainer import rules, state
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import AutocastModule, Step, Strategy

SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Pipeline(Strategy):
    """Consecutive ranks are the stages of one pipeline; several pipelines share the batch."""

    communicates_in_forward = True
    replicated: Callable[..., nn.Module] = DistributedDataParallel

    def __init__(self, ranks: Ranks, options: Options, stages: int) -> None:
        super().__init__(ranks, options)
        self.stages = stages
        self.stage = ranks.rank % stages
        self.data_rank = ranks.rank // stages
        self.data_ranks = ranks.size // stages
        self.reports_metrics = self.stage == stages - 1
        self.shard_group_size = stages
        self.is_warm = False
        """True if torch knows the shapes of messages between stages."""
        self.n_microbatches = rules.microbatches_per_step(
            options.microbatches, options.accumulate, stages
        )

    def start(self) -> None:
        self.ranks.init_process_group(self.options.backend)
        sizes = self.data_ranks, self.stages
        self.mesh = init_device_mesh(
            self.ranks.device.type, sizes, mesh_dim_names=("data", "pipeline")
        )

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        assert step.task.stages is not None  # noqa: S101  (rules.py has refused the others)
        part = step.task.stages(model, self.stages)[self.stage]
        part.to(step.device)
        wrapped: nn.Module = AutocastModule(part, step)
        if self.data_ranks > 1 and any(p.requires_grad for p in part.parameters()):
            wrapped = self.replicated(wrapped, process_group=self.mesh.get_group("data"))

        stage = PipelineStage(
            wrapped,
            self.stage,
            self.stages,
            self.ranks.device,
            group=self.mesh.get_group("pipeline"),
        )

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            """Return the weighted loss of one micro-batch, shape ().

            The metrics are updated elsewhere: torch calls this once more to learn its shape.
            """
            share = step.share_of(targets)
            with step.precision():
                part = step.task.loss(outputs, targets) * share

            # Without weight the mean is NaN, and its gradients are 0.
            return torch.where(share > 0, part, 0.0) if isinstance(share, Tensor) else part

        # The weights of the micro-batches add up to one, so torch must not scale the gradients.
        self.schedule = SCHEDULES[self.options.schedule](
            stage, self.n_microbatches, loss_fn=loss, scale_grads=False
        )

        return part, wrapped

    def forward_backward(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        if not self.is_warm:
            self._warm_up(step, inputs, targets)
        losses = self._pass(inputs, targets)
        if self.reports_metrics:
            step.add_loss(torch.stack(losses).sum() / step.share_of(targets))

    def _warm_up(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        """Run one pass without lasting effects, so that torch learns the shapes.

        torch runs each stage on uninitialised memory in training mode: batch norm's statistics
        would keep those values, and dropout would draw random numbers.
        """
        statistics = step.task.statistics(step.model)
        buffers = state.buffers(step.model, statistics)
        generators = state.generator_states(self.devices)
        self._pass(inputs, targets)
        step.optimizer.zero_grad(set_to_none=True)
        state.restore_buffers(step.model, buffers, statistics)
        state.restore_generators(generators, self.devices)
        self.is_warm = True

    def _pass(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Run all micro-batches forward and backward; return the losses on the last stage."""
        losses: list[Tensor] = []
        if self.reports_metrics:
            self.schedule.step(target=targets, losses=losses)
        else:
            self.schedule.step(*((inputs,) if self.stage == 0 else ()))

        return losses

    def outputs(self, step: Step, inputs: Tensor) -> Tensor | None:
        """Pass a batch through the stages, which work on several batches at a time.

        torch's schedules take micro-batches of one size only; those of an evaluation differ.
        """
        rank = self.ranks.rank
        device = self.ranks.device

        if self.stage > 0:
            description: list[Any] = [None, None]
            dist.recv_object_list(description, rank - 1, device=device)
            shape, dtype = description
            inputs = torch.empty(shape, dtype=dtype, device=device)
            dist.recv(inputs, rank - 1)

        with step.precision():
            outputs: Tensor = step.model(inputs)
        if self.reports_metrics:
            return outputs

        dist.send_object_list([outputs.shape, outputs.dtype], rank + 1, device=device)
        dist.send(outputs.contiguous(), rank + 1)

        return None

    def sync_buffers(self, model: nn.Module) -> None:
        """Give all pipelines the buffers of the first."""
        for buffer in model.buffers():
            dist.broadcast(buffer, src=self.stage, group=self.mesh.get_group("data"))

    def total_norm(self, norm: Tensor) -> Tensor:
        total = norm.square()
        dist.all_reduce(total, group=self.mesh.get_group("pipeline"))
        return total.sqrt()

    def full_state_dict(
        self, model: nn.Module, left_out: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Send the stages of the first pipeline to rank 0 through host memory.

        The dict is empty on other ranks.
        """
        group = self._gloo_group
        mine = model.state_dict() if self.data_rank == 0 else {}
        mine = {name: value for name, value in mine.items() if name not in left_out}
        shapes = self.ranks.all_gather(
            {name: (value.shape, value.dtype) for name, value in mine.items()}
        )

        if self.ranks.rank != 0:
            for value in mine.values():
                dist.send(value.cpu().contiguous(), 0, group=group)
            return {}

        weights = {name: value.cpu() for name, value in mine.items()}

        for rank in range(1, self.stages):
            for name, (shape, dtype) in shapes[rank].items():
                weights[name] = torch.empty(shape, dtype=dtype)
                dist.recv(weights[name], rank, group=group)

        return weights

    @cached_property
    def _gloo_group(self) -> Any:
        """Return a gloo group of all ranks, for tensors in host memory, created by all together."""
        return self.ranks.new_gloo_group([list(range(self.ranks.size))])


def build(ranks: Ranks, options: Options) -> Strategy:
    return Pipeline(ranks, options, options.stages or ranks.size)
