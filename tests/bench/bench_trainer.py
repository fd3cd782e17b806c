"""The shared trainer's step under ddp against hand-written DDP loops and Accelerate.

All in one job of two ranks, so that they share processes and noise: windows of equally many steps
take turns, the order rotating, and each round gives one ratio to the hand-written loop of that
round. That loop is there twice: the second one's distance from 1 is the noise. Rates: a ratio above
1 is faster than by hand. Accelerate is left out if it is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import quartiles

ROOT = Path(__file__).resolve().parents[2]
PER_RANK = 32
WARM = 5
PLAIN = "hand, sample by sample"
OWN = "ours, a user's data"
BARS = {"ours": ("hand", 0.98), OWN: (PLAIN, 0.95)}
"""Loop to compare it with, and the least rate by CPU time."""

Window = Callable[[], tuple[float, float]]
"""Runs its steps; wall and CPU seconds of those after the first few."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    if "RANK" in os.environ:
        measure(options.steps, options.rounds, options.json)
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        __file__,
        *sys.argv[1:],
    ]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "entrypoints", ROOT / "entrypoints" / "job")))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run(argv, env=env, timeout=1800, check=False).returncode


def measure(steps: int, rounds: int, file: Path | None) -> None:
    """One rank of the job; rank 0 prints the table."""
    warnings.filterwarnings("ignore")
    import torch.distributed as dist

    from cloudtrain_trainer.ranks import Ranks, configure_threads

    ranks = Ranks()
    configure_threads(ranks)
    ranks.init_process_group("gloo")
    ways: dict[str, Window] = {}
    with suppress(ImportError):
        from accelerate import Accelerator

        # It takes the existing process group.
        ways["accelerate"] = loop(*with_accelerate(Accelerator(cpu=True)), steps)
    ways = {
        "hand": loop(*by_hand(batched=True), steps),
        "hand again": loop(*by_hand(batched=True), steps),
        PLAIN: loop(*by_hand(batched=False), steps),
        "ours": with_trainer(ranks, steps),
        OWN: with_trainer(ranks, steps, own=True),
        **ways,
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            window = ways[name]()
            if number:  # the first round warms up
                taken[name].append(window)
    if dist.get_rank() == 0:
        report(taken, steps, rounds, file)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def report(
    taken: dict[str, list[tuple[float, float]]], steps: int, rounds: int, file: Path | None
) -> None:
    print(
        f"2 ranks, batch {PER_RANK} per rank, {steps} steps per window, {rounds} rounds; rate /"
        " rate of the loop it is compared with"
    )
    print("| loop | CPU | wall | steps per s | compared with |\n|---|---|---|---|---|")
    figures: dict[str, Any] = {}
    for name, costs in taken.items():
        cells = []
        reference, bar = BARS.get(name, ("hand", None))
        for index in (1, 0):
            low, middle, high = quartiles(
                [h[index] / t[index] for h, t in zip(taken[reference], costs, strict=True)]
            )
            cells.append(f"{middle:.3f} [{low:.3f}-{high:.3f}]")
            figures.setdefault(name, {})["cpu" if index else "wall"] = [low, middle, high]
        rate = statistics.median(steps / wall for wall, _ in costs)
        aim = f"{reference}, bar {bar}" if bar else reference
        print(f"| {name} | {cells[0]} | {cells[1]} | {rate:.0f} | {aim} |", flush=True)
    if file:
        file.write_text(
            json.dumps({"steps": steps, "rounds": rounds, "rates": figures}, indent=2) + "\n"
        )


def samples() -> tuple[Any, Any]:
    """The digits, many times over: an epoch that no window reaches the end of."""
    from cloudtrain_trainer.tasks.digits import read

    images, labels = read()
    return images.repeat(60, 1, 1, 1), labels.repeat(60)


def model() -> Any:
    import torch

    from cloudtrain_trainer.tasks.digits import model as digits

    torch.manual_seed(0)
    return digits()


def loss_of(outputs: Any, labels: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(outputs, labels)


def adam(net: Any) -> Any:
    import torch

    return torch.optim.AdamW(net.parameters(), 1e-3)


class Rows:
    """A data set as a user writes it."""

    def __init__(self) -> None:
        self.images, self.labels = samples()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        return self.images[index], self.labels[index]


def loop(
    net: Any, optimizer: Any, batches: Any, backward: Callable[[Any], None], steps: int
) -> Window:
    """The loop that everybody writes, with a schedule."""
    import torch
    import torch.distributed as dist

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        getattr(optimizer, "optimizer", optimizer), 100_000
    )

    def window() -> tuple[float, float]:
        net.train()
        begun = clocks()
        for number, (images, labels) in enumerate(batches):
            if number == WARM:
                dist.barrier()
                begun = clocks()
            optimizer.zero_grad()
            backward(loss_of(net(images), labels))
            optimizer.step()
            schedule.step()
            if number == WARM + steps - 1:
                break
        return since(begun)

    return window


def by_hand(*, batched: bool) -> tuple[Any, Any, Any, Callable[[Any], None]]:
    """`batched`: the fastest that one can write: samples are taken from memory a batch at a time."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

    net = DistributedDataParallel(model(), gradient_as_bucket_view=True)
    data: Any = Rows()
    sampler: Any = DistributedSampler(data)
    if batched:
        batches = DataLoader(
            data, sampler=BatchSampler(sampler, PER_RANK, drop_last=True), batch_size=None
        )
    else:
        batches = DataLoader(data, PER_RANK, sampler=sampler, drop_last=True)
    return net, adam(net), batches, lambda loss: loss.backward()


def with_accelerate(accelerator: Any) -> tuple[Any, Any, Any, Callable[[Any], None]]:
    from torch.utils.data import DataLoader

    net = model()
    batches = DataLoader(cast(Any, Rows()), PER_RANK, shuffle=True, drop_last=True)
    return (*accelerator.prepare(net, adam(net), batches), accelerator.backward)


def with_trainer(ranks: Any, steps: int, *, own: bool = False) -> Window:
    """The trainer's own loop, whole: agreeing, counting, reporting and looking at the clock
    included. `own`: with a user's model, data and loss.
    """
    import tempfile
    from dataclasses import replace

    import torch.distributed as dist

    from cloudtrain_trainer.arguments import parse
    from cloudtrain_trainer.checkpoints.store import CheckpointStore
    from cloudtrain_trainer.own_task import complete
    from cloudtrain_trainer.sigterm import Stop
    from cloudtrain_trainer.tasks import Task, digits
    from cloudtrain_trainer.training.loop import Loop
    from cloudtrain_trainer.training.run import Position

    options = parse(
        ["--batch-size", str(PER_RANK * 2), "--epochs", "100", "--lr-schedule", "cosine"]
    )
    task = replace(digits.build(0), model=model, train=digits.Images(*samples()))
    if own:
        task = complete(Task(model=model, train=Rows(), loss=loss_of), 0, "bench")
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    made = Loop(task, ranks, options, CheckpointStore(Path(folder[0]), 1, ranks), Stop())
    train_step = made.step.train_step
    begun = (0.0, 0.0)
    number = 0

    def counted(batches: Iterator[Any], step: int, steps: int) -> None:
        nonlocal begun, number
        if number == WARM:
            dist.barrier()
            begun = clocks()
        number += 1
        train_step(batches, step, steps)

    made.step.train_step = counted  # type: ignore[method-assign]
    hush()

    def window() -> tuple[float, float]:
        nonlocal number
        number = 0
        # A separate epoch, like the others.
        made.position = Position(made.position.step, made.position.epoch + 1)
        made.steps = made.position.step + WARM + steps
        made.train_epoch()
        return since(begun)

    return window


def hush() -> None:
    """Events are written, but not to the screen."""
    from cloudtrain_job import set_output

    set_output(os.open(os.devnull, os.O_WRONLY))


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(begun: tuple[float, float]) -> tuple[float, float]:
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


if __name__ == "__main__":
    sys.exit(main())
