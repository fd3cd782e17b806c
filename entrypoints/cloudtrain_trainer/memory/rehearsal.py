"""Run a step of one rank on tensors without memory, and return what it would have held.

The step is the trainer's own code, in a process group whose other ranks do not exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from cloudtrain_trainer import rules, strategies, tasks, trees
from cloudtrain_trainer.memory.live_bytes import LiveBytes, sizes
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.own.task import from_options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.reporting.waiting import Waiting
from cloudtrain_trainer.strategies import Strategy
from cloudtrain_trainer.strategies.ddp import DistributedData
from cloudtrain_trainer.strategies.pipeline import Pipeline
from cloudtrain_trainer.tasks import Draw, Task
from cloudtrain_trainer.training.initial_model import InitialModel
from cloudtrain_trainer.training.step import Step

LOCAL_DATA = {
    "mnist": {"data": "digits"},
    "keras-mnist": {"data": "digits"},
    "resnet50": {"data": "synthetic"},
}
"""Data of the same shape, by task, that need no download and no input."""
MOST_PARTS = 2
"""Accumulation steps of a rehearsed step: the first, and the last, which adds to gradients."""
NO_ESTIMATE = ("dp", "model-parallel")
"""Strategies of one process with several devices, without a rehearsal."""


class World(NamedTuple):
    """The ranks of a job."""

    ranks: int
    per_node: int


@dataclass(frozen=True)
class Held:
    """Maximum bytes of tensors of one rank."""

    peak: int
    parameters: int
    """Parameters and buffers between steps; of a model that is shared out, this rank's."""
    gradients: int
    optimizer: int

    @property
    def activations(self) -> int:
        """The rest of a step: activations, gathered layers, intermediate results."""
        return max(0, self.peak - self.parameters - self.gradients - self.optimizer)


def rehearse(options: Options, world: World, *, like_gpu: bool, amp: str, block: int = 1) -> Held:
    """Return the tensors of the rank that holds most.

    `amp`: no, bf16 or fp16. `like_gpu`: with a GPU's optimizers and layouts. Raise `Refused`, and
    the model's own error if it needs values.
    """
    if options.strategy in NO_ESTIMATE:
        raise rules.Refused(f"there is no estimate for --strategy {options.strategy}")
    options = replace(
        options, amp=amp, compile="no", weights=None, workers=0, probe_memory="no", profile=None
    )
    if not rules.is_own(options):
        task_options = options.task_options | LOCAL_DATA.get(options.task, {})
        if options.task == "gpt" and task_options.get("data") == "tokens":
            task_options["data"] = "synthetic"
        options = replace(options, task_options=task_options)
    task = from_options(options)
    capabilities = tasks.capabilities(task) if rules.is_own(options) else None
    rules.check(options, world.ranks, world.per_node, capabilities)
    different_ranks = 1
    if options.strategy == "pipeline":  # its stages differ
        different_ranks = world.ranks
    elif options.strategy == "hybrid" and options.stages:
        different_ranks = options.stages
    by_rank = [
        _rehearse(task, options, _RankAlone(world, rank), LiveBytes(block), like_gpu=like_gpu)
        for rank in range(different_ranks)
    ]
    return max(by_rank, key=lambda held: held.peak)


def _rehearse(
    task: Task, options: Options, rank: _RankAlone, live: LiveBytes, *, like_gpu: bool
) -> Held:
    strategy = strategies.build(rank, options)
    strategy.waiting = lambda wrapped: Waiting()  # type: ignore[method-assign]  # noqa: ARG005
    if isinstance(strategy, (DistributedData, Pipeline)):
        strategy.replicated = _Buckets
    with torch.random.fork_rng(devices=[]), _group(strategy):
        batch = options.batch_size or task.batch_size
        parts = options.accumulate if strategy.n_microbatches == 1 else 1
        samples = -(-batch // (strategy.data_ranks * parts))
        sample = _sample(task, samples)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, live:
            inputs, targets = (trees.map_tensors(mode.from_tensor, part) for part in sample)
            live.add([*trees.tensors(inputs), *trees.tensors(targets)])
            if isinstance(strategy, Pipeline):
                strategy.shapes = partial(_shapes, inputs, strategy.n_microbatches)  # type: ignore[method-assign]
                strategy.is_warm = True  # the shapes are known
            step = _RehearsedStep(task, strategy, options, batch, like_gpu=like_gpu)
            step.accumulation_steps = min(MOST_PARTS, step.accumulation_steps)
            step.wrapped.train()
            _update_twice(step.optimizer, live)
            live.peak = live.now
            step.train_step(repeat((inputs, targets)), 0, 1)
            return _held(step, live.peak)


def _update_twice(optimizer: torch.optim.Optimizer, live: LiveBytes) -> None:
    """Make a step the second one: the first update creates the optimizer's state."""
    update = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        with live.as_if_before():
            update(*args, **kwargs)
        return update(*args, **kwargs)

    optimizer.step = step  # type: ignore[method-assign]


def _held(step: _RehearsedStep, peak: int) -> Held:
    model = step.model
    trained = sizes(p for p in model.parameters() if p.requires_grad)
    states = step.optimizer.state.values()
    state = sizes(x for values in states for x in values.values() if isinstance(x, Tensor))
    return Held(peak, sizes([*model.parameters(), *model.buffers()]), trained, state)


def _sample(task: Task, samples: int) -> tuple[Any, Any]:
    """Return a micro-batch of the first training data."""
    data = task.train
    batch: tuple[Any, Any]
    if hasattr(data, "first"):
        batch = data.batch([data.first()] * samples)
    else:
        batch = data[Draw(0, [index % len(data) for index in range(samples)])]
    return batch


def _shapes(
    inputs: Tensor, count: int, step: Step, whole: Sequence[nn.Module]
) -> list[dict[str, Any]]:
    """Return an example of what each stage of a pipeline receives and sends.

    `count`: micro-batches; the example is one of them.
    """
    values = [step.to_device(inputs[: -(-len(inputs) // count)], None)[0]]
    with torch.no_grad(), step.precision():
        for stage in whole:
            values.append(stage(values[-1]))
    values = [value.requires_grad_(value.is_floating_point()) for value in values]
    return [{"input_args": received, "output_args": sent} for received, sent in pairwise(values)]


@contextmanager
def _group(strategy: Strategy) -> Iterator[None]:
    """Start the strategy's process group, and end it."""
    strategy.start()
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class _RehearsedStep(Step):
    """A step whose model has its device at once, as it takes no memory."""

    def __init__(
        self, task: Task, strategy: Strategy, options: Options, batch_size: int, *, like_gpu: bool
    ) -> None:
        self._like_gpu = like_gpu
        super().__init__(task, strategy, options, batch_size)

    def computes_like_gpu(self) -> bool:
        return self._like_gpu

    def channels_last(self, model: nn.Module) -> nn.Module:
        """Return the model: it takes as many bytes either way."""
        return model

    def initial_model(self) -> InitialModel:
        return InitialModel(self.task.model, self.options, self.strategy.ranks, False)

    def place(self, module: nn.Module, device: torch.device | None = None) -> None:
        """Do nothing."""


class _RankAlone(Ranks):
    """One rank on the CPU, in a process group whose messages go nowhere."""

    def __init__(self, world: World, rank: int) -> None:
        self.rank = rank
        self.size = world.ranks
        self.local_size = world.per_node
        self.local_rank = rank % world.per_node
        self.device = torch.device("cpu")
        self._start_timeout = 0.0
        self._has_begun = False
        self._groups = []
        self._control = None

    def init_process_group(self, backend: str = "auto") -> None:  # noqa: ARG002
        """Join a group whose other ranks do not exist."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.size)

    def any_on_device(self, flag: Tensor) -> Tensor:
        """Return this rank's flag."""
        return flag

    def log(self, text: str) -> None:
        """Print nothing."""


class _Buckets(nn.Module):
    """The memory of DDP: gradients are copied into buckets, which stay.

    DDP itself is in C++ and reads the values of tensors.
    """

    def __init__(
        self, module: nn.Module, *_: Any, gradient_as_bucket_view: bool = False, **__: Any
    ) -> None:
        super().__init__()
        self.module = module
        self._syncs = True
        self._views_are_gradients = gradient_as_bucket_view
        self._views: dict[Tensor, Tensor] = {}
        for parameter in module.parameters():
            if parameter.requires_grad:
                self._views[parameter] = torch.empty_like(parameter, requires_grad=False)
                parameter.register_post_accumulate_grad_hook(self._after)  # type: ignore[no-untyped-call]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep gradients apart from the buckets inside."""
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    def _after(self, parameter: Tensor) -> None:
        assert parameter.grad is not None  # noqa: S101  (it was added just now)
        if self._syncs:
            view = self._views[parameter].copy_(parameter.grad)
            if self._views_are_gradients:
                parameter.grad = view
