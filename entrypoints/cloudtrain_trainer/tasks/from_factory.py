"""A user's model or task: `--model package.module:factory`.

With `--task`, the factory returns an `nn.Module`, which is trained on that task's data with its loss. Without, it
returns a whole `Task`, like the `build` functions of the built-in tasks; its data may be torch data sets (samples.py).
It gets the seed if it has a parameter of that name.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.samples import adapt
from cloudtrain_trainer.tasks import Task

DATA_FIELDS = (
    "loss", "correct", "train", "validation", "epochs", "batch_size", "lr", "weight_decay", "workers", "unit", "tokens",
    "channels_last",
)  # fmt: skip
"""The fields of a task that are valid for any model of its data."""


def build(spec: str, seed: int, base: Task | None) -> Task:
    """The task of a user's factory; `base`: the task whose data the factory's model is for. Raises `Refused`.

    An error in the factory's own code is not caught, since its traceback says more.
    """
    factory = find(spec)
    arguments = {"seed": seed} if "seed" in _parameters(factory) else {}
    if base is None:
        task = factory(**arguments)
        if not isinstance(task, Task):
            raise Refused(f"--model {spec}: {_describe(task)}; add the --task with its data and loss, or return a Task")
        train = adapt(task.train, seed, f"--model {spec}: train")
        return replace(task, train=train, validation=adapt(task.validation, seed, f"--model {spec}: validation"))
    return Task(
        model=partial(_model, spec, factory, arguments),
        # The other fields depend on the model (how it is split and called), and keep their defaults.
        **{name: getattr(base, name) for name in DATA_FIELDS},
    )


def find(spec: str) -> Callable[..., Any]:
    """The function that `package.module:factory` names; modules in the current folder come first. Raises `Refused`."""
    module_name, colon, name = spec.partition(":")
    if not colon or not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise Refused(f"--model {spec}: expected package.module:factory")
    here = str(Path.cwd())
    if sys.path[0] != here:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise  # the module exists, but one that it imports does not
        raise Refused(f"--model {spec}: there is no module {missing.name} in {here} or on Python's path") from None
    factory = getattr(module, name, None)
    if not callable(factory):
        what = "nothing" if factory is None else "no function"
        raise Refused(f"--model {spec}: {module.__file__ or module_name} has {what} named {name}")
    return factory  # type: ignore[no-any-return]


def _model(spec: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> nn.Module:
    model = factory(**arguments)
    if isinstance(model, nn.Module):
        return model
    hint = "leave out --task, or return its model" if isinstance(model, Task) else "return an nn.Module"
    raise Refused(f"--model {spec}: {_describe(model)}; {hint}")


def _parameters(factory: Callable[..., Any]) -> Any:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some callables written in C have none
        return {}


def _describe(value: Any) -> str:
    return f"it returned {'nothing' if value is None else 'a ' + type(value).__name__}"
