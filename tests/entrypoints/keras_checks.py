"""Run by test_keras.py as a program of its own: trainings of keras-mnist by forked ranks, and what they saw.

It imports Keras once for all of them, which takes longer than the trainings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.entrypoints.forked import Group

FLAGS = "--task keras-mnist --data digits --batch-size 64"


def watching(training: bool | None = None) -> Callable[[int], None]:
    """Keep the statistics of batch norm that each evaluation used, in files. `training`: tell Keras always this."""

    def before(rank: int) -> None:
        keras_mnist: Any = import_module("cloudtrain_trainer.tasks.keras_mnist")
        build, call, statistics = keras_mnist.build, keras_mnist.call, keras_mnist.statistics
        seen: list[list[Tensor]] = []
        called: list[bool] = []

        def watched(model: nn.Module, inputs: Tensor, is_training: bool) -> Tensor:
            called.append(is_training)
            if called[-2:] == [True, False]:  # the first batch of an evaluation
                seen.append([value.detach().clone() for value in statistics(model)])
                torch.save(seen, f"statistics-{rank}.pt")
            outputs: Tensor = call(model, inputs, is_training if training is None else training)
            return outputs

        keras_mnist.build = lambda *args, **options: replace(build(*args, **options), call=watched)

    return before


def apart(rank: int) -> None:
    """As `watching`, and nothing makes the ranks' statistics equal."""
    watching()(rank)
    ddp: Any = import_module("cloudtrain_trainer.strategies.ddp")

    def leave(strategy: Any, statistics: Sequence[Tensor]) -> None:
        pass

    ddp.DistributedData.average_statistics = leave


RUNS: dict[str, tuple[int, int, Callable[[int], None]]] = {
    "together": (2, 4, watching()),
    "alone": (1, 4, watching()),
    "never told of training": (2, 1, watching(training=False)),
    "never averaged": (2, 1, apart),
}
"""The ranks, the epochs, and what is done to each rank before it trains."""


def main(folder: Path) -> None:
    for name in ("loop", "memory", "strategies.ddp", "tasks.keras_mnist"):
        import_module(f"cloudtrain_trainer.{name}")
    for name in ("train", "torch._dynamo"):
        import_module(name)
    import_module("cloudtrain_trainer.tasks.keras_mnist").load_keras()
    torch.set_num_threads(1)
    for run, (ranks, epochs, before) in RUNS.items():
        group = Group(folder / run, ranks, f"{FLAGS} --epochs {epochs}", before)
        group.succeed()
        metrics = [event["values"] for event in group.events("metrics")]
        (folder / run / "metrics.json").write_text(json.dumps(metrics))
        print(run, metrics[-1]["val_accuracy"], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
