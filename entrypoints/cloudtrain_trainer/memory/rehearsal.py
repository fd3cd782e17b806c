"""Run a step of one rank on tensors without memory, and return what it would have held.

The step is the trainer's own code with the whole model. What FSDP shares out is divided afterwards.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from cloudtrain_trainer import rules, trees
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.own.task import from_options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import Strategy, layers_of
from cloudtrain_trainer.tasks import Draw, Task
from cloudtrain_trainer.training.step import Step

CUDA_BLOCK = 512
"""torch's CUDA allocator rounds each tensor up to a multiple of this (kMinBlockSize)."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the memory of every tensor that an operation makes, until it is freed.

    An operation that asks for a value gets 1: a count, a scale, a loss. `block`: memory is rounded
    up to a multiple of it.
    """

    def __init__(self, block: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._block = block
        self._sizes: dict[int, int] = {}

    @contextmanager
    def as_if_before(self) -> Iterator[None]:
        """Count tensors that are created inside and stay as if the earlier peak had them."""
        peak = self.peak
        before = self.now
        yield
        self.peak = max(self.now, peak + self.now - before)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that were made before."""
        for tensor in tensors:
            self._count(tensor.untyped_storage())

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return _one(args[0])
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors((result,)):
            if tensor.layout is torch.strided:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        size = -(-storage.nbytes() // self._block) * self._block
        if key not in self._sizes:
            weakref.finalize(storage, self._forget, key)
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments and in lists of them; operations take no others."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _one(tensor: Tensor) -> float | int | bool:
    """Return 1 of the tensor's type; False for a flag."""
    if tensor.dtype is torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1


def sizes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors: a shared one once."""
    return sum({id(tensor): tensor.nbytes for tensor in tensors}.values())


LOCAL_DATA = {
    "mnist": {"data": "digits"},
    "keras-mnist": {"data": "digits"},
    "resnet50": {"data": "synthetic"},
}
"""Data of the same shape, by task, that need no input."""
MAX_ACCUMULATION_STEPS = 2
"""Accumulation steps of a rehearsed step: the first, and the last, which adds to gradients."""
ESTIMATED = ("single", "ddp", "fsdp", "hsdp")
"""Strategies with an estimate: the others split layers or use several devices."""


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

    def shared_out(self, ranks: int, layer: int) -> Held:
        """Return the bytes if FSDP shares the model over ranks; `layer`: of its largest unit.

        Its parameters and gradients are whole while it computes.
        """
        parameters = self.parameters // ranks
        gradients = self.gradients // ranks
        optimizer = self.optimizer // ranks
        peak = parameters + gradients + optimizer + self.activations + 2 * layer
        return Held(peak, parameters, gradients, optimizer)


def rehearse(options: Options, *, like_gpu: bool, amp: str, block: int = 1) -> Held:
    """Return the tensors of a rank of $WORLD_SIZE.

    `amp`: no, bf16 or fp16. `like_gpu`: with a GPU's optimizers and layouts. Raise `Refused`, and
    the model's own error if it needs values.
    """
    if options.strategy not in ESTIMATED:
        raise rules.Refused(f"there is no estimate for --strategy {options.strategy}")
    options = replace(options, amp=amp, compile="no", weights=None, workers=0)
    if not rules.is_own(options):
        task_options = options.task_options | LOCAL_DATA.get(options.task, {})
        if options.task == "gpt" and task_options.get("data") == "tokens":
            task_options["data"] = "synthetic"
        options = replace(options, task_options=task_options)
    ranks = Ranks()
    with torch.random.fork_rng(devices=[]):
        task = from_options(options)
        held, layer = _rehearse(task, options, ranks, LiveBytes(block), like_gpu=like_gpu)
    if options.strategy == "fsdp":
        return held.shared_out(ranks.size, layer)
    if options.strategy == "hsdp":
        return held.shared_out(options.shard or ranks.local_size, layer)
    return held


def _rehearse(
    task: Task, options: Options, ranks: Ranks, live: LiveBytes, *, like_gpu: bool
) -> tuple[Held, int]:
    """Return what a rank with the whole model holds, and the bytes of its largest layer."""
    strategy = Strategy(ranks, options)
    batch = options.batch_size or task.batch_size
    sample = _sample(task, -(-batch // (ranks.size * options.accumulate)))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, live:
        inputs, targets = (trees.map_tensors(mode.from_tensor, part) for part in sample)
        live.add([*trees.tensors(inputs), *trees.tensors(targets)])
        step = _RehearsedStep(task, strategy, options, batch, like_gpu=like_gpu)
        step.accumulation_steps = min(MAX_ACCUMULATION_STEPS, step.accumulation_steps)
        step.wrapped.train()
        if options.strategy == "ddp":
            _keep_gradients(step.model)
        _update_twice(step.optimizer, live)
        live.peak = live.now
        step.train_step(repeat((inputs, targets)), 0, 1)
        return _held(step, live.peak), _largest_layer(step)


def _keep_gradients(model: nn.Module) -> None:
    """Keep memory for all gradients between steps, as DDP's buckets do."""

    def copy_to(view: Tensor) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            parameter.grad = view.copy_(parameter.grad)  # type: ignore[arg-type]

        return hook

    for parameter in model.parameters():
        if parameter.requires_grad:
            view = torch.empty_like(parameter, requires_grad=False)
            parameter.register_post_accumulate_grad_hook(copy_to(view))  # type: ignore[no-untyped-call]


def _update_twice(optimizer: torch.optim.Optimizer, live: LiveBytes) -> None:
    """Make a step the second one: the first update creates the optimizer's state."""
    update = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        with live.as_if_before():
            update(*args, **kwargs)
        return update(*args, **kwargs)

    optimizer.step = step  # type: ignore[method-assign]


def _held(step: Step, peak: int) -> Held:
    model = step.model
    trained = sizes(p for p in model.parameters() if p.requires_grad)
    states = step.optimizer.state.values()
    state = sizes(x for values in states for x in values.values() if isinstance(x, Tensor))
    return Held(peak, sizes([*model.parameters(), *model.buffers()]), trained, state)


def _largest_layer(step: Step) -> int:
    """Return the bytes of the largest unit of FSDP: a layer, or the rest of the model."""
    layers = [sizes(layer.parameters()) for layer in layers_of(step.model, step)]
    return max([*layers, sizes(step.model.parameters()) - sum(layers)])


def _sample(task: Task, samples: int) -> tuple[Any, Any]:
    """Return a micro-batch of the first training data."""
    data = task.train
    batch: tuple[Any, Any]
    if hasattr(data, "first"):
        batch = data.batch([data.first()] * samples)
    else:
        batch = data[Draw(0, [index % len(data) for index in range(samples)])]
    return batch


class _RehearsedStep(Step):
    """A step that computes on the CPU as if on a GPU."""

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

    def place(self, module: nn.Module, device: torch.device | None = None) -> None:
        """Do nothing: the model has its device at once."""
