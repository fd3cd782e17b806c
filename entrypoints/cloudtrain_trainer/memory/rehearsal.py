"""Runs steps of one rank on tensors without memory, by the trainer's own code, and says what it
would have held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, repeat
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from cloudtrain_trainer import rules, strategies, tasks, trees
from cloudtrain_trainer.memory.alone import Alone, Buckets, Replicas, World
from cloudtrain_trainer.memory.live_bytes import LiveBytes, sizes
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.own.task import from_options
from cloudtrain_trainer.reporting.waiting import Waiting
from cloudtrain_trainer.strategies import Strategy
from cloudtrain_trainer.strategies.ddp import DistributedData
from cloudtrain_trainer.strategies.dp import DataParallel
from cloudtrain_trainer.strategies.pipeline import Pipeline
from cloudtrain_trainer.tasks import Draw, Task
from cloudtrain_trainer.training.initial_model import InitialModel
from cloudtrain_trainer.training.step import Step

HERE = {
    "mnist": {"data": "digits"},
    "keras-mnist": {"data": "digits"},
    "resnet50": {"data": "synthetic"},
}
"""Data of the same shape, by task, that need no download and no input."""
MOST_PARTS = 2
"""Accumulation steps of a rehearsed step: the first, and the last, which adds to gradients."""


@dataclass(frozen=True)
class Held:
    """What one rank holds at most, in bytes of tensors."""

    peak: int
    parameters: int
    """Parameters and buffers between steps; of a model that is shared out, this rank's."""
    gradients: int
    optimizer: int

    @property
    def activations(self) -> int:
        """All that a step holds besides: activations, gathered layers, and what operations need
        meanwhile.
        """
        return max(0, self.peak - self.parameters - self.gradients - self.optimizer)


def rehearse(
    options: Options, world: World, *, like_gpu: bool, amp: str, block: int = 1, limit: int = 0
) -> Held:
    """What the rank holds that holds most. `amp`: no, bf16 or fp16. `like_gpu`: with a GPU's
    optimizers and layouts.

    `limit`: bytes of tensors; `Exceeded` is raised as soon as a rank holds more; 0: no limit.
    Raises `Refused`, and what the model raises where it needs values.
    """
    options = replace(
        options, amp=amp, compile="no", weights=None, workers=0, probe_memory="no", profile=None
    )
    if not rules.is_own(options):
        options = replace(options, task_options=options.task_options | HERE.get(options.task, {}))
        if options.task == "gpt" and options.task_options.get("data") == "tokens":
            options = replace(options, task_options=options.task_options | {"data": "synthetic"})
    task = from_options(options)
    rules.check(
        options,
        world.ranks,
        world.per_node,
        tasks.capabilities(task) if rules.is_own(options) else None,
    )
    ranks = _different_ranks(options, world)
    held = [
        _rehearse(
            task, options, world, rank, LiveBytes(block, gloo=not like_gpu, limit=limit), like_gpu
        )
        for rank in ranks
    ]
    return max(held, key=lambda held: held.peak)


def _different_ranks(options: Options, world: World) -> range:
    """Ranks of which one holds most: the stages of a pipeline differ, other ranks do not."""
    if options.strategy == "pipeline":
        return range(world.ranks)
    return range(options.stages) if options.strategy == "hybrid" and options.stages else range(1)


def _rehearse(
    task: Task, options: Options, world: World, rank: int, live: LiveBytes, like_gpu: bool
) -> Held:
    devices = world.devices if options.strategy == "model-parallel" else 1
    strategy = strategies.build(Alone(world, rank, devices), options)
    _without_peers(strategy, world)
    with torch.random.fork_rng(devices=[]), _group(strategy):
        batch = options.batch_size or task.batch_size
        parts = options.accumulate if strategy.n_microbatches == 1 else 1
        samples = -(-batch // (strategy.data_ranks * parts))
        inputs, targets = _sample(task, samples)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, live:
            inputs, targets = (
                trees.map_tensors(mode.from_tensor, part) for part in (inputs, targets)
            )
            live.add([*trees.tensors(inputs), *trees.tensors(targets)])
            if isinstance(strategy, Pipeline):
                strategy.shapes = partial(_shapes, inputs, strategy.n_microbatches)  # type: ignore[method-assign]
                strategy.is_warm = True  # the shapes are known
            step = RehearsedStep(task, strategy, options, batch, like_gpu=like_gpu)
            step.accumulation_steps = min(MOST_PARTS, step.accumulation_steps)
            step.wrapped.train()
            _update_twice(step.optimizer, live)
            live.restart()
            step.train_step(repeat((inputs, targets)), 0, 1)
            return _held(step, live)


def _update_twice(optimizer: torch.optim.Optimizer, live: LiveBytes) -> None:
    """Make a step the second one: the first update makes the optimizer's state, as if it had been
    there all the time.

    A whole step more would say the same and take twice as long.
    """
    update = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        with live.as_if_before():
            update(*args, **kwargs)
        return update(*args, **kwargs)

    optimizer.step = step  # type: ignore[method-assign]


def _held(step: RehearsedStep, live: LiveBytes) -> Held:
    """By its parts, of the device that held most."""
    device = max(live.peaks, key=lambda number: live.peaks[number])

    def there(tensors: Iterable[Any]) -> int:
        return sizes(
            x for x in tensors if isinstance(x, Tensor) and (x.device.index or 0) == device
        )

    model = step.model
    trained = there(p for p in model.parameters() if p.requires_grad)
    state = there(x for values in step.optimizer.state.values() for x in values.values())
    return Held(live.peak, there([*model.parameters(), *model.buffers()]), trained, state)


class RehearsedStep(Step):
    """A step whose model is made on the device at once, as it takes no memory."""

    def __init__(
        self, task: Task, strategy: Strategy, options: Options, batch_size: int, *, like_gpu: bool
    ) -> None:
        self._like_gpu = like_gpu
        super().__init__(task, strategy, options, batch_size)

    def computes_like_gpu(self) -> bool:
        return self._like_gpu

    def channels_last(self, model: nn.Module) -> nn.Module:
        """It takes as many bytes either way."""
        return model

    def initial_model(self) -> InitialModel:
        return InitialModel(self.task.model, self.options, self.strategy.ranks, False)

    def place(self, module: nn.Module, device: torch.device | None = None) -> None:
        """It is there already, but for a stage that one process holds on another device."""
        if device is None:
            return
        for part in module.modules():
            for kind in (part._parameters, part._buffers):
                for name, tensor in list(kind.items()):
                    if tensor is not None:
                        kind[name] = _moved(tensor, device)


def _moved(tensor: Tensor, device: torch.device) -> Any:
    moved = tensor.detach().to(device)
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved


def _without_peers(strategy: Strategy, world: World) -> None:
    """Replace what would look at the values of tensors, and what would wait for others."""
    strategy.waiting = lambda wrapped: Waiting()  # type: ignore[method-assign]  # noqa: ARG005
    if isinstance(strategy, (DistributedData, Pipeline)):
        strategy.replicated = Buckets
    if isinstance(strategy, DataParallel):
        strategy.replicated = partial(Replicas, devices=world.devices)


def _sample(task: Task, samples: int) -> tuple[Any, Any]:
    """A micro-batch of so many samples, all of them first ones of the training data."""
    data = task.train
    if hasattr(data, "first"):
        batch: tuple[Any, Any] = data.batch([data.first()] * samples)
        return batch
    found: tuple[Any, Any] = data[Draw(0, [index % len(data) for index in range(samples)])]
    return found


def _shapes(
    inputs: Tensor, count: int, step: Step, whole: Sequence[nn.Module]
) -> list[dict[str, Any]]:
    """An example of what each stage of a pipeline receives and sends, for one of `count`
    micro-batches.
    """
    values = [step.to_device(inputs[: -(-len(inputs) // count)], None)[0]]
    with torch.no_grad(), step.precision():
        for stage in whole:
            values.append(stage(values[-1]))
    values = [value.requires_grad_(value.is_floating_point()) for value in values]
    return [{"input_args": given, "output_args": made} for given, made in pairwise(values)]


@contextmanager
def _group(strategy: Strategy) -> Iterator[None]:
    """The process group that the strategy starts, and its end."""
    strategy.start()
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
