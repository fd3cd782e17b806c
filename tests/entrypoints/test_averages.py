"""`--ema`: a moving average of the weights is evaluated, saved, and resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

from cloudtrain_trainer.options import Folders
from cloudtrain_trainer.reporting.metrics import evaluate
from cloudtrain_trainer.training.loop import Loop

MakeLoop = Callable[..., Loop]
FLAGS = ("--batch-size", "64", "--max-steps", "6", "--checkpoint-every-steps", "3", "--keep", "9")


def averages_of(loop: Loop) -> dict[str, torch.Tensor]:
    assert loop.step.averages is not None
    return {name: value.clone() for name, value in loop.step.averages.tensors.items()}


def weights_of(loop: Loop) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in loop.step.model.named_parameters()}


def are_equal(one: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return one.keys() == second.keys() and all(torch.equal(one[name], second[name]) for name in one)


def saved_names(folder: Path) -> set[str]:
    return set(FileSystemReader(folder / "weights-0").read_metadata().state_dict_metadata)


def test_the_average_follows_the_weights(make_loop: MakeLoop) -> None:
    loop = make_loop(*FLAGS, "--ema", "0.15")
    expected = weights_of(loop)
    batches = loop.batches.load(0, 0)
    for step, decay in enumerate((0.1, 0.15, 0.15)):
        loop.step.train_step(batches, step, 6)
        for name, weight in weights_of(loop).items():
            expected[name] = decay * expected[name] + (1 - decay) * weight
    for name, average in averages_of(loop).items():
        torch.testing.assert_close(average, expected[name])


def test_the_average_is_evaluated_and_the_weights_are_trained(make_loop: MakeLoop) -> None:
    loop = make_loop(*FLAGS, "--ema", "0.9")
    batches = loop.batches.load(0, 0)
    for step in range(4):
        loop.step.train_step(batches, step, 6)
    trained = weights_of(loop)
    averages = averages_of(loop)
    values = loop._evaluate()
    assert are_equal(weights_of(loop), trained)
    assert are_equal(averages_of(loop), averages)
    loop.step.model.load_state_dict(averages, strict=False)
    assert values == evaluate(loop.step, 64, 0, lambda: False)


def test_a_resume_continues_the_average_and_the_model_is_the_average(
    make_loop: MakeLoop, tmp_path: Path
) -> None:
    load = pytest.importorskip("safetensors.torch").load_file
    export = import_module("train").export_model
    whole = make_loop(*FLAGS, "--ema", "0.9")
    whole.run()
    shutil.rmtree(tmp_path / "step-00000006")
    resumed = make_loop(*FLAGS, "--ema", "0.9")
    resumed.resume()
    assert resumed.position.step == 3
    resumed.run()
    averages = averages_of(resumed)
    assert are_equal(averages, averages_of(whole))
    assert are_equal(weights_of(resumed), weights_of(whole))
    assert not are_equal(averages, weights_of(resumed))

    best = make_loop("--weights", str(tmp_path / "best-00000006"))
    assert are_equal(weights_of(best), averages)
    export(resumed, Folders(tmp_path / "model", tmp_path, tmp_path))
    model = load(tmp_path / "model/model.safetensors")
    assert are_equal({name: model[name] for name in averages}, averages)


def test_a_checkpoint_without_averages_begins_them_with_its_weights(
    make_loop: MakeLoop, tmp_path: Path
) -> None:
    plain = make_loop(*FLAGS)
    assert plain.step.averages is None
    plain.run()
    assert not any(name.startswith("ema.") for name in saved_names(tmp_path / "step-00000006"))
    resumed = make_loop(*FLAGS, "--ema", "0.9")
    resumed.resume()
    assert are_equal(averages_of(resumed), weights_of(plain))


def test_averages_of_short_numbers_are_long(make_loop: MakeLoop) -> None:
    """In bfloat16 a step of the average would be rounded away."""
    from cloudtrain_trainer.training.averages import AveragedWeights

    model = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    averages = AveragedWeights(model, 0.999)
    before = model.weight.detach().clone()
    assert averages.tensors["weight"].dtype == torch.float32
    torch.nn.init.constant_(model.weight, 3.0)
    averages.update(100_000)
    expected = before.float() + 0.001 * (3 - before.float())
    torch.testing.assert_close(averages.tensors["weight"], expected)
    with averages.in_model():
        assert torch.equal(model.weight, expected.bfloat16())
    assert torch.equal(model.weight, torch.full_like(before, 3.0))
