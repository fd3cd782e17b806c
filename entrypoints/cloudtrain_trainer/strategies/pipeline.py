"""Each rank holds some consecutive layers, and micro-batches pass through the ranks: pipeline parallelism.

When: the model does not fit and the ranks are connected by a slow network: only activations at the borders of stages
are sent. Memory: parameters, gradients and optimizer state divided by the number of stages; activations of all
micro-batches with `--schedule gpipe`, of at most as many as there are stages with `1f1b`. Communication: per
micro-batch one tensor to the next stage and one gradient back. Idle time: (stages - 1) / (stages - 1 + micro-batches),
so use many micro-batches; accumulation (`--accumulate`) multiplies them. Batch norm sees one micro-batch at a time.

Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019, and "Efficient Large-Scale
Language Model Training on GPU Clusters", SC 2021 (1F1B); torch/distributed/pipelining.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from cloudtrain_trainer import rules, state
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import AutocastModule, Strategy

if TYPE_CHECKING:
    from cloudtrain_trainer.step import Step

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Pipeline(Strategy):
    """Consecutive ranks are the stages of one pipeline; several pipelines (hybrid) share the batch as ddp does."""

    communicates_in_forward = True

    def __init__(self, ranks: Ranks, options: Options, stages: int) -> None:
        super().__init__(ranks, options)
        self.stages, self.stage = stages, ranks.rank % stages
        self.data_rank, self.data_ranks = ranks.rank // stages, ranks.size // stages
        self.reports_metrics = self.stage == stages - 1
        self.shard_group_size = stages
        self._is_warm = False
        self.n_microbatches = rules.microbatches_per_step(options.microbatches, options.accumulate, stages)

    def start(self) -> None:
        self.ranks.init_process_group(self.options.backend)
        sizes = self.data_ranks, self.stages
        self.mesh = init_device_mesh(self.ranks.device.type, sizes, mesh_dim_names=("data", "pipeline"))

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        assert step.task.stages is not None  # noqa: S101  (rules.py has refused the others)
        part = step.task.stages(model, self.stages)[self.stage].to(self.ranks.device)
        wrapped: nn.Module = AutocastModule(part, step)
        if self.data_ranks > 1 and any(p.requires_grad for p in part.parameters()):
            wrapped = DistributedDataParallel(wrapped, process_group=self.mesh.get_group("data"))
        group = self.mesh.get_group("pipeline")
        stage = PipelineStage(wrapped, self.stage, self.stages, self.ranks.device, group=group)

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            """Of one micro-batch, shape (). Not added to the metrics here: torch calls it once more for its shape."""
            with step.precision():
                return step.task.loss(outputs, targets) * step.loss_weight(len(targets))

        # The weights of the micro-batches add up to one, so torch must not scale the gradients.
        schedule = SCHEDULES[self.options.schedule]
        self.schedule = schedule(stage, n_microbatches=self.n_microbatches, loss_fn=loss, scale_grads=False)
        return part, wrapped

    def forward_backward(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        if not self._is_warm:
            self._warm_up(step, inputs, targets)
        losses = self._pass(inputs, targets)
        if self.reports_metrics:
            step.add_loss(torch.stack(losses).sum() / step.loss_weight(len(targets)), len(targets))

    def _warm_up(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        """One pass without lasting effects: in its first pass torch runs each stage on uninitialised memory to learn
        the shapes.

        It does so in training mode: batch norm's statistics would keep those values, and dropout would draw random
        numbers.
        """
        statistics = step.task.statistics(step.model)
        buffers, generators = state.buffers(step.model, statistics), state.generator_states(self.devices)
        self._pass(inputs, targets)
        step.optimizer.zero_grad(set_to_none=True)
        state.restore_buffers(step.model, buffers, statistics)
        state.restore_generators(generators, self.devices)
        self._is_warm = True

    def _pass(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """All micro-batches forward and backward; the losses of the micro-batches on the last stage."""
        losses: list[Tensor] = []
        if self.reports_metrics:
            self.schedule.step(target=targets, losses=losses)
        else:
            self.schedule.step(*((inputs,) if self.stage == 0 else ()))
        return losses

    def outputs(self, step: Step, inputs: Tensor) -> Tensor | None:
        """A batch of any size through all stages, without micro-batches: (batch, ...) on the last one, else None."""
        before, after = self.ranks.rank - 1, self.ranks.rank + 1
        if self.stage > 0:
            inputs = _receive(before, self.ranks.device)
        with step.precision():
            outputs: Tensor = step.model(inputs)
        if self.reports_metrics:
            return outputs
        _send(outputs, after, self.ranks.device)
        return None

    def sync_buffers(self, model: nn.Module) -> None:
        """All pipelines take the buffers of the first."""
        for buffer in model.buffers():
            dist.broadcast(buffer, src=self.stage, group=self.mesh.get_group("data"))

    def squared_norm(self, norm: Tensor) -> Tensor:
        total = norm.square()
        dist.all_reduce(total, group=self.mesh.get_group("pipeline"))
        return total

    def full_state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """The stages of the first pipeline are sent to rank 0 through host memory; empty on other ranks."""
        group, mine = self._gloo_group, model.state_dict() if self.data_rank == 0 else {}
        shapes = self.ranks.all_gather({name: (value.shape, value.dtype) for name, value in mine.items()})
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
        """All ranks in a gloo group, for tensors in host memory; all of them create it together."""
        return self.ranks.new_gloo_group([list(range(self.ranks.size))])


def _send(tensor: Tensor, rank: int, device: torch.device) -> None:
    dist.send_object_list([(tuple(tensor.shape), tensor.dtype)], rank, device=device)
    dist.send(tensor.contiguous(), rank)


def _receive(rank: int, device: torch.device) -> Tensor:
    about: list[Any] = [None]
    dist.recv_object_list(about, rank, device=device)
    shape, dtype = about[0]
    tensor = torch.empty(shape, dtype=dtype, device=device)
    dist.recv(tensor, rank)
    return tensor


def build(ranks: Ranks, options: Options) -> Strategy:
    return Pipeline(ranks, options, stages=ranks.size)
