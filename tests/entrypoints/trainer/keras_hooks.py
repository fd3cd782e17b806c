"""Keras, imported once by the fork server of test_keras.py, and a function called in each rank
before it trains.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

torch.set_num_threads(1)
keras_mnist: Any = import_module("cloudtrain_trainer.tasks.keras_mnist")
keras_mnist.load_keras()


def save_statistics(rank: int) -> None:
    """Save batch norm's statistics of each evaluation to a file."""
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
        outputs: Tensor = call(model, inputs, training)
        return outputs

    keras_mnist.build = lambda *args, **options: replace(
        build(*args, **options), call=call_and_save
    )
