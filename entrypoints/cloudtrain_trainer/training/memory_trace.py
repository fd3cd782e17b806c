"""The sizes of a task's model and of its activations, measured on tensors without memory: nothing is computed."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cloudtrain_trainer import trees
from cloudtrain_trainer.models import partition
from cloudtrain_trainer.models.recompute import recompute
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training.memory_estimate import MemoryEstimate, ModelSizes, division, estimate
from cloudtrain_trainer.training.optimizers import NUMBERS_PER_PARAMETER

if TYPE_CHECKING:
    from cloudtrain_trainer.training.loop import Loop


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of tensors that operations make inside, as long as they live, and the most there were at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and _storage(leaf) not in given | self._known:
                self._add(leaf.untyped_storage())
        self.peak = max(self.peak, self.now)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.now += size
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _storage(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def measure(task: Task, inputs: Any, targets: Any, *, amp: str = "no", how: str = "none") -> ModelSizes:
    """The sizes of a task's model, trained on micro-batches of the shape of this one.

    `amp`: no, bf16 or fp16; a CPU's kernels are assumed. `how`: the value of `--recompute`. Whatever the user's model
    raises where it looks at values, which are not there, is raised here too.
    """
    with torch.random.fork_rng(devices=[]), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = task.model()
        layers = task.layers(model) if task.layers else partition.repeated_blocks(model)
        if how != "none":
            recompute(layers, how)
        whole, by_layer = _bytes([*model.parameters(), *model.buffers()]), [_bytes(m.parameters()) for m in layers]
        inputs, targets = (trees.map_tensors(mode.from_tensor, batch) for batch in (inputs, targets))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        activations = _activations(task, model, inputs, targets, trained, amp)
    return ModelSizes(whole, _bytes(trained), max(by_layer, default=0), whole - sum(by_layer), activations)


def estimate_of(loop: Loop) -> MemoryEstimate:
    """What each rank of a training needs. Raises whatever the model raises where it looks at values."""
    strategy, options = loop.strategy, loop.options
    divided = division(
        options.strategy,
        loop.ranks.size,
        shard=strategy.shard_group_size,
        tensor=options.tensor,
        context=options.context_ranks,
        stages=options.stages,
        schedule=options.schedule,
    )
    inputs, targets = loop.batches.trial(max(1, loop.micro_batch // strategy.n_microbatches))
    sizes = measure(loop.task, inputs, targets, amp=loop.step.amp, how=options.recompute)
    return estimate(sizes, divided, NUMBERS_PER_PARAMETER.get(options.optimizer, 2))


def _activations(task: Task, model: nn.Module, inputs: Any, targets: Any, trained: Sequence[Tensor], amp: str) -> int:
    """The most bytes of a forward and backward pass besides gradients."""
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    precision = torch.autocast("cpu", dtype=dtypes[amp]) if amp in dtypes else nullcontext()
    model.train()
    for parameter in trained:  # a gradient is no activation, from the moment it is added here
        parameter.grad = torch.zeros_like(parameter)
    with LiveBytes() as live:
        with precision:
            loss = task.loss(task.call(model, inputs, True), inputs if targets is None else targets)
        loss.backward()  # type: ignore[no-untyped-call]
    peak: int = live.peak
    return peak


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
