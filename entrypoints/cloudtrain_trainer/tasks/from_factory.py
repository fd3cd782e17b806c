"""A model of one's own: `--model package.module:factory`.

With a `--task`, the factory gives an `nn.Module`, which is trained on that task's data with its loss. Without one it
gives a whole `Task`, like the `build` of the files here; its data may be ordinary data sets of torch (samples.py). It
is given the seed if it has an argument of that name.
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
from cloudtrain_trainer.samples import adapted
from cloudtrain_trainer.tasks import Task

OF_DATA = (
    "loss", "correct", "train", "validation", "epochs", "batch_size", "lr", "weight_decay", "workers", "unit", "tokens",
    "channels_last",
)  # fmt: skip
"""What a task says that holds for any model of it."""


def build(spec: str, seed: int, base: Task | None) -> Task:
    """The task that the factory gives, or `base` with the factory's model. Raises `Refused`.

    An error inside the factory's code is not caught: its traceback tells more.
    """
    factory = find(spec)
    arguments = {"seed": seed} if "seed" in _parameters(factory) else {}
    if base is None:
        task = factory(**arguments)
        if not isinstance(task, Task):
            raise Refused(f"--model {spec}: {_told(task)}; say which --task has its data and loss, or return a Task")
        train = adapted(task.train, seed, f"--model {spec}: train")
        return replace(task, train=train, validation=adapted(task.validation, seed, f"--model {spec}: validation"))
    return Task(
        model=partial(_model, spec, factory, arguments),
        # What is not named here depends on the model (how it is cut, counted and called), and keeps its default.
        **{name: getattr(base, name) for name in OF_DATA},
    )


def find(spec: str) -> Callable[..., Any]:
    """What `package.module:factory` names. Modules are looked for in the current folder first."""
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
            raise  # the module is there; one that it imports is not
        raise Refused(f"--model {spec}: there is no module {missing.name} in {here} or Python's path") from None
    factory = getattr(module, name, None)
    if not callable(factory):
        what = "nothing" if factory is None else "nothing that can be called"
        raise Refused(f"--model {spec}: {module.__file__ or module_name} has {what} of the name {name}")
    return factory  # type: ignore[no-any-return]


def _model(spec: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> nn.Module:
    model = factory(**arguments)
    if isinstance(model, nn.Module):
        return model
    hint = "leave out --task, or return its model" if isinstance(model, Task) else "return an nn.Module"
    raise Refused(f"--model {spec}: {_told(model)}; {hint}")


def _parameters(factory: Callable[..., Any]) -> Any:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some callables written in C have none
        return {}


def _told(value: Any) -> str:
    return f"it returned {'nothing' if value is None else 'a ' + type(value).__name__}"
