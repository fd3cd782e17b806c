"""`--compile`: the number of graphs of a training, and the same losses as without."""

from __future__ import annotations

import pytest
import torch

from cloudtrain_trainer import hardware
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


@pytest.mark.parametrize("name", ["digits", "mnist", "gpt", "resnet50"])
def test_model_and_loss_are_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    expected = train(begin(small_task(name), task_flags(name), one_process()))
    torch._dynamo.reset()
    counter = GraphCounter(differentiate=name == "digits")
    monkeypatch.setattr(hardware, "COMPILE_BACKEND", counter)
    found = train(begin(small_task(name), [*task_flags(name), "--compile"], one_process()))
    assert len(counter.graphs) == 1
    assert relative_difference(found.losses, expected.losses) < TOLERANCE


def test_ddp_compiles_a_graph_per_bucket_and_fsdp_one_per_kind_of_layer(group: StartGroup) -> None:
    ranks = group(2, program="tests.entrypoints.compile_checks:graphs")
    assert ranks.wait() == [0, 0], ranks.output()
    assert [log.read_text().count("all checks passed on rank") for log in ranks.logs] == [1, 1]
