"""Optimizers as a user writes them, for `--optimizer tests.entrypoints.own_optimizers:NAME`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Counting(torch.optim.Optimizer):
    """SGD whose step depends on a number of each group and of each parameter, which a resume must
    restore.
    """

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": 1.0, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["seen"] = state.get("seen", 0) + 1
                    state["sizes"] = state.get("sizes", 1.0) + float(parameter.grad.abs().max())
                    rate = group["lr"] / (group["steps"] + state["seen"] + state["sizes"])
                    parameter.sub_(parameter.grad, alpha=rate)


def two_rates(named_parameters: list[tuple[str, Tensor]], lr: float) -> torch.optim.Optimizer:
    """Biases learn ten times as fast."""
    biases = [parameter for name, parameter in named_parameters if name.endswith("bias")]
    parameters = [parameter for name, parameter in named_parameters if not name.endswith("bias")]
    return Counting([{"params": parameters, "lr": lr}, {"params": biases, "lr": 10 * lr}])


def lbfgs(named_parameters: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    """Its step computes the loss several times."""
    return torch.optim.LBFGS([parameter for _, parameter in named_parameters])


def foreign(named_parameters: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    """An optimizer of copies."""
    return torch.optim.SGD([parameter.detach().clone() for _, parameter in named_parameters])


def nothing(named_parameters: list[tuple[str, Tensor]]) -> None:
    """Forgets to return."""


class WithList(torch.optim.SGD):
    """Keeps a list, which checkpoints do not."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["history"] = [1, 2]
        return super().step(closure)


def with_list(named_parameters: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    return WithList([parameter for _, parameter in named_parameters])
