"""What `bench_forecast.py` trains: a task for the shared trainer, and a program of its own, of one
of several kinds.

Both take as many steps as fit into about `$FORECAST_SECONDS`. `$FORECAST_KIND` says what is special
about them, and `$FORECAST_SEED` how long they are, and how many make an epoch.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator

KIND = os.environ.get("FORECAST_KIND", "constant")
SECONDS = float(os.environ.get("FORECAST_SECONDS", "60"))
RANDOM = random.Random(int(os.environ.get("FORECAST_SEED", "0")))
STEP = 0.04 * 5 ** RANDOM.random()
"""Seconds of a usual step, 40 to 200 ms: it waits for them as for a GPU, so that runs beside it do
not slow it.
"""


def task(seed: int):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """The task for the trainer."""
    import torch
    from torch import nn
    from torch.utils.data import Dataset

    from cloudtrain_trainer.tasks import Task

    width = 512 if KIND == "checkpoints" else 64
    epochs = RANDOM.randint(4, 9)
    batch = 16
    step = STEP / 4 if KIND == "busy" else STEP
    steps = max(
        8, int(SECONDS / step / epochs * (1 - _evaluation_share() / (1 + _evaluation_share())))
    )

    class Data(Dataset):  # type: ignore[type-arg]
        def __init__(self, length: int) -> None:
            self.length = length

        def __len__(self) -> int:
            return self.length

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if "loader" in KIND and index % batch == 0:
                time.sleep(
                    step
                    * (
                        RANDOM.expovariate(1)
                        if KIND == "erratic-loader"
                        else RANDOM.uniform(0.5, 1.5)
                    )
                )
            return torch.full((width,), index / self.length), index % 10

    class Net(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 10)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            spend(step if self.training else step / 3)
            y: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return y

    calls = Steps()

    def spend(seconds: float) -> None:
        if KIND == "busy":
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
        elif "loader" not in KIND:
            time.sleep(seconds * calls.factor())

    validation = Data(max(batch, int(steps * batch * 3 * _evaluation_share())))
    return Task(
        model=Net, train=Data(steps * batch), validation=validation, epochs=epochs, batch_size=batch, lr=1e-3,
        loss=nn.functional.cross_entropy, metrics={},
    )  # fmt: skip


def _evaluation_share() -> float:
    """Seconds of an evaluation as a part of an epoch's."""
    return {"evaluation": 0.15, "frequent-evaluation": 0.3, "announced": 0.15}.get(KIND, 0.02)


class Steps:
    """How much longer than usual each step takes."""

    def __init__(self) -> None:
        self.done = 0
        self.began = time.monotonic()

    def factor(self) -> float:
        """Of the next step."""
        self.done += 1
        share = (time.monotonic() - self.began) / SECONDS
        return {
            "warm-up": 8.0 if self.done <= 8 else 1.0,
            "growing": 0.8 + 0.4 * share,
            "lengths": RANDOM.choice((0.6, 0.8, 1.0, 1.6)),
            "erratic-lengths": RANDOM.choice((0.25, 0.5, 1.0, 2.25)),
            "stalls": 20.0 if RANDOM.random() < 0.01 else 0.9,
            "sorted": 0.7 + 0.6 * ((share * 8) % 1),
        }.get(KIND, RANDOM.gauss(1, 0.05))


def main() -> None:
    """The program: no trainer, and progress told step by step, or every 20 steps."""
    from cloudtrain_job import activity, log_metrics, log_progress, log_schedule

    calls = Steps()
    steps = int(SECONDS / STEP / (1 + _evaluation_share()))
    epoch = max(1, steps // RANDOM.randint(4, 9))
    every = 20 if KIND == "seldom" else 1
    told: Callable[[str], Iterator[None]] = activity  # type: ignore[assignment]
    if KIND == "announced":
        samples = round(100 * 3 * epoch * _evaluation_share())  # forward passes alone, of three
        log_schedule(evaluations=steps // epoch, evaluation_samples=samples, step_samples=100)
    for step in range(1, steps + 1):
        time.sleep(STEP * calls.factor())
        if step % every == 0 or step == steps:
            log_progress(step, steps, epoch=math.ceil(step / epoch))
        if step % epoch == 0 and KIND in ("evaluation", "announced"):
            with told("evaluating"):  # type: ignore[attr-defined]
                time.sleep(STEP * epoch * _evaluation_share())
            log_metrics(step=step, val_loss=1 / step)
        if step % epoch == 0 and KIND == "untold":
            time.sleep(STEP * epoch * 0.1)
        if KIND == "checkpoints" and step % max(1, epoch // 3) == 0:
            with told("saving"):  # type: ignore[attr-defined]
                time.sleep(STEP * epoch * 0.03)


if __name__ == "__main__":
    main()
