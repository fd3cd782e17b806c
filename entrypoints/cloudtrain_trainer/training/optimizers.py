"""The optimizer of a run, its groups of parameters, and the averages of the weights.

Source of `--ema`: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cloudtrain_trainer.factories import Factory, describe
from cloudtrain_trainer.rules import Refused

BETAS = 0.9, 0.999
"""Decay rates of AdamW's means of gradients and of their squares."""
MOMENTUM = 0.9
"""Momentum of SGD."""
NUMBERS_PER_PARAMETER = {"adamw": 2, "sgd": 1}
"""State of an optimizer."""


def gradient_norm(parameters: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients, a tensor of shape () on their device."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients, foreach=True)


def build(
    name: str,
    parameters: Mapping[str, Tensor],
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] | None = None,
    *,
    fused: bool,
) -> torch.optim.Optimizer:
    """Return the optimizer of `--optimizer` over parameters by name.

    `fused`: run one kernel per group, on GPUs. Raise `Refused` if a user's factory returns
    something else.
    """
    if ":" in name:
        return _from_factory(Factory("--optimizer", name), parameters, lr, weight_decay)

    groups = _groups(list(parameters.values()), weight_decay)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas or BETAS, fused=fused)

    return _sgd(groups, lr, fused)


def _groups(parameters: list[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Return groups of parameters that decay alike, in the order of their first parameters.

    Biases and norms have one dimension and do not decay.
    """
    groups: dict[bool, dict[str, Any]] = {}

    for parameter in parameters:
        decays = parameter.dim() >= 2
        if decays not in groups:
            groups[decays] = {"params": [], "weight_decay": weight_decay if decays else 0.0}
        groups[decays]["params"].append(parameter)

    return list(groups.values())


def _sgd(groups: list[dict[str, Any]], lr: float, fused: bool) -> torch.optim.Optimizer:
    """Return SGD with plain momentum.

    The momentum exists from the start: a fused first step that is skipped would leave it
    uninitialised.
    """
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM, fused=fused)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    return optimizer


class GroupNumbers:
    """The numbers in an optimizer's groups: initial learning rates, and its own changes."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups = optimizer.param_groups
        self._first = self._numbers()
        self._rates = [float(group["lr"]) for group in self._groups]

    def scale_rates(self, factor: float) -> None:
        """Set each group's learning rate to its first one times `factor`."""
        for group, rate in zip(self._groups, self._rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

    def changed(self) -> list[dict[str, float]]:
        """Return the numbers of each group that changed since the start, for a checkpoint."""
        changed = []
        for current, first in zip(self._numbers(), self._first, strict=True):
            changed.append({name: x for name, x in current.items() if x != first.get(name)})

        return changed

    def restore(self, changed: Sequence[Mapping[str, float]]) -> None:
        """Restore what `changed` returned. Raise `Refused` if the groups differ."""
        if len(changed) != len(self._groups):
            if any(changed):
                raise Refused(
                    f"the optimizer of the checkpoint has {len(changed)} groups with numbers of"
                    f" their own, this one {len(self._groups)}: resume with the same optimizer, or"
                    " start from scratch with --no-resume"
                )

            return

        for group, numbers in zip(self._groups, changed, strict=True):
            group.update(numbers)

    def _numbers(self) -> list[dict[str, float]]:
        numbers = []
        for group in self._groups:
            of_group = {name: x for name, x in group.items() if isinstance(x, (int, float))}
            of_group.pop("lr", None)
            numbers.append(of_group)

        return numbers


def _from_factory(
    factory: Factory, parameters: Mapping[str, Tensor], lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return the optimizer of a user's factory of (name, parameter) pairs. Raise `Refused`."""
    arguments = {
        "named_parameters": list(parameters.items()),
        "lr": lr,
        "weight_decay": weight_decay,
    }
    optimizer = factory(arguments)

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise Refused(
            f"{factory} returned {describe(optimizer)}: return a torch.optim.Optimizer of"
            " `named_parameters`"
        )

    trained = {id(parameter) for parameter in parameters.values()}

    for group in optimizer.param_groups:
        if not trained.issuperset(map(id, group["params"])):
            raise Refused(
                f"{factory} has parameters that are not the model's: take those of"
                " `named_parameters`"
            )
        if "lr" not in group:
            raise Refused(f"{factory}: a group has no `lr`, which the schedule sets: add it")

    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise Refused(
            f"{factory}: the step of {type(optimizer).__name__} computes the loss several times, which"
            " the trainer does not offer: use an optimizer whose step needs no closure"
        )

    return optimizer


class AveragedWeights:
    """The average of each trained weight.

    Buffers, such as batch norm's statistics, are not averaged: they follow the training.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.tensors: dict[str, Tensor] = {}
        """The averages by the names of the weights, in float32 at least."""
        for name, weight in self._trained.items():
            dtype = torch.promote_types(weight.dtype, torch.float32)
            self.tensors[name] = weight.detach().to(dtype, copy=True)

    def restart(self) -> None:
        """Begin anew with the current weights, in place."""
        self._copy(self._trained, self.tensors)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the averages towards the weights after a step, counted from 0.

        The first steps weigh more, so that the average forgets the initial weights.
        """
        averages = list(self.tensors.values())
        weights = [self._trained[name].to(x.dtype) for name, x in self.tensors.items()]
        torch._foreach_lerp_(averages, weights, 1 - min(self._decay, (1 + step) / (10 + step)))

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Give the model the averages for an evaluation, then its weights back."""
        weights = {name: p.detach().clone() for name, p in self._trained.items()}
        self.use()

        try:
            yield
        finally:
            self._copy(weights, self._trained)

    def use(self) -> None:
        """Give the model the averages."""
        self._copy(self.tensors, self._trained)

    @torch.no_grad()
    def _copy(self, sources: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        for name, source in sources.items():
            targets[name].copy_(source)
