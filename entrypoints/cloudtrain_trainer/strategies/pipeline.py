"""Each rank holds some consecutive layers, and micro-batches pass through the ranks: pipeline
parallelism.

When: the model does not fit and the ranks are connected by a slow network: only activations at the
borders of stages are sent. Memory: parameters, gradients and optimizer state divided by the number
of stages; activations of all micro-batches with `--schedule gpipe`, of at most as many as there are
stages with `1f1b`. Communication: per micro-batch one tensor to the next stage and one gradient
back. Idle time: (stages - 1) / (stages - 1 + micro-batches), so use many micro-batches;
accumulation (`--accumulate`) multiplies them. Batch norm sees one micro-batch at a time.

Two schedules idle less. `interleaved` gives each rank two stages that are not neighbours: half the
idle time, twice the messages. `zero-bubble` computes the gradients of weights apart, in the time in
which a rank would wait: it keeps what they need until then.

Source: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019, and
"Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021 (1F1B, interleaved); Qi et
al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (ZB-H1); torch/distributed/pipelining.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.nn.parallel import DistributedDataParallel

from cloudtrain_trainer import rules, state
from cloudtrain_trainer.models.forward_pipeline import ForwardPipeline
from cloudtrain_trainer.models.partition import joined
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import AutocastModule, Strategy

if TYPE_CHECKING:
    from cloudtrain_trainer.training.step import Step

SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
"""Of one stage per rank."""
MULTI_SCHEDULES: dict[str, Any] = {
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}
"""Of a list of stages per rank."""


class Pipeline(Strategy):
    """Consecutive ranks are the stages of one pipeline; several pipelines (hybrid) share the batch
    as ddp does.
    """

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
        self.pieces = rules.STAGES_PER_RANK.get(options.schedule, 1)
        self.is_warm = False
        """Whether torch knows the shapes of what stages send each other."""
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
        count = self.stages * self.pieces
        numbers = range(self.stage, count, self.stages)
        whole = step.task.stages(model, count)
        parts = [whole[number] for number in numbers]
        for part in parts:
            step.place(part)
        self._forward = ForwardPipeline(
            parts, self.ranks.rank, self.stage, self.stages, self.ranks.device
        )
        modules = [self._replicated(AutocastModule(part, step)) for part in parts]
        group = self.mesh.get_group("pipeline")
        shapes = self.shapes(step, whole)
        stages = [
            PipelineStage(module, number, count, self.ranks.device, group=group, **shapes[number])
            for number, module in zip(numbers, modules, strict=True)
        ]

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            """Of one micro-batch, shape (). Not added to the metrics here: torch calls it once more
            for its shape.
            """
            with step.precision():
                return step.task.loss(outputs, targets) * step.loss_weight(len(targets))

        # The weights of the micro-batches add up to one, so torch must not scale the gradients.
        self.schedule = _schedule(self.options.schedule, stages, self.n_microbatches, loss)
        if len(modules) == 1:
            return parts[0], modules[0]
        return joined(parts), nn.ModuleList(modules)

    def shapes(self, step: Step, whole: Sequence[nn.Module]) -> list[dict[str, Any]]:  # noqa: ARG002
        """Per stage an example of its input and output, where they are known beforehand; else the
        ranks find them.
        """
        return [{}] * len(whole)

    def _replicated(self, part: nn.Module) -> nn.Module:
        """A part whose gradients are averaged over all pipelines, if the schedule can call it so."""
        has_gradients = any(p.requires_grad for p in part.parameters())
        if self.data_ranks > 1 and has_gradients and self.options.schedule in SCHEDULES:
            return self.replicated(part, process_group=self.mesh.get_group("data"))
        return part

    def forward_backward(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        if not self.is_warm:
            self._warm_up(step, inputs, targets)
        losses = self._pass(inputs, targets)
        if self.data_ranks > 1 and self.options.schedule in MULTI_SCHEDULES:
            self._average_gradients(step.model)
        if self.reports_metrics:
            step.add_loss(torch.stack(losses).sum() / step.loss_weight(len(targets)), len(targets))

    def _average_gradients(self, model: nn.Module) -> None:
        """Over all pipelines. In torch 2.13 these schedules end DDP with an internal error
        (reducer.cpp: "rebuilt parameter indices"): they have it reduce once in the last backward
        pass and once more on its own.
        """
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        torch._foreach_div_(gradients, self.data_ranks)
        group = self.mesh.get_group("data")
        sent = [dist.all_reduce(gradient, group=group, async_op=True) for gradient in gradients]
        for work in sent:
            work.wait()

    def _warm_up(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        """One pass without lasting effects: in its first pass torch runs each stage on
        uninitialised memory to learn the shapes.

        It does so in training mode: batch norm's statistics would keep those values, and dropout
        would draw random numbers.
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
        """All micro-batches forward and backward; the losses of the micro-batches on the last
        stage.
        """
        losses: list[Tensor] = []
        if self.reports_metrics:
            self.schedule.step(target=targets, losses=losses)
        else:
            self.schedule.step(*((inputs,) if self.stage == 0 else ()))
        return losses

    def outputs_of_batches(self, step: Step, batches: Sequence[Any]) -> Iterator[Any]:
        return self._forward.outputs(batches, step.precision)

    def sync_buffers(self, model: nn.Module) -> None:
        """All pipelines take the buffers of the first."""
        for buffer in model.buffers():
            dist.broadcast(buffer, src=self.stage, group=self.mesh.get_group("data"))

    def total_norm(self, norm: Tensor) -> Tensor:
        total = norm.square()
        dist.all_reduce(total, group=self.mesh.get_group("pipeline"))
        return total.sqrt()

    def full_state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """The stages of the first pipeline are sent to rank 0 through host memory; empty on other
        ranks.
        """
        group = self._gloo_group
        mine = model.state_dict() if self.data_rank == 0 else {}
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
        """All ranks in a gloo group, for tensors in host memory; all of them create it together."""
        return self.ranks.new_gloo_group([list(range(self.ranks.size))])


def _schedule(
    name: str, stages: list[PipelineStage], n_microbatches: int, loss: Callable[..., Tensor]
) -> Any:
    """The schedule of that name, for this rank's stages."""
    if name in SCHEDULES:
        return SCHEDULES[name](stages[0], n_microbatches, loss_fn=loss, scale_grads=False)
    return MULTI_SCHEDULES[name](stages, n_microbatches, loss_fn=loss, scale_grads=False)


def build(ranks: Ranks, options: Options) -> Strategy:
    return Pipeline(ranks, options, stages=ranks.size)
