"""Keras, imported once by the fork server of test_keras.py, and functions called in each rank
before it trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

torch.set_num_threads(1)
keras_mnist: Any = import_module("cloudtrain_trainer.tasks.keras_mnist")
keras_mnist.load_keras()


def save_statistics(rank: int, always_training: bool | None = None) -> None:
    """Save batch norm's statistics of each evaluation to a file. `always_training`: passed to Keras
    in every call.
    """
    build = keras_mnist.build
    call = keras_mnist.call
    statistics = keras_mnist.statistics
    evaluations: list[list[Tensor]] = []
    calls: list[bool] = []

    def call_and_save(model: nn.Module, inputs: Tensor, training: bool) -> Tensor:
        calls.append(training)
        if calls[-2:] == [True, False]:  # the first batch of an evaluation
            evaluations.append([value.detach().clone() for value in statistics(model)])
            torch.save(evaluations, f"statistics-{rank}.pt")
        outputs: Tensor = call(
            model, inputs, training if always_training is None else always_training
        )
        return outputs

    keras_mnist.build = lambda *args, **options: replace(
        build(*args, **options), call=call_and_save
    )


def never_training(rank: int) -> None:
    """The same, with `training=False` in every call."""
    save_statistics(rank, always_training=False)


def without_averaging(rank: int) -> None:
    """The same, and the statistics are not averaged over the ranks."""
    save_statistics(rank)
    ddp: Any = import_module("cloudtrain_trainer.strategies.ddp")

    def do_nothing(strategy: Any, statistics: Sequence[Tensor]) -> None:
        pass

    ddp.DistributedData.average_statistics = do_nothing
