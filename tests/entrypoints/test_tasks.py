"""What the tasks promise to the loop and the strategies, each in one process and fast."""

from __future__ import annotations

import inspect
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cloudtrain_trainer import tasks
from cloudtrain_trainer.models.decoder import decoder
from cloudtrain_trainer.models.partition import split
from cloudtrain_trainer.models.resnet import resnet
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.tasks import Draw, Task, from_factory, gpt
from cloudtrain_trainer.tasks.options import OPTIONS
from tests.support.limits import HANG_SECONDS

ENTRYPOINTS = Path(__file__).resolve().parents[2] / "entrypoints"
TRAINER = ENTRYPOINTS / "cloudtrain_trainer"
SMALL: dict[str, dict[str, Any]] = {
    "digits": {},
    "mnist": {"data": "digits"},
    "keras-mnist": {"data": "digits"},
    "resnet50": {"size": "tiny"},
    "gpt": {"size": "tiny"},
}
SPLIT = [name for name in SMALL if name != "keras-mnist"]


def small(name: str, seed: int = 0) -> Task:
    """The task as small as it comes, without network; skipped where its framework is not installed."""
    if name == "keras-mnist" and find_spec("keras") is None:  # importing it here would choose another backend
        pytest.skip("keras is not installed (the dev extra has it)")
    return tasks.build(name, seed, **SMALL[name])


def fresh(task: Task, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return task.model()


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# Options


def test_every_task_has_options_and_its_build_takes_them() -> None:
    files = {path.stem.replace("_", "-") for path in (TRAINER / "tasks").glob("*.py")}
    assert set(OPTIONS) == files - {"--init--", "options", "from-factory"} == set(SMALL)
    for name, options in OPTIONS.items():
        build = import_module(f"cloudtrain_trainer.tasks.{name.replace('-', '_')}").build
        taken = {key: value.default for key, value in inspect.signature(build).parameters.items() if key != "seed"}
        assert taken == {key.replace("-", "_"): option.default for key, option in options.items()}


def test_options_are_read_without_torch() -> None:
    begin = f"import sys; sys.path.insert(0, {str(ENTRYPOINTS)!r}); "
    code = f"{begin}import cloudtrain_trainer.tasks.options; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("task", "option", "good", "bad"),
    [
        ("gpt", "size", "tiny", "large"),
        ("gpt", "context", "128", "100"),
        ("gpt", "tied", "no", "maybe"),
        ("resnet50", "image-size", "96", "0"),
        ("resnet50", "image-size", "1024", "2048"),
        ("mnist", "data", "digits", "Digits"),
    ],
)
def test_an_option_says_what_it_expects(task: str, option: str, good: str, bad: str) -> None:
    reader = OPTIONS[task][option].reader
    reader(good)
    with pytest.raises(ArgumentTypeError, match=r"expected .*, got"):
        reader(bad)


# Models


def test_resnet50_has_the_parameters_of_the_paper() -> None:
    with torch.device("meta"):
        model = tasks.build("resnet50", 0, image_size=32).model()
    assert parameters(model) == 25_557_032
    last_gammas = [p for n, p in fresh(small("resnet50")).named_parameters() if n.endswith("bn3.weight")]
    assert len(last_gammas) == 4
    assert not any(gamma.any() for gamma in last_gammas), "every block starts as the identity"


def test_gpt2_124m_is_as_large_as_its_name_says() -> None:
    with torch.device("meta"):
        model = decoder(gpt.SIZES["gpt2-124m"])
    assert parameters(model) == 123_587_328
    assert model.get_submodule("head").weight is model.get_submodule("embedding").weight


@pytest.mark.parametrize("size", gpt.SIZES)
def test_the_flops_of_gpt_are_those_that_torch_counts(size: str) -> None:
    shape = gpt.SIZES[size]
    with torch.device("meta"), FlopCounterMode(display=False) as counted:
        decoder(shape)(torch.zeros(1, shape.context, dtype=torch.long)).sum().backward()
    assert shape.flops == pytest.approx(counted.get_total_flops(), rel=1e-6)


@pytest.mark.parametrize("size", [64, 224])
def test_the_flops_of_resnet50_are_those_that_torch_counts(size: int) -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counted:
        resnet((3, 4, 6, 3), 64, 1000)(torch.empty(1, 3, size, size)).sum().backward()
    told = tasks.build("resnet50", 0, image_size=size).flops
    assert told == pytest.approx(counted.get_total_flops(), rel=0.01)


def test_gpt_cannot_see_what_follows() -> None:
    task = small("gpt")
    model, (inputs, _) = fresh(task), task.train[Draw(0, [3])]
    changed = inputs.clone()
    changed[:, 40:] = 7
    with torch.no_grad():
        before, after = model(inputs), model(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.equal(before[:, 40:], after[:, 40:])


# Stages, layers and plans


@pytest.mark.parametrize("name", SPLIT)
def test_the_stages_in_sequence_are_the_model_bit_for_bit(name: str) -> None:
    task = small(name)
    assert task.stages is not None
    model, (inputs, _) = fresh(task).eval(), task.train[Draw(0, [0, 1])]
    with torch.no_grad():
        whole = model(inputs)
        for count in range(1, task.max_stages + 1):
            stages = task.stages(model, count)
            passed, names = inputs, list[str]()
            for stage in stages:
                passed, names = stage(passed), [*names, *stage.state_dict()]
            assert torch.equal(passed, whole)
            assert names == list(model.state_dict())
            assert len(stages) == count
            assert all(any(True for _ in stage.parameters()) for stage in stages)


def test_resnet50_and_gpt_can_be_cut_at_every_block() -> None:
    full = tasks.build("resnet50", 0, image_size=32), tasks.build("gpt", 0, size="small")
    for task in full:
        with torch.device("meta"):
            model = task.model()
        assert task.stages is not None
        assert task.layers is not None
        assert task.max_stages == len(task.layers(model))
        names = [name for stage in task.stages(model, task.max_stages) for name in stage.state_dict()]
        assert names == list(model.state_dict())


def test_the_dearest_stage_is_as_cheap_as_can_be() -> None:
    model = nn.Sequential(*(nn.Linear(1, width) for width in (1, 1, 1, 9, 2, 2, 2)), nn.ReLU())
    costs = [float(module.out_features) for module in model if isinstance(module, nn.Linear)]
    assert costs == [1, 1, 1, 9, 2, 2, 2]
    stages = split(model, 3, lambda piece: getattr(piece, "out_features", 0))
    assert [len(stage) for stage in stages] == [3, 1, 4]
    with pytest.raises(ValueError, match="1 to 7 stages, not 8"):
        split(model, 8, lambda piece: getattr(piece, "out_features", 0))


@pytest.mark.parametrize("name", SPLIT)
def test_layers_are_parts_of_the_model_and_of_its_stages(name: str) -> None:
    task = small(name)
    model = fresh(task)
    assert task.layers is not None
    assert task.stages is not None
    layers = task.layers(model)
    assert layers
    assert {id(layer) for layer in layers} <= {id(module) for module in model.modules()}
    assert [layer for stage in task.stages(model, 2) for layer in task.layers(stage)] == list(layers)


@pytest.mark.parametrize("name", ["digits", "mnist", "gpt"])
def test_the_tensor_plan_names_modules_that_there_are(name: str) -> None:
    task = small(name)
    model = fresh(task)
    assert task.tensor_plan is not None
    assert task.tensor_limit is not None
    modules = dict(model.named_modules())
    plan = task.tensor_plan(model)
    assert set(plan) <= set(modules)
    limit = task.tensor_limit(model)
    for planned in plan:
        module = modules[planned]
        if isinstance(module, nn.Linear):
            assert module.in_features % limit == 0 or module.out_features % limit == 0
    if name == "gpt":
        assert limit == 4
        left_out = [key for key, _ in model.named_parameters() if key.rpartition(".")[0] not in plan]
        assert not left_out, "an optimizer cannot mix what is distributed with what is not"


def test_a_tied_gpt_is_split_neither_way_and_untied_it_is() -> None:
    tied, untied = (tasks.build("gpt", 0, size="gpt2-124m", data="synthetic", tied=tied) for tied in (None, False))
    assert (tied.stages, tied.tensor_plan, tied.max_stages) == (None, None, 1)
    assert untied.max_stages == 12
    assert untied.tensor_plan is not None


# Learning and data


@pytest.mark.parametrize("name", SMALL)
def test_the_loss_falls_in_a_few_steps(name: str) -> None:
    task = small(name)
    model = fresh(task)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], task.lr)
    inputs, targets = task.train[Draw(0, list(range(0, 16 * 40, 40)) if name != "resnet50" else list(range(16)))]
    losses = []
    for _ in range(8):
        loss = task.loss(task.call(model, inputs, True), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    right = task.correct(task.call(model, inputs, False), targets)
    assert right.shape == ()
    assert 0 <= float(right) <= len(targets)


@pytest.mark.parametrize("name", SMALL)
def test_samples_are_a_function_of_seed_epoch_and_index(name: str) -> None:
    data = small(name).train
    together = data[Draw(2, [9, 4, 5])]
    data[Draw(3, [1])]
    alone, other_order = data[Draw(2, [4])], data[Draw(2, [5, 9])]
    for part in (0, 1):
        assert torch.equal(alone[part][0], together[part][1])
        assert torch.equal(other_order[part], together[part][[2, 0]])
    assert torch.equal(small(name).train[Draw(2, [4])][0], alone[0])
    if name != "resnet50":  # its synthetic images are the same in every epoch
        assert not torch.equal(data[Draw(3, [4])][0], alone[0])
    assert not torch.equal(small(name, seed=1).train[Draw(2, [4])][0], alone[0])


@pytest.mark.parametrize("name", SMALL)
def test_validation_samples_are_the_same_in_every_epoch(name: str) -> None:
    data = small(name).validation
    last = len(data) - 1
    assert torch.equal(data[Draw(0, [0, last])][0], data[Draw(5, [0, last])][0])


@pytest.mark.parametrize("name", SMALL)
def test_the_last_training_sample_is_there_in_every_epoch(name: str) -> None:
    data = small(name).train
    shapes = {tuple(part.shape) for epoch in range(8) for part in data[Draw(epoch, [0, len(data) - 1])]}
    assert len(shapes) <= 2
    assert all(shape[0] == 2 for shape in shapes)


# Keras


def test_the_statistics_of_keras_move_in_training_only() -> None:
    task = small("keras-mnist")
    model, (inputs, _) = fresh(task), task.train[Draw(0, [0, 400, 800])]
    before = [value.clone() for value in task.statistics(model)]
    model.train()
    first = task.call(model, inputs, False)
    assert torch.equal(first, task.call(model, inputs, False)), "dropout is off"
    assert all(map(torch.equal, before, task.statistics(model)))
    task.call(model, inputs, True)
    assert len(before) == 4
    assert not any(map(torch.equal, before, task.statistics(model)))


def test_the_statistics_of_keras_are_parameters_that_need_no_gradient() -> None:
    task = small("keras-mnist")
    model = fresh(task)
    frozen = {id(p) for p in model.parameters() if not p.requires_grad and p.is_floating_point()}
    assert {id(value) for value in task.statistics(model)} == frozen
    assert not list(model.buffers())


def test_a_keras_model_has_weights_and_names_by_the_seed() -> None:
    task = small("keras-mnist")
    one, same, other = (fresh(task, seed).state_dict() for seed in (3, 3, 4))
    assert list(one) == list(same) == list(other)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_keras_model_that_was_loaded_is_the_one_that_was_saved() -> None:
    task = small("keras-mnist")
    saved, model, (inputs, _) = fresh(task, 1), fresh(task, 2), task.train[Draw(0, [1, 2])]
    task.call(saved, inputs, True)
    model.load_state_dict(saved.state_dict())
    assert torch.equal(task.call(model, inputs, False), task.call(saved, inputs, False))
    state = torch.get_rng_state()
    trained = task.call(saved, inputs, True)
    torch.set_rng_state(state)
    assert torch.equal(trained, task.call(model, inputs, True)), "dropout draws from torch's generator"


def test_keras_mnist_without_keras_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(Refused, match="pip install 'keras"):
        tasks.build("keras-mnist", 0)


# A model of one's own


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module `own_model` in the current folder."""
    (tmp_path / "own_model.py").write_text(
        "from dataclasses import replace\n"
        "from torch import nn\n"
        "from cloudtrain_trainer import tasks\n"
        "def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
        "def whole(seed): return replace(tasks.build('digits', seed), batch_size=7 + seed)\n"
        "def nothing(): pass\n"
        "number = 3\n"
    )
    (tmp_path / "broken_model.py").write_text("import not_installed_anywhere\n")
    for name in ("models", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text("from own_model import net\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("own_model", "broken_model", "models.net", "models", "tasks.net", "tasks"):
        sys.modules.pop(name, None)


def test_a_model_of_ones_own_is_trained_on_a_tasks_data(own_code: Path) -> None:
    base = small("digits")
    task = from_factory.build("own_model:net", 0, base)
    assert (task.train, task.loss, task.batch_size) == (base.train, base.loss, base.batch_size)
    model, (inputs, targets) = fresh(task), task.train[Draw(0, [1, 2])]
    assert parameters(model) == 650
    assert task.loss(task.call(model, inputs, True), targets) > 0
    assert (task.layers, task.stages, task.tensor_plan, task.flops) == (None, None, None, 0.0)


def test_a_whole_task_of_ones_own_is_given_the_seed(own_code: Path) -> None:
    assert from_factory.build("own_model:whole", 5, None).batch_size == 12


@pytest.mark.parametrize("package", ["models", "tasks"])
def test_ones_own_packages_may_have_any_name(own_code: Path, package: str) -> None:
    assert parameters(fresh(from_factory.build(f"{package}.net:net", 0, small("digits")))) == 650


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("own_model", "expected package.module:factory"),
        ("own-model:net", "expected package.module:factory"),
        ("no_model:net", "there is no module no_model in "),
        ("own_model.part:net", "there is no module own_model.part"),
        ("own_model:nope", r"own_model\.py has nothing named nope"),
        ("own_model:number", r"own_model\.py has no function named number"),
        ("own_model:nothing", "it returned nothing; add the --task"),
        ("own_model:net", "it returned a Sequential; add the --task"),
    ],
)
def test_a_factory_that_gives_no_task_is_refused(own_code: Path, spec: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        from_factory.build(spec, 0, None)


@pytest.mark.parametrize(("name", "said"), [("whole", "a Task; leave out --task"), ("nothing", "return an nn.Module")])
def test_a_factory_that_gives_no_model_is_refused(own_code: Path, name: str, said: str) -> None:
    task = from_factory.build(f"own_model:{name}", 0, small("digits"))
    with pytest.raises(Refused, match=said):
        task.model()


def test_what_ones_own_code_lacks_is_told_by_python(own_code: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        from_factory.build("broken_model:net", 0, None)
