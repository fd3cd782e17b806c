"""Estimate the memory of a rank before it is paid for: `cloudtrain check --memory`.

A step of one rank runs on tensors without memory: the trainer's own code with the whole model, on
the CPU. What FSDP shares out is divided afterwards. As a program it takes a `Request` as JSON and
prints what a training would take, as JSON on the last line of stdout.

The figures of GPUs come from NVIDIA's and torch's documentation and public reports. They have not
been measured.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from cloudtrain_trainer import rules, trees
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.data.streams import first_batch
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.own_task import from_options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies import Strategy, layers_of
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training.step import Step

GIB = 1 << 30


class Range(NamedTuple):
    """Bytes: at least, most likely and at most."""

    low: int
    expected: int
    high: int


CONTEXT = 0.3, 0.5, 0.8
"""GiB of CUDA's context and kernels, by nvidia-smi of a process with one small tensor."""
MESSAGES = 0.1, 0.3, 1.0
"""GiB of NCCL's buffers with several ranks."""
WORKSPACES = 0.01, 0.05, 0.3
"""GiB of work space of cuBLAS (8 MiB, on Hopper 32 MiB per stream) and cuDNN."""
TENSORS = 0.95, 1.03, 1.15
"""Factors of the tensors' bytes: other kernels than a CPU's, and holes between blocks."""
PROCESS = 0.3, 0.6, 1.0
"""GiB of a process on a CPU with torch and its libraries."""
CPU_TENSORS = 0.95, 1.1, 1.6
"""The same on a CPU, whose kernels convert images to other layouts."""
WITHOUT_BF16 = ("T4", "V100", "P100", "P40", "K80", "M60")
"""GPUs before compute capability 8.0, where `--amp auto` is float32."""
USABLE = {"T4": 0.91, "A10": 0.92, "A10G": 0.92, "L4": 0.92, "L40S": 0.92}
"""Share of the memory in a GPU's name that CUDA reports, where error correction takes a part."""
USUALLY_USABLE = 0.975


def usable(gpu: str, gib: float) -> int:
    """Return the bytes that programs have on a GPU. Whole GiB are the figure in the GPU's name."""
    share = USABLE.get(gpu, USUALLY_USABLE) if gib == round(gib) else USUALLY_USABLE
    return int(gib * GIB * share)


def precision(requested: str, gpu: str) -> str:
    """Return the value of `--amp` as a rank would resolve it."""
    if requested == "auto":
        return "bf16" if gpu and not gpu.startswith(WITHOUT_BF16) else "no"
    return requested


def needed(tensors: int, gpu: str, ranks: int) -> Range:
    """Return the memory of a rank that holds at most this many bytes of tensors."""
    factors = TENSORS if gpu else CPU_TENSORS
    constants = [PROCESS]
    if gpu:
        constants = [CONTEXT, WORKSPACES, MESSAGES] if ranks > 1 else [CONTEXT, WORKSPACES]
    ends = []
    for end, factor in enumerate(factors):
        gib = sum(constant[end] for constant in constants)
        ends.append(int(tensors * factor + gib * GIB))
    return Range(*ends)


def verdict(need: Range, memory: int) -> str:
    """Return `fits`, `may not fit` or `does not fit`; empty if the memory is unknown."""
    if not memory:
        return ""
    if need.high <= memory:
        return "fits"
    return "does not fit" if need.low > memory else "may not fit"


@dataclass(frozen=True)
class Request:
    """A command line of the trainer, and the machine for it."""

    argv: list[str]
    ranks: int
    per_node: int
    gpu: str = ""
    """The GPU's model; empty for a CPU."""
    gpu_gib: float = 0
    """The GiB in the GPU's name."""
    memory: int = 0
    """Instead: bytes per rank; 0: unknown."""


def main(argument: str) -> dict[str, Any]:
    """Return `plan`, `memory` and `alternatives`; or `refused` or `error` with a sentence."""
    request = Request(**json.loads(argument))
    os.environ.update(
        WORLD_SIZE=str(request.ranks),
        LOCAL_WORLD_SIZE=str(request.per_node),
        RANK="0",
        LOCAL_RANK="0",
        CUDA_VISIBLE_DEVICES="",
    )
    memory = request.memory or usable(request.gpu, request.gpu_gib)
    try:
        options = parse(request.argv)
        plan = _plan(options, request, memory)
        alternatives = []
        if plan["verdict"] not in ("fits", ""):
            alternatives = list(_alternatives(options, request, memory))
    except rules.Refused as reason:
        return {"refused": str(reason)}
    except Exception as error:  # noqa: BLE001  (a model of the user's may raise anything)
        first_line = (str(error).splitlines() or [""])[0]
        return {"error": f"{type(error).__name__}: {first_line[:300]}"}
    return {"plan": plan, "memory": memory, "alternatives": alternatives}


def _plan(options: Options, request: Request, memory: int) -> dict[str, Any]:
    """Return the memory of a rank with these options."""
    amp = precision(options.amp, request.gpu)
    held = rehearse(options, like_gpu=bool(request.gpu), amp=amp)
    host = host_bytes(held, options, request)
    tensors = held.peak if request.gpu else held.peak + host // request.per_node
    need = needed(tensors, request.gpu, request.ranks)
    return {
        "strategy": options.strategy,
        "recompute": options.recompute,
        "held": {**vars(held), "activations": held.activations},
        "host": host,
        "needed": need,
        "verdict": verdict(need, memory),
    }


def host_bytes(held: Held, options: Options, request: Request) -> int:
    """Return a node's copies for checkpoints, or the models of its ranks at the start if larger."""
    shards = {"fsdp": request.ranks, "hsdp": options.shard or request.per_node}
    parts = shards.get(options.strategy, 1)
    adapters = options.save_frozen != "yes" and 2 * held.gradients < held.parameters
    weights = held.gradients if adapters else held.parameters  # of a checkpoint, and of the best
    copies = min(parts, request.per_node) * (2 * weights + held.optimizer)
    return max(copies, request.per_node * parts * held.parameters)


def _alternatives(options: Options, request: Request, memory: int) -> Iterator[dict[str, Any]]:
    """Yield plans that fit: with recomputation, sharding, or both."""
    changes = [{"recompute": "blocks"}]
    if request.ranks > 1:
        changes += [{"strategy": "fsdp"}, {"strategy": "fsdp", "recompute": "blocks"}]
    for change in changes:
        changed = replace(options, **change)  # type: ignore[arg-type]
        try:
            rules.check(changed, request.ranks, request.per_node)
            plan = _plan(changed, request, memory)
        except rules.Refused:
            continue
        if changed != options and plan["verdict"] == "fits":
            yield plan


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the memory of every tensor that an operation makes, until it is freed.

    An operation that asks for a value gets 1: a count, a scale, a loss.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

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
        for tensor in trees.tensors(result):
            if tensor.layout is torch.strided:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        size = storage.nbytes()
        if key not in self._sizes:
            weakref.finalize(storage, self._forget, key)
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


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


def rehearse(options: Options, *, like_gpu: bool, amp: str) -> Held:
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
        held, layer = _rehearse(task, options, ranks, like_gpu=like_gpu)
    if options.strategy == "fsdp":
        return held.shared_out(ranks.size, layer)
    if options.strategy == "hsdp":
        return held.shared_out(options.shard or ranks.local_size, layer)
    return held


def _rehearse(task: Task, options: Options, ranks: Ranks, *, like_gpu: bool) -> tuple[Held, int]:
    """Return what a rank with the whole model holds, and the bytes of its largest layer."""
    strategy = Strategy(ranks, options)
    batch = options.batch_size or task.batch_size
    sample = first_batch(task.train, -(-batch // (ranks.size * options.accumulate)))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, LiveBytes() as live:
        inputs, targets = (trees.map_tensors(mode.from_tensor, part) for part in sample)
        live.add([*trees.tensors(inputs), *trees.tensors(targets)])
        step = _RehearsedStep(task, strategy, options, batch, like_gpu=like_gpu)
        step.accumulation_steps = min(MAX_ACCUMULATION_STEPS, step.accumulation_steps)
        step.wrapped.train()
        if options.strategy == "ddp":
            _keep_gradients(step.model)
        step.train_step(repeat((inputs, targets)), 0, 2)  # it creates the optimizer's state
        live.peak = live.now
        step.train_step(repeat((inputs, targets)), 1, 2)
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


def _held(step: Step, peak: int) -> Held:
    model = step.model
    trained = sizes(p for p in model.parameters() if p.requires_grad)
    states = step.optimizer.state.values()
    state = sizes(x for values in states for x in values.values() if isinstance(x, Tensor))
    state += sizes(step.averages.tensors.values()) if step.averages is not None else 0
    return Held(peak, sizes([*model.parameters(), *model.buffers()]), trained, state)


def _largest_layer(step: Step) -> int:
    """Return the bytes of the largest unit of FSDP: a layer, or the rest of the model."""
    layers = [sizes(layer.parameters()) for layer in layers_of(step.model, step)]
    return max([*layers, sizes(step.model.parameters()) - sum(layers)])


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


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    answer = main(sys.argv[1])
    print("\n" + json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # torch may abort while it tears down its groups
