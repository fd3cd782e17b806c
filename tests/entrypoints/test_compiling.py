"""`--compile`: the number of graphs of a training, the same losses as without, and a resume to the
same bits.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cloudtrain_trainer import hardware, state
from cloudtrain_trainer.reporting.metrics import evaluate
from cloudtrain_trainer.training.loop import Loop
from tests.entrypoints.compile_checks import GraphCounter
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.loss_curves import (
    TOLERANCE,
    begin,
    one_process,
    relative_difference,
    small_task,
    task_flags,
    train,
)


@pytest.mark.parametrize("name", ["digits", "gpt"])
def test_model_and_loss_are_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    expected = train(begin(small_task(name), task_flags(name), one_process()))
    torch._dynamo.reset()
    counter = GraphCounter(differentiate=name == "digits")
    monkeypatch.setattr(hardware, "COMPILE_BACKEND", counter)
    trained = train(begin(small_task(name), [*task_flags(name), "--compile"], one_process()))
    assert len(counter.graphs) == 1
    assert relative_difference(trained.losses, expected.losses) < TOLERANCE


@pytest.mark.thorough
def test_recomputed_layers_are_in_that_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    expected = train(begin(small_task("gpt"), task_flags("gpt"), one_process()))
    torch._dynamo.reset()
    counter = GraphCounter(differentiate=True)
    monkeypatch.setattr(hardware, "COMPILE_BACKEND", counter)
    trained = train(
        begin(
            small_task("gpt"),
            [*task_flags("gpt"), "--compile", "--recompute", "blocks"],
            one_process(),
        )
    )
    assert len(counter.graphs) == 1
    assert relative_difference(trained.losses, expected.losses) < TOLERANCE
    assert relative_difference(trained.norms, expected.norms) < TOLERANCE


def test_nothing_is_compiled_again_after_the_third_step(
    make_loop: Callable[..., Loop], monkeypatch: Any
) -> None:
    """Micro-batches of two sizes, and an evaluation between the steps."""
    torch._dynamo.reset()
    counter = GraphCounter()
    monkeypatch.setattr(hardware, "COMPILE_BACKEND", counter)
    loop = make_loop("--compile", "--batch-size", "33", "--accumulate", "2")
    batches = loop.batches.load(0, 0)
    graphs = []
    for step in range(6):
        loop.step.wrapped.train()
        loop.step.train_step(batches, step, 10)
        graphs.append(len(counter.graphs))
        assert evaluate(loop.step, 64, 0, lambda: False)
    assert graphs[0] >= 1
    assert graphs[2:] == [graphs[2]] * 4


def test_a_compiled_training_resumes_bit_identically(
    make_loop: Callable[..., Loop], monkeypatch: Any
) -> None:
    """With dropout, whose random numbers a compiled graph draws, too."""
    monkeypatch.setattr(hardware, "COMPILE_BACKEND", GraphCounter(differentiate=True))
    flags = ["--compile", "--epochs", "1", "--batch-size", "256"]

    def begin_again() -> Loop:
        torch._dynamo.reset()
        loop = make_loop(*flags)
        loop.resume()
        return loop

    first = begin_again()
    first.steps = 2
    assert first.run() == "succeeded"
    resumed = begin_again()
    assert resumed.position.step == 2
    resumed.run()
    shutil.rmtree(resumed.checkpointer.checkpoints.folder)
    whole = begin_again()
    assert whole.position.step == 0
    whole.run()
    assert whole.position.step == resumed.position.step == 5
    fingerprints = {state.fingerprint(loop.step.model.state_dict()) for loop in (whole, resumed)}
    assert len(fingerprints) == 1
    assert state.fingerprint(first.step.model.state_dict()) not in fingerprints


@pytest.mark.once
@pytest.mark.parametrize(
    ("count", "program"),
    [(2, "graphs"), pytest.param(4, "hybrid_graphs", marks=pytest.mark.thorough)],
)
def test_ddp_compiles_a_graph_per_bucket_and_sharding_strategies_layer_by_layer(
    group: StartGroup, count: int, program: str
) -> None:
    ranks = group(count, program=f"tests.entrypoints.compile_checks:{program}")
    assert ranks.wait() == [0] * count, ranks.output()
    assert [log.read_text().count("all checks passed on rank") for log in ranks.logs] == [1] * count
