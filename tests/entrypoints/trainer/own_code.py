"""Optimizers and iterables as a user writes them, for `--optimizer` and `--task`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from cloudtrain_trainer.tasks import Task


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


class Late(torch.optim.SGD):
    """From its second step on, it draws each matrix to what that was after this step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["steps"] = state.get("steps", 0) + 1
            if state["steps"] == 2 and parameter.dim() > 1:
                state["anchor"] = parameter.clone()
            if "anchor" in state:
                parameter.lerp_(state["anchor"], 0.1)
        return loss


def late(named_parameters: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    return Late([parameter for _, parameter in named_parameters], lr=0.1)


SAMPLES = 40
BATCH = 4


class Numbers:
    """The numbers of the samples, of every `of`-th from `index` on. It remembers its position, as
    torchdata asks.
    """

    num_shards = SAMPLES

    def __init__(self, of: int = 1, index: int = 0) -> None:
        self.of = of
        self.at = index
        self.first = index

    def __iter__(self) -> Iterator[int]:
        while self.at < SAMPLES:
            self.at += self.of
            yield self.at - self.of
        self.at = self.first

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Shards(Numbers):
    """Each rank reads its share."""

    def shard(self, num_shards: int, index: int) -> Shards:
        return Shards(num_shards, index)


class Forgetful:
    """Without a position: a resume reads again what was seen."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        yield from range(SAMPLES)


class Counts(nn.Module):
    """A number per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.zeros(SAMPLES))

    def forward(self, samples: Tensor) -> Tensor:
        return self.used[samples].mean()


def optimizer(named_parameters: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    """Each use of a sample lowers its number by one."""
    return torch.optim.SGD([parameter for _, parameter in named_parameters], lr=float(BATCH))


def _task(data: Any) -> Task:
    return Task(model=Counts, train=data, step=lambda model, batch: model(batch), batch_size=BATCH)


def numbers() -> Task:
    return _task(Numbers())


def shards() -> Task:
    return _task(Shards())


def forgetful() -> Task:
    return _task(Forgetful())
