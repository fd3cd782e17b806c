"""Tasks of users: `--model`, `--data` and `--task` name functions by `package.module:factory`.

`--model` returns an nn.Module (or is its class), `--data` the training data, or training and
validation data, and `--task` a whole `Task`. Missing parts of a Task are completed here: how the
model is called, its loss, its metrics.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from cloudtrain_trainer import own_losses, rules, state, tasks
from cloudtrain_trainer.data.streams import Stream, adapt, first_batch
from cloudtrain_trainer.factories import Factory, describe, place
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Task, digits
from cloudtrain_trainer.trees import has_tensor, sample_count

PARTS = ("train", "validation", "collate")
"""Keys of a dict that a data factory may return; `test`, as in Hugging Face's, is ignored."""


def from_options(options: Options) -> Task:
    """Return the task of the command line, built-in or with a user's model, data or task.

    Raise `Refused` if it cannot be built. An error in the user's code is not caught, since its
    traceback explains more.
    """
    if not rules.is_own(options):
        return digits.build(options.seed)

    state.seed_generators(options.seed)  # what a factory draws must be the same on all ranks
    arguments = {"seed": options.seed}
    model = Factory("--model", options.model) if options.model else None
    data = _data(Factory("--data", options.data), arguments) if options.data else {}
    if options.task == rules.DIGITS:
        return _with_digits(options.seed, arguments, model, data)
    if options.task != rules.USER_TASK:
        return _from_factory(Factory("--task", options.task), arguments, model, data)

    assert model is not None  # noqa: S101  (arguments.py has refused --data alone)
    if not data:
        return _from_factory(model, arguments, None, {})

    name = str(model)

    return complete(
        Task(model=OwnModel(model.bound(arguments), name), **data),
        options.seed,
        options.data or name,
    )


def complete(task: Task, seed: int, name: str) -> Task:
    """Return the task with the data, call, loss and metrics that the loop needs.

    Raise `Refused`, with `name`.
    """
    if isinstance(task.model, OwnModel):
        model = task.model
    else:
        model = OwnModel(task.model, name)

    whole = task.step is not None
    changes: dict[str, Any] = {}
    for part, data in (("train", task.train), ("validation", task.validation)):
        if data is not None:
            changes[part] = adapt(data, seed, f"{name}: {part}", task.collate, whole)

    if isinstance(changes["train"], Stream) and task.train is task.validation:
        raise Refused(
            f"{name}: an iterable for both training and validation would lose its place: make it"
            " twice"
        )

    if task.weight is not None:
        changes["weight"] = own_losses.own_weight(task.weight)

    if task.step is not None:
        changes.update(_step_functions(task.step))
    else:
        has_loss = task.loss is not tasks.default_loss
        if has_loss:
            changes["loss"] = own_losses.checked(task.loss)
        else:
            changes["loss"] = own_losses.default_loss

        if not has_loss and task.weight is None and _has_several_labels(changes["train"]):
            changes["weight"] = model.label_count
        if task.call is tasks.call:
            changes["call"] = model.call

        if task.metrics:
            changes["measures"] = own_losses.own_measures(task.metrics)
        elif task.correct is None:
            changes["measures"] = own_losses.default_measures

    return replace(task, model=model, **changes)


class OwnModel:
    """Create the user's model, and call it with the inputs that its `forward` takes."""

    def __init__(self, create: Any, name: str) -> None:
        self.create = create
        """The function that makes it, or the model itself."""
        self._name = name
        self._names: frozenset[str] | None = None
        """The parameters of the model's forward; None: it takes any."""
        self._required: frozenset[str] = frozenset()
        self._forward = name
        self._shifts_labels = False

    def __call__(self) -> nn.Module:
        """Return a new model. Raise `Refused` if it is not a trainable nn.Module."""
        if isinstance(self.create, nn.Module):
            model = self.create
        else:
            model = self.create()

        if not isinstance(model, nn.Module):
            hint = "return an nn.Module"
            if isinstance(model, Task):
                hint = "leave out --data and the built-in --task"

            raise Refused(f"{self._name} returned {describe(model)}: {hint}")

        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise Refused(
                f"{self._name}: the {type(model).__name__} has no parameter with requires_grad to"
                " train"
            )

        self._read_signature(model)
        # Set by transformers (modeling_utils.py): the loss compares each output with the next label.
        self._shifts_labels = getattr(model, "loss_type", None) == "ForCausalLM"

        return model

    def call(self, model: nn.Module, inputs: Any) -> Any:
        """Return the outputs: pass a dict by name, a tuple or list in order."""
        if isinstance(inputs, Mapping):
            return model(**self._select(inputs))
        if isinstance(inputs, (list, tuple)):
            return model(*inputs)

        return model(inputs)

    def label_count(self, targets: Any) -> Any:
        """Return the weight of the default loss, or of the model's own: its labels."""
        return own_losses.label_count(targets, shifted=self._shifts_labels)

    def _select(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if self._names is None:
            return {name: value for name, value in inputs.items() if has_tensor(value)}

        missing = self._required - inputs.keys()
        if missing:
            raise Refused(
                f"{self._forward}: forward needs {' and '.join(map(repr, sorted(missing)))}, and"
                f" the batch has {', '.join(map(repr, inputs))}: give them the same names"
            )

        return {name: value for name, value in inputs.items() if name in self._names}

    def _read_signature(self, model: nn.Module) -> None:
        parameters = inspect.signature(model.forward).parameters.values()
        self._forward = place(model.forward)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            self._names = frozenset(p.name for p in named)
            self._required = frozenset(p.name for p in named if p.default is p.empty)


def _from_factory(
    factory: Factory, arguments: Mapping[str, Any], model: Factory | None, data: dict[str, Any]
) -> Task:
    """Return the task of a user's function, with another model or data if given."""
    task = factory(arguments)
    if not isinstance(task, Task):
        hint = "return a Task"
        if isinstance(task, nn.Module):
            hint = "add --data with your data, or --task with a built-in task's data and loss"
        raise Refused(f"{factory} returned {describe(task)}: {hint}")

    if model is not None:
        task = replace(task, model=OwnModel(model.bound(arguments), str(model)))

    return complete(replace(task, **data), arguments["seed"], str(factory))


def _with_digits(
    seed: int, arguments: Mapping[str, Any], model: Factory | None, data: dict[str, Any]
) -> Task:
    """Return the task digits with a user's model, (input, target) pairs, or both."""
    base = digits.build(seed)
    if model is not None:
        base = replace(base, model=OwnModel(model.bound(arguments), str(model)))

    if data:
        base = replace(
            base,
            train=adapt(data["train"], seed, "--data: train", data.get("collate"), pairs=True),
            validation=None,
            workers=None,
        )
        if _has_several_labels(base.train):
            base = replace(base, weight=partial(own_losses.label_count, shifted=False))

        if data.get("validation") is not None:
            validation = adapt(
                data["validation"], seed, "--data: validation", data.get("collate"), pairs=True
            )
            base = replace(base, validation=validation)

    return base


def _has_several_labels(train: Any) -> bool:
    """Return whether samples have several labels, and so perhaps padding."""
    inputs, targets = first_batch(train, 1)
    labels = own_losses.labels(inputs if targets is None else targets)
    return labels is not None and labels.ndim > 1 and not labels.is_floating_point()


def _data(factory: Factory, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task from a data factory. Raise `Refused`."""
    returned = factory(arguments)
    if (
        isinstance(returned, list)
        and returned
        and all(isinstance(part, Dataset) for part in returned)
    ):
        returned = tuple(returned)  # as random_split returns them

    if isinstance(returned, Mapping):
        unknown = [str(key) for key in returned if key not in PARTS and key != "test"]
        if "train" not in returned or unknown:
            keys = ", ".join(map(str, returned)) or "no keys"
            raise Refused(
                f"{factory} returned a dict with {keys}: its keys are train, validation and collate"
            )

        return {part: returned[part] for part in PARTS if part in returned}

    if isinstance(returned, tuple):
        if any(isinstance(part, Tensor) or type(part).__module__ == "numpy" for part in returned):
            raise Refused(
                f"{factory} returned {describe(returned)}: return"
                " torch.utils.data.TensorDataset(inputs, targets)"
            )

        if len(returned) != 2:
            raise Refused(
                f"{factory} returned {describe(returned)}: return the training data, or (training,"
                " validation)"
            )

        return {"train": returned[0], "validation": returned[1]}

    if returned is None:
        raise Refused(
            f"{factory} returned nothing: return the training data, or (training, validation)"
        )

    return {"train": returned}


def _step_functions(step: Callable[[nn.Module, Any], Any]) -> dict[str, Any]:
    """Return the functions of a task whose step returns the loss of a whole batch."""

    def call(model: nn.Module, batch: Any) -> Any:
        return step(model, batch)

    def loss(outputs: Any, batch: Any) -> Tensor:  # noqa: ARG001
        value = own_losses.loss_in(outputs)
        if value is None:
            raise Refused(
                f"{place(step)}: the step returned {describe(outputs)}: return the mean loss, or a"
                " dict with it"
            )

        return own_losses.scalar(value, "the loss", step)

    def measures(outputs: Any, batch: Any) -> dict[str, Tensor]:
        if not isinstance(outputs, Mapping):
            return {}

        count = sample_count(batch)
        sums = {}
        for name, value in outputs.items():
            if name != "loss":
                sums[name] = own_losses.total(value, count, step, name)

        return sums

    return {"call": call, "loss": loss, "measures": measures}
