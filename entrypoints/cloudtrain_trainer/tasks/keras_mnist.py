"""A Keras 3 model on its torch backend, trained by the same loop: MNIST, or digits.

Keras differs from torch in two ways that make training on several processes go wrong unnoticed. Its
layers take `training` as an argument of the call and ignore torch's `train()` and `eval()`: without
it, batch norm updates no statistics and dropout is off. Batch norm's moving statistics are torch
Parameters without gradients, not buffers, so no wrapper makes them equal on all ranks. `statistics`
returns them; Keras' integer seeds are not among them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task, digits


def load_keras() -> Any:
    """Return the module keras on the torch backend.

    Its first import takes seconds and fixes the backend. Raise `Refused` if it is not installed, or
    was imported with another backend.
    """
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "torch"

    try:
        keras: Any = import_module("keras")
    except ModuleNotFoundError as missing:
        if missing.name != "keras":
            raise

        raise Refused(
            "--task keras-mnist needs Keras 3, which is not installed: pip install 'keras>=3.10'"
        ) from None

    if keras.backend.backend() != "torch":
        raise Refused(
            f"Keras was imported with the backend {keras.backend.backend()}: set"
            " KERAS_BACKEND=torch before"
        )

    return keras


def model() -> nn.Module:
    """Return a model: (batch, 1, 28, 28) -> logits (batch, 10). Raise `Refused` without Keras."""
    keras = load_keras()
    # Else each further model gets other names in its state.
    keras.utils.clear_session(free_memory=False)
    # Keras has its own generator for initial weights: seeded from torch's, they are the same on all
    # ranks.
    keras.utils.set_random_seed(int(torch.randint(2**31, (), device="cpu")))
    layers = keras.layers
    first = {"data_format": "channels_first"}
    image = outputs = keras.Input((1, digits.PIXELS, digits.PIXELS), name="image")

    for layer in (
        layers.Conv2D(16, 3, padding="same", use_bias=False, name="conv1", **first),
        layers.BatchNormalization(axis=1, momentum=0.9, name="norm1"),
        layers.ReLU(name="relu1"),
        layers.MaxPooling2D(2, name="pool1", **first),
        layers.Conv2D(32, 3, padding="same", use_bias=False, name="conv2", **first),
        layers.BatchNormalization(axis=1, momentum=0.9, name="norm2"),
        layers.ReLU(name="relu2"),
        layers.MaxPooling2D(2, name="pool2", **first),
        layers.Flatten(name="flat", **first),
        layers.Dropout(0.25, name="dropout"),
        layers.Dense(64, activation="relu", name="hidden"),
        layers.Dense(digits.CLASSES, name="digit"),
    ):
        outputs = layer(outputs)

    return keras.Model(image, outputs, name="keras_mnist")  # type: ignore[no-any-return]


def call(model: nn.Module, inputs: Tensor, training: bool) -> Tensor:
    """Return logits of shape (batch, 10); wrappers such as DDP pass the named argument on."""
    outputs: Tensor = model(inputs, training=training)
    return outputs


def statistics(model: nn.Module) -> Sequence[Tensor]:
    """Return batch norm's moving means and variances, each of shape (channels,)."""
    values = [variable.value for variable in model.non_trainable_variables]  # type: ignore[union-attr]
    return [value for value in values if value.is_floating_point()]


def build(seed: int, data: str = "mnist") -> Task:
    """Return the task. `data`: mnist or digits.

    Raise `Refused` without Keras, or without the files of MNIST.
    """
    load_keras()
    train, validation = digits.mnist_images(data, seed)
    return Task(
        model=model,
        loss=digits.loss,
        correct=digits.correct,
        train=train,
        validation=validation,
        epochs=3,
        batch_size=128,
        lr=4e-3,
        weight_decay=1e-2,
        workers=0,
        unit="images",
        call=call,
        on_device=digits.normalize,
        compiles=False,
        statistics=statistics,
    )
