"""`--compile`: how many graphs a training of one process becomes, and that it learns the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

from cloudtrain_trainer import hardware
from tests.entrypoints.strategy_checks import OWN, TOLERANCE, alone, begin, learn, off, quiet


@pytest.mark.parametrize("name", ["digits", "mnist", "gpt", "resnet50"])
def test_model_and_loss_are_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(len(graph.graph.nodes))
        made: Callable[..., object] = aot_eager(graph, inputs)
        return made

    torch.set_num_threads(1)
    argv = ["--task", name, "--batch-size", "32", *(f"--{key}={value}" for key, value in OWN.get(name, {}).items())]
    right, _ = learn(begin(quiet(name), argv, alone()))
    torch._dynamo.reset()
    monkeypatch.setattr(hardware, "COMPILE_BACKEND", count)
    found, _ = learn(begin(quiet(name), [*argv, "--compile"], alone()))
    assert len(graphs) == 1
    assert off(found, right) < TOLERANCE
