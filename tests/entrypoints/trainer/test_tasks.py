"""Properties of the tasks that the training loop and the strategies rely on, in one process."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cloudtrain_trainer import tasks
from cloudtrain_trainer.partition import split
from cloudtrain_trainer.rules import OPTIONS, Refused, capabilities
from cloudtrain_trainer.tasks import Draw, Task, gpt
from cloudtrain_trainer.tasks.gpt import decoder

SMALL: dict[str, dict[str, Any]] = {
    "digits": {},
    "mnist": {"data": "digits"},
    "keras-mnist": {"data": "digits"},
    "gpt": {"size": "tiny"},
}
SPLIT = [name for name in SMALL if name != "keras-mnist"]


def small(name: str, seed: int = 0) -> Task:
    """The smallest form of the task, without network; skipped if its framework is not installed."""
    # Importing it here would choose another backend.
    if name == "keras-mnist" and find_spec("keras") is None:
        pytest.skip("keras is not installed (the dev extra has it)")
    return tasks.build(name, seed, **SMALL[name])


def fresh(task: Task, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return task.model()


def batch(task: Task, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Training samples as the model and the loss get them."""
    inputs, targets = task.train[Draw(0, indices)]
    return inputs if task.on_device is None else task.on_device(inputs), targets


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# Options


LARGER: list[dict[str, Any]] = [
    {"size": "small"},
    {"size": "gpt2-124m"},
    {"size": "gpt2-124m", "tied": False},
]


@pytest.mark.parametrize(
    ("name", "options"), [*SMALL.items(), *(("gpt", options) for options in LARGER)]
)
def test_the_table_matches_the_task_itself(name: str, options: dict[str, Any]) -> None:
    task = small(name) if options == SMALL[name] else tasks.build(name, 0, **options)
    declared = capabilities(name, options)
    assert tasks.capabilities(task)._replace(fsdp=True) == declared._replace(fsdp=True)


def test_every_task_has_options_that_its_build_accepts() -> None:
    assert set(OPTIONS) == set(tasks.BUILDERS) == set(SMALL)
    for name, options in OPTIONS.items():
        module, _, function = tasks.BUILDERS[name].partition(":")
        build = getattr(import_module(f"cloudtrain_trainer.tasks.{module}"), function)
        taken = {
            key: value.default
            for key, value in inspect.signature(build).parameters.items()
            if key != "seed"
        }
        assert taken == {key.replace("-", "_"): option.default for key, option in options.items()}


# Models


def test_gpt2_124m_has_124_million_parameters() -> None:
    with torch.device("meta"):
        model = decoder(gpt.SIZES["gpt2-124m"])
    assert parameters(model) == 123_587_328
    assert model.get_submodule("head").weight is model.get_submodule("embedding").weight


@pytest.mark.parametrize("size", gpt.SIZES)
def test_the_flops_of_gpt_match_torchs_count(size: str) -> None:
    shape = gpt.SIZES[size]
    with torch.device("meta"), FlopCounterMode(display=False) as counted:
        decoder(shape)(torch.zeros(1, shape.context, dtype=torch.long)).sum().backward()
    assert shape.flops == pytest.approx(counted.get_total_flops(), rel=1e-6)


def test_gpt_attends_to_earlier_tokens_only() -> None:
    task = small("gpt")
    model, (inputs, _) = fresh(task), task.train[Draw(0, [3])]
    changed = inputs.clone()
    changed[:, 40:] = 7
    with torch.no_grad():
        before = model(inputs)
        after = model(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.equal(before[:, 40:], after[:, 40:])


# Stages, layers and plans


@pytest.mark.parametrize("name", SPLIT)
def test_the_stages_in_sequence_are_the_model_bit_for_bit(name: str) -> None:
    task = small(name)
    assert task.stages is not None
    model, (inputs, _) = fresh(task).eval(), batch(task, [0, 1])
    with torch.no_grad():
        whole = model(inputs)
        for count in range(1, task.max_stages + 1):
            stages = task.stages(model, count)
            passed = inputs
            names = list[str]()
            for stage in stages:
                passed = stage(passed)
                names = [*names, *stage.state_dict()]
            assert torch.equal(passed, whole)
            assert names == list(model.state_dict())
            assert len(stages) == count
            assert all(any(True for _ in stage.parameters()) for stage in stages)


def test_the_cost_of_the_most_expensive_stage_is_minimal() -> None:
    model = nn.Sequential(*(nn.Linear(1, width) for width in (1, 1, 1, 9, 2, 2, 2)), nn.ReLU())
    costs = [float(module.out_features) for module in model if isinstance(module, nn.Linear)]
    assert costs == [1, 1, 1, 9, 2, 2, 2]
    stages = split(model, 3, lambda piece: getattr(piece, "out_features", 0))
    assert [len(stage) for stage in stages] == [3, 1, 4]
    with pytest.raises(ValueError, match="1 to 7 stages, not 8"):
        split(model, 8, lambda piece: getattr(piece, "out_features", 0))


# Learning and data


@pytest.mark.once
@pytest.mark.parametrize("name", SMALL)
def test_the_loss_decreases_in_eight_steps(name: str) -> None:
    task = small(name)
    model = fresh(task)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], task.lr)
    inputs, targets = batch(task, list(range(0, 16 * 40, 40)))
    losses = []
    for _ in range(8):
        loss = task.loss(task.call(model, inputs, True), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert task.correct is not None
    right = task.correct(task.call(model, inputs, False), targets)
    assert right.shape == ()
    assert 0 <= float(right) <= len(targets)


@pytest.mark.parametrize("name", SMALL)
def test_samples_depend_on_seed_epoch_and_index_only(name: str) -> None:
    data = small(name).train
    several = data[Draw(2, [9, 4, 5])]
    data[Draw(3, [1])]
    alone = data[Draw(2, [4])]
    other_order = data[Draw(2, [5, 9])]
    for part in (0, 1):
        assert torch.equal(alone[part][0], several[part][1])
        assert torch.equal(other_order[part], several[part][[2, 0]])
    assert torch.equal(small(name).train[Draw(2, [4])][0], alone[0])
    assert not torch.equal(data[Draw(3, [4])][0], alone[0])
    assert not torch.equal(small(name, seed=1).train[Draw(2, [4])][0], alone[0])


# Keras


def test_keras_statistics_change_in_training_only() -> None:
    task = small("keras-mnist")
    model, (inputs, _) = fresh(task), batch(task, [0, 400, 800])
    before = [value.clone() for value in task.statistics(model)]
    model.train()
    first = task.call(model, inputs, False)
    assert torch.equal(first, task.call(model, inputs, False)), "dropout must be off"
    assert all(map(torch.equal, before, task.statistics(model)))
    task.call(model, inputs, True)
    assert len(before) == 4
    assert not any(map(torch.equal, before, task.statistics(model)))


def test_a_keras_state_dict_restores_the_same_outputs() -> None:
    task = small("keras-mnist")
    saved, model, (inputs, _) = fresh(task, 1), fresh(task, 2), batch(task, [1, 2])
    task.call(saved, inputs, True)
    model.load_state_dict(saved.state_dict())
    assert torch.equal(task.call(model, inputs, False), task.call(saved, inputs, False))
    state = torch.get_rng_state()
    trained = task.call(saved, inputs, True)
    torch.set_rng_state(state)
    assert torch.equal(trained, task.call(model, inputs, True)), (
        "dropout must use torch's generator"
    )


def test_keras_mnist_without_keras_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(Refused, match="pip install 'keras"):
        tasks.build("keras-mnist", 0)
