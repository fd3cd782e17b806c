"""Run by test_strategies.py under torchrun: each strategy's loss curve against that of one process, in one launch."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "entrypoints" / "job"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "entrypoints"))

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.distributed.fsdp import FSDPModule

from cloudtrain_trainer import hardware, step, strategies, tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.checkpoint import CheckpointStore
from cloudtrain_trainer.loop import Loop
from cloudtrain_trainer.metrics import evaluate
from cloudtrain_trainer.ranks import Ranks, exit_on_uncaught_errors
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.strategies import full_tensor
from cloudtrain_trainer.tasks import Task

STEPS = 6
TOLERANCE = 5e-6
"""Of a loss, relative; 1.1e-7 was the most that was seen. A sum of float32 in another order differs by as much, and
AdamW, which divides each gradient by its own size, may carry that into weights whose gradient is near zero."""

NORM_TOLERANCE = 1e-4
"""Of the norm of all gradients before clipping, relative. AdamW and clipping both hide a gradient of the wrong size."""

BF16_TOLERANCE = 2e-2
"""Between two ways of computing in bf16, whose numbers have 8 bits: relative, after some steps."""

NOISY = (nn.BatchNorm2d, nn.Dropout)
"""Layers that see the other samples of a part, or noise: with them no two ways of cutting a batch are equal."""

OWN = {"mnist": {"data": "digits"}, "resnet50": {"size": "tiny", "data": "synthetic"}}
"""Options of tasks: small, and nothing to download."""

FIRST_BUCKET = "_DEFAULT_FIRST_BUCKET_BYTES"
"""Where torch keeps the size of DDP's first bucket."""

CHECKS = {
    2: [
        ("digits", "ddp", ""),
        ("digits", "ddp", "--accumulate 2 --clip-norm 0.5"),
        ("digits", "fsdp", "--accumulate 2 --clip-norm 0.5"),
        ("digits", "tp", "--clip-norm 0.5"),
        ("digits", "pipeline", "--schedule gpipe --clip-norm 0.5"),
        ("digits", "pipeline", "--accumulate 2"),
        ("gpt", "ddp", ""),
        ("gpt", "fsdp", "--clip-norm 0.5"),
        ("gpt", "tp", "--clip-norm 0.5"),
        ("gpt", "pipeline", "--schedule gpipe"),
        ("gpt", "pipeline", "--clip-norm 0.5"),
        ("mnist", "ddp", ""),
        ("mnist", "fsdp", ""),
        ("mnist", "tp", ""),
        ("mnist", "pipeline", ""),
        ("resnet50", "ddp", ""),
        ("resnet50", "fsdp", ""),
        ("resnet50", "pipeline", ""),
    ],
    4: [
        ("digits", "ddp", ""),
        ("digits", "fsdp", ""),
        ("digits", "hsdp", "--shard 2 --accumulate 2 --clip-norm 0.5"),
        ("digits", "tp", ""),
        ("digits", "pipeline", ""),
        ("digits", "hybrid", "--tensor 2 --clip-norm 0.5"),
        ("digits", "hybrid", "--stages 2 --clip-norm 0.5"),
        ("gpt", "fsdp", ""),
        ("gpt", "hsdp", "--shard 2"),
        ("gpt", "tp", ""),
        ("gpt", "pipeline", ""),
        ("gpt", "hybrid", "--tensor 2 --clip-norm 0.5"),
        ("gpt", "hybrid", "--stages 2 --clip-norm 0.5"),
        ("mnist", "hsdp", "--shard 2"),
        ("mnist", "hybrid", "--tensor 2"),
        ("mnist", "hybrid", "--stages 2"),
        ("resnet50", "hsdp", "--shard 2"),
        ("resnet50", "hybrid", "--stages 2"),
    ],
}


def quiet(name: str, noisy: tuple[type[nn.Module], ...] = NOISY) -> Task:
    """The task without the layers that no two ways of cutting a batch agree on, and with little to evaluate."""
    task = tasks.build(name, 0, **OWN.get(name, {}))

    def model() -> nn.Module:
        whole = task.model()
        for module in list(whole.modules()):
            for child, layer in list(module.named_children()):
                if isinstance(layer, noisy):
                    setattr(module, child, nn.Identity())
        return whole

    return replace(task, model=model, validation=Few(task.validation))


class Few:
    """The first samples of a data set: as many as cannot be shared out evenly."""

    def __init__(self, data: tasks.Data) -> None:
        self.data = data

    def __len__(self) -> int:
        return 61

    def __getitem__(self, draw: tasks.Draw) -> tuple[torch.Tensor, torch.Tensor]:
        return self.data[draw]


def begin(task: Task, argv: list[str], ranks: Ranks) -> Loop:
    """A training that nothing has been learnt in yet."""
    options = parse(argv)
    strategy = strategies.build(ranks, options)
    strategy.start()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(ranks.all_gather(folder)[0])
        return Loop(task, strategy, options, CheckpointStore(place, 1, ranks, strategy.shard_group_size), Stop())


def curve(task: Task, argv: list[str], ranks: Ranks) -> list[float]:
    """The loss of each step over the global batch, then what an evaluation tells."""
    return learn(begin(task, argv, ranks))[0]


def learn(loop: Loop) -> tuple[list[float], list[float]]:
    """The same, of a training that was begun; and the norm of each step's gradients."""
    ranks, norms, clip = loop.ranks, [], loop.step._clip

    def measured() -> torch.Tensor:
        norms.append(float(loop.step.gradient_norm()))
        return clip()

    loop.step._clip = measured  # type: ignore[method-assign]
    loop.step.wrapped.train()
    batches, told, losses = loop.batches.load(0, 0), loop.step.loss.state(), []
    for at in range(STEPS):
        loop.step.train_step(batches, at, 100)
        total, samples = loop.step.loss.state()
        both = ranks.all_reduce_sum(total - told[0], samples - told[1])
        told = total, samples
        assert both[1] == loop.batches.batch_size, f"{both[1]} samples counted in one step"
        losses.append(both[0] / both[1])
    values = evaluate(loop.step, 16, 0, lambda: False)
    assert values is not None
    return [*losses, values["val_loss"], values["val_accuracy"]], norms


def off(found: list[float], right: list[float]) -> float:
    """The most that one of these differs from the other, relative."""
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(found, right, strict=True))


def alone() -> Ranks:
    """This process as if it had no peers."""
    ranks = Ranks()
    ranks.rank = ranks.local_rank = 0
    ranks.size = ranks.local_size = 1
    return ranks


def single(task: Task, argv: list[str]) -> tuple[list[float], list[float]]:
    """What one process finds."""
    size = os.environ.pop("WORLD_SIZE")
    found = learn(begin(task, argv, alone()))
    os.environ["WORLD_SIZE"] = size
    return found


def batch_norm_sees_each_micro_batch_once(ranks: Ranks, schedule: str) -> None:
    """A pipeline of 4 micro-batches has the statistics of one process that takes the batch in 4 parts, and no others.

    In the first pass of its schedule torch runs each stage once more, on memory that nobody has written.
    """
    own = [f"--{key}={value}" for key, value in OWN["resnet50"].items()]  # it has batch norm in all stages
    task, batch = quiet("resnet50", (nn.Dropout,)), ["--task", "resnet50", "--batch-size", "32", *own]
    argv = [*batch, "--strategy", "pipeline", "--schedule", schedule, "--microbatches", "4"]
    piped = begin(task, argv, ranks)
    (found, _), seen = learn(piped), dict(piped.step.model.named_buffers())
    size = os.environ.pop("WORLD_SIZE")
    unsplit = begin(task, [*batch, "--accumulate", "4"], alone())
    os.environ["WORLD_SIZE"] = size
    (right, _), wanted = learn(unsplit), dict(unsplit.step.model.named_buffers())
    counts = {name: int(value) for name, value in seen.items() if name.endswith("num_batches_tracked")}
    assert set(counts.values()) == {STEPS * 4}, f"{counts}, not {STEPS} steps x 4 micro-batches"
    for name, value in seen.items():
        assert torch.allclose(value, wanted[name], rtol=1e-4, atol=1e-6), f"{name}: {value}, not {wanted[name]}"
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-6)


def what_gpus_get_works(ranks: Ranks) -> None:
    """Channels last and the optimizer in one kernel, which GPUs get, change nothing for models that are cut."""
    for name, strategy in (("digits", "fsdp"), ("digits", "tp"), ("resnet50", "fsdp")):
        argv = ["--task", name, "--batch-size", "32", *(f"--{key}={value}" for key, value in OWN.get(name, {}).items())]
        task = quiet(name)
        right, norms = single(task, argv)
        step.FUSED_ON = ("cuda", "cpu")
        try:
            found = learn(begin(task, [*argv, "--strategy", strategy], ranks))
        finally:
            step.FUSED_ON = ("cuda",)
        worst = off(found[0], right), off(found[1], norms)
        ranks.log(f"{name} {strategy} as on a GPU: off by {worst[0]:.1e} at most, gradients by {worst[1]:.1e}")
        assert max(worst) < NORM_TOLERANCE


def bad_steps_are_left_out(ranks: Ranks) -> None:
    """`--on-nan skip` under strategies whose ranks hold parts: all leave out a step that is bad on one of them."""
    for strategy, fast in (("fsdp", ("cuda", "cpu")), ("fsdp", ("cuda",)), ("tp", ("cuda", "cpu")), ("pipeline", ())):
        step.FUSED_ON = fast
        try:
            loop = begin(quiet("digits"), ["--strategy", strategy, "--on-nan", "skip"], ranks)
            batches = loop.batches.load(0, 0)
            loop.step.train_step(batches, 0, 100)
            before = [full_tensor(value).clone() for value in loop.step.model.state_dict().values()]
            inputs, targets = next(batches)
            if ranks.rank == 1 or strategy != "fsdp":  # elsewhere ranks share the samples
                inputs = inputs * float("nan")
            loop.step.train_step(iter([(inputs, targets)]), 1, 100)
            after = [full_tensor(value).clone() for value in loop.step.model.state_dict().values()]
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), f"{strategy} {fast}"
            assert ranks.all_gather(loop.step.finite_watch.skipped_steps) == [1] * ranks.size
            loop.step.train_step(batches, 2, 100)
            now = [full_tensor(value) for value in loop.step.model.state_dict().values()]
            assert not all(torch.equal(a, b) for a, b in zip(after, now, strict=True)), "and then it goes on"
            assert all(bool(torch.isfinite(value).all()) for value in now)
        finally:
            step.FUSED_ON = ("cuda",)


def bf16_is_gathered(ranks: Ranks) -> None:
    """fsdp computes with bf16 weights that it gathered as such, keeps float32 ones, and learns what bf16 learns."""
    argv = ["--task", "gpt", "--batch-size", "32", "--amp", "bf16"]
    right, _ = single(quiet("gpt"), argv)
    loop, seen = begin(quiet("gpt"), [*argv, "--strategy", "fsdp"], ranks), set()
    for layer in loop.step.model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda layer, _: seen.add(layer.weight.dtype))
    found, _ = learn(loop)
    assert seen == {torch.bfloat16}
    assert {value.dtype for value in loop.step.model.state_dict().values()} == {torch.float32}
    ranks.log(f"gpt fsdp --amp bf16: off by {off(found, right):.1e} at most")
    assert off(found, right) < BF16_TOLERANCE


def compiled(argv: list[str], ranks: Ranks, before: Callable[[Loop], None]) -> tuple[list[int], list[float]]:
    """How many operations each graph has that one training is compiled into, and the losses."""
    graphs: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(len(graph.graph.nodes))
        made: Callable[..., object] = aot_eager(graph, inputs)
        return made

    torch._dynamo.reset()
    hardware.COMPILE_BACKEND, first = count, getattr(dist, FIRST_BUCKET)
    try:
        loop = begin(quiet(argv[1]), [*argv, "--compile"], ranks)
        before(loop)
        assert not graphs, "what is tried before training leaves no graph behind"
        return graphs, learn(loop)[0]
    finally:
        hardware.COMPILE_BACKEND = "inductor"
        setattr(dist, FIRST_BUCKET, first)


def graphs_are_few_and_right(ranks: Ranks) -> None:
    """ddp: one graph, and one per bucket where there are several. fsdp: one per kind of layer, and the loss."""
    batch = ["--batch-size", "32"]
    for name in ("digits", "gpt"):
        argv = ["--task", name, *batch, "--accumulate", "2"]
        right, _ = single(quiet(name), argv)

        def tried(loop: Loop) -> None:
            loop.strategy.forward_backward_alone(loop.step, *next(loop.batches.load(0, 0)))
            loop.step.optimizer.zero_grad()
            loop.step.loss.restore((0.0, 0))

        def cut_small(loop: Loop) -> None:
            tried(loop)
            setattr(dist, FIRST_BUCKET, 1 << 12)
            loop.step.wrapped.bucket_bytes_cap = 1 << 12  # type: ignore[assignment]

        one, found = compiled([*argv, "--strategy", "ddp"], ranks, tried)
        assert len(one) == 1, f"{name} under ddp: graphs of {one} operations"
        assert off(found, right) < TOLERANCE
        pieces, found = compiled([*argv, "--strategy", "ddp"], ranks, cut_small)
        assert len(pieces) > 1, f"{name}: with several buckets still one graph of {pieces} operations"
        assert off(found, right) < TOLERANCE
        shards, found = compiled([*argv, "--strategy", "fsdp"], ranks, lambda _: None)
        assert off(found, right) < TOLERANCE
        ranks.log(f"{name} compiled: ddp {one}, by buckets {pieces}, fsdp {shards}")
        kinds = {"digits": 4, "gpt": 1}[name]
        assert len(shards) == kinds + 1, f"{name} under fsdp: graphs of {shards} operations"


def between_groups_once(ranks: Ranks) -> None:
    """hsdp reduces between groups once per step and unit, not at every part of the step."""
    argv = ["--task", "digits", "--batch-size", "32", "--strategy", "hsdp", "--shard", "2"]
    real, seen, counted = dist.all_reduce, [], {}

    def counting(tensor: torch.Tensor, *args: Any, **named: Any) -> Any:
        seen.append(tensor.numel())
        return real(tensor, *args, **named)

    setattr(dist, "all_reduce", counting)  # noqa: B010
    try:
        for parts in (1, 4):
            loop = begin(quiet("digits"), [*argv, "--accumulate", str(parts)], ranks)
            seen.clear()
            loop.step.train_step(loop.batches.load(0, 0), 0, 100)
            counted[parts] = list(seen)
    finally:
        setattr(dist, "all_reduce", real)  # noqa: B010
    ranks.log(f"hsdp, numbers per all-reduce in 1 and in 4 parts: {counted}")
    assert len(counted[1]) == len(counted[4]) == 4, "one for each of the four layers"


def blocks_nobody_described_are_found(ranks: Ranks) -> None:
    """A model of one's own under fsdp: each of its repeated blocks is a unit, and it learns the same."""
    argv = ["--task", "gpt", "--batch-size", "32"]
    right, _ = single(quiet("gpt"), argv)
    loop = begin(replace(quiet("gpt"), layers=None), [*argv, "--strategy", "fsdp"], ranks)
    units = [name for name, module in loop.step.model.named_modules() if isinstance(module, FSDPModule)]
    assert units == ["", *(f"layers.{number}" for number in range(4))], units
    assert off(learn(loop)[0], right) < TOLERANCE


def joined(ranks: Ranks, backend: str = "auto") -> None:
    """All checks share one process group."""


def main() -> None:
    ranks = Ranks()
    ranks.init_process_group()
    exit_on_uncaught_errors()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    setattr(Ranks, "init_process_group", joined)  # noqa: B010
    chosen = sys.argv[1:]
    expected: dict[tuple[str, bool], tuple[list[float], list[float]]] = {}
    for name, strategy, flags in CHECKS[ranks.size]:
        if chosen and f"{name}-{strategy}" not in chosen:
            continue
        began = time.monotonic()
        task, clip = quiet(name), "--clip-norm" in flags
        batch = [
            "--task",
            name,
            "--batch-size",
            "32",
            *(f"--{key}={value}" for key, value in OWN.get(name, {}).items()),
        ]
        if (name, clip) not in expected:
            expected[name, clip] = single(task, [*batch, *(["--clip-norm", "0.5"] if clip else [])])
        found, norms = learn(begin(task, [*batch, "--strategy", strategy, *flags.split()], ranks))
        right, right_norms = expected[name, clip]
        worst, of_norms = off(found, right), off(norms, right_norms)
        said = f"off by {worst:.1e} at most, gradients by {of_norms:.1e}"
        ranks.log(f"{name} {strategy} {flags}: {said}, {time.monotonic() - began:.2f} s")
        assert worst < TOLERANCE, f"{name} {strategy} {flags}: {found}, alone {right}"
        assert of_norms < NORM_TOLERANCE, f"{name} {strategy} {flags}: gradients {norms}, alone {right_norms}"
    if ranks.size == 2 and (not chosen or "batch-norm" in chosen):
        for schedule in ("gpipe", "1f1b"):
            batch_norm_sees_each_micro_batch_once(ranks, schedule)
            ranks.log(f"batch norm in a pipeline, {schedule}: each micro-batch once")
    if ranks.size == 2 and (not chosen or "fast" in chosen):
        what_gpus_get_works(ranks)
        bad_steps_are_left_out(ranks)
        blocks_nobody_described_are_found(ranks)
        bf16_is_gathered(ranks)
    if ranks.size == 2 and (not chosen or "compile" in chosen):
        graphs_are_few_and_right(ranks)
    if ranks.size == 4 and (not chosen or "hsdp-count" in chosen):
        between_groups_once(ranks)
    os.write(1, f"all checks passed on rank {ranks.rank}\n".encode())
    ranks.exit()


if __name__ == "__main__":
    main()
