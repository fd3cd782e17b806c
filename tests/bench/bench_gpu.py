"""The shared trainer on GPUs: GPT-2 124M on synthetic data, against a hand-written
loop and Accelerate.

One rank per GPU, bf16, fused AdamW; windows of the three take turns, each on a separate model.
Prints tokens per second over all GPUs, the ratio to the hand-written loop of the same round, and
MFU if the GPU's peak is known. All run eagerly; on a GPU the trainer also runs compiled. Without a
GPU it prints a note and measures nothing; `--rehearse` runs tiny sizes on the CPU, to see that it
works.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.bench_trainer import ROOT, hush
from tests.bench.measure import quartiles

WARM = 5
LOADS = {
    "gpt2-124m": ["--task", "gpt", "--size", "gpt2-124m", "--data", "synthetic"],
}
PER_GPU = {"gpt2-124m": 16}
TINY = {
    "gpt2-124m": ["--task", "gpt", "--size", "tiny"],
}

Window = Callable[[], float]
"""Runs its steps; the seconds of those after the first few."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, help="sequences per GPU; default: 16")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    if "RANK" in os.environ:
        measure(options)
    import torch

    gpus = torch.cuda.device_count()
    if not gpus and not options.rehearse:
        print("no GPU is visible here: nothing to measure")
        return 0
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "entrypoints", ROOT / "entrypoints" / "job")))
    ranks = f"--nproc-per-node={gpus or 1}"
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        ranks,
        __file__,
        *sys.argv[1:],
    ]
    return subprocess.run(
        argv, env={**os.environ, "PYTHONPATH": paths}, timeout=3600, check=False
    ).returncode


def measure(options: argparse.Namespace) -> None:
    """One rank; rank 0 prints the tables."""
    from cloudtrain_trainer import hardware
    from cloudtrain_trainer.ranks import Ranks

    hush()
    ranks = Ranks()
    ranks.init_process_group()
    figures: dict[str, Any] = {"device": hardware.device_name(ranks.device), "ranks": ranks.size}
    ranks.log(
        f"{ranks.size} x {figures['device']}, bf16, {options.steps} steps per window,"
        f" {options.rounds} rounds"
    )
    for load in LOADS:
        figures[load] = measure_load(ranks, load, options)
    if ranks.rank == 0 and options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    ranks.exit()


def measure_load(ranks: Any, load: str, options: argparse.Namespace) -> dict[str, Any]:
    """One load under each loop, in turns. `options`: of `main`."""
    from cloudtrain_trainer.arguments import parse

    batch = options.batch or (4 if options.rehearse else PER_GPU[load])
    strategy = "ddp" if ranks.size > 1 else "single"
    flags = (TINY if options.rehearse else LOADS)[load]
    parsed = parse([*flags, "--batch-size", str(batch * ranks.size), "--strategy", strategy, "--amp", "bf16",
                    "--epochs", "100000", "--probe-memory", "no", "--compile", "no"])  # fmt: skip
    return compared(ranks, parsed, batch, options)


def compared(ranks: Any, parsed: Any, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """One load under each loop, in turns."""
    from cloudtrain_trainer import hardware
    from cloudtrain_trainer.own_task import from_options

    task = from_options(parsed)
    ways = {
        "hand": by_hand(ranks, task, batch, options.steps),
        "ours": with_trainer(ranks, task, parsed, options.steps),
    }
    if ranks.device.type == "cuda":
        compiled = replace(parsed, compile="auto")
        ways["ours, compiled"] = with_trainer(ranks, task, compiled, options.steps)
    with suppress(ImportError):
        ways["accelerate"] = with_accelerate(ranks, task, batch, options.steps)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds = ways[name]()
            if number:  # the first round warms up
                taken[name].append(seconds)
    units = batch * ranks.size * options.steps * (task.tokens or 1)
    peak = hardware.peak_flops(hardware.device_name(ranks.device), "bf16") * ranks.size
    unit = "tokens" if task.tokens else task.unit
    ranks.log(
        f"\n{parsed.task}, {batch} per GPU\n| loop | {unit}/s | rate / hand's | MFU"
        " |\n|---|---|---|---|"
    )
    windows: dict[str, Any] = {}
    for name, seconds_of in taken.items():
        rate = statistics.median(units / seconds for seconds in seconds_of)
        low, middle, high = quartiles(
            [h / t for h, t in zip(taken["hand"], seconds_of, strict=True)]
        )
        mfu = rate / (task.tokens or 1) * task.flops / peak if peak else 0.0
        windows[name] = {f"{unit}_per_s": rate, "ratio": [low, middle, high], "mfu": mfu}
        ranks.log(
            f"| {name} | {rate:,.0f} | {middle:.3f} [{low:.3f}-{high:.3f}] |"
            f" {f'{mfu:.1%}' if mfu else '-'} |"
        )
    return windows


def training(ranks: Any, task: Any, parsed: Any, folder: Path) -> Any:
    """The trainer's loop before its first step. `folder`: of its checkpoints."""
    from cloudtrain_trainer import strategies
    from cloudtrain_trainer.checkpoints.store import CheckpointStore
    from cloudtrain_trainer.sigterm import Stop
    from cloudtrain_trainer.training.loop import Loop

    return Loop(
        task, strategies.build(ranks, parsed), parsed, CheckpointStore(folder, 1, ranks), Stop()
    )


def with_trainer(ranks: Any, task: Any, parsed: Any, steps: int) -> Window:
    loop = training(ranks, task, parsed, Path(ranks.all_gather(tempfile.mkdtemp())[0]))

    def window() -> float:
        advance(loop, WARM)
        wait(ranks)
        begun = time.perf_counter()
        advance(loop, steps)
        wait(ranks)
        return time.perf_counter() - begun

    return window


def advance(loop: Any, steps: int) -> None:
    """Train this many more steps, over the ends of epochs: evaluations do not count."""
    loop.steps = loop.position.step + steps
    while loop.position.step < loop.steps:
        loop._train_epoch()
        if loop.position.samples == loop.batches.samples_per_epoch:
            loop.position = type(loop.position)(loop.position.step, loop.position.epoch + 1, 0)


def by_hand(ranks: Any, task: Any, batch: int, steps: int) -> Window:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    net = on_device(ranks, task)
    optimizer = torch.optim.AdamW(net.parameters(), task.lr, fused=ranks.device.type == "cuda")
    if ranks.size > 1:
        net = DistributedDataParallel(
            net, device_ids=[ranks.local_rank], gradient_as_bucket_view=True
        )
    return stepping(ranks, task, net, optimizer, batch, steps, lambda loss: loss.backward())


def with_accelerate(ranks: Any, task: Any, batch: int, steps: int) -> Window:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=ranks.device.type == "cpu")
    net = on_device(ranks, task)
    optimizer = torch.optim.AdamW(net.parameters(), task.lr, fused=ranks.device.type == "cuda")
    net, optimizer = accelerator.prepare(net, optimizer)
    return stepping(ranks, task, net, optimizer, batch, steps, accelerator.backward)


def on_device(ranks: Any, task: Any) -> Any:
    import torch

    net = task.model().to(ranks.device)
    on_gpu = task.channels_last and ranks.device.type == "cuda"
    return net.to(memory_format=torch.channels_last) if on_gpu else net


def stepping(
    ranks: Any,
    task: Any,
    net: Any,
    optimizer: Any,
    batch: int,
    steps: int,
    backward: Callable[[Any], None],
) -> Window:
    """Return the common hand-written loop, with prepared batches: the reference does not include
    loading.
    """
    import torch

    from cloudtrain_trainer.tasks import Draw

    inputs, targets = (t.to(ranks.device) for t in task.train[Draw(0, list(range(batch)))])
    if task.channels_last and ranks.device.type == "cuda":
        inputs = inputs.to(memory_format=torch.channels_last)
    inputs = inputs if task.on_device is None else task.on_device(inputs)

    def run(count: int) -> None:
        net.train()
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(ranks.device.type, torch.bfloat16):
                loss = task.loss(net(inputs), targets)
            backward(loss)
            optimizer.step()

    def window() -> float:
        run(WARM)
        wait(ranks)
        begun = time.perf_counter()
        run(steps)
        wait(ranks)
        return time.perf_counter() - begun

    return window


def wait(ranks: Any) -> None:
    """Until every GPU has done what it was given."""
    import torch

    if ranks.device.type == "cuda":
        torch.cuda.synchronize()
    ranks.barrier()


if __name__ == "__main__":
    sys.exit(main())
