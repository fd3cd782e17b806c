"""`--amp fp8`: which layers are converted, where it is refused, and, with torchao, that models
still learn.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch
from torch import nn

from cloudtrain_trainer import tasks
from cloudtrain_trainer.models import float8
from cloudtrain_trainer.models.float8 import candidates, convert
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.training.loop import Loop
from tests.entrypoints.loss_curves import (
    begin,
    one_process,
    relative_difference,
    small_task,
    task_flags,
    train,
)

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
FP8_TOLERANCE = 2e-2
"""Relative, of the losses of some steps; 2.3e-3 was seen. FP8 has 3 bits after the point, and bf16
7.
"""


def test_linear_layers_of_all_blocks_are_chosen_but_not_the_head() -> None:
    layers, others = candidates(tasks.build("gpt", 0).model())
    parts = ("attention.qkv", "attention.out", "feed.gate_up", "feed.down")
    assert layers == [f"layers.{number}.{part}" for number in range(4) for part in parts]
    assert others == ["head"]


def test_first_and_last_layer_and_odd_sizes_stay() -> None:
    model = nn.Sequential(
        nn.Linear(16, 32),
        nn.Linear(32, 24),
        nn.Linear(24, 32),
        nn.ReLU(),
        nn.Linear(32, 48),
        nn.Linear(48, 16),
    )
    assert candidates(model) == (["4"], ["0", "1", "2", "5"])


@pytest.mark.parametrize(
    ("device", "capability", "installed", "message"),
    [
        (
            CPU,
            None,
            True,
            "needs a GPU of compute capability 8.9 .* and this is a CPU: use --amp bf16",
        ),
        (GPU, (8, 0), True, "and this is NVIDIA A100: use --amp bf16"),
        (GPU, (8, 9), False, "needs torchao .the extra fp8; .* or use --amp bf16"),
        (GPU, (8, 9), True, None),
        (GPU, (9, 0), True, None),
    ],
)
def test_fp8_needs_a_gpu_that_has_it_and_torchao(
    device: torch.device,
    capability: tuple[int, int] | None,
    installed: bool,
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    monkeypatch.setattr(float8, "find_spec", lambda _: object() if installed else None)
    if message is None:
        float8.check(device)
        return
    with pytest.raises(Refused, match=message):
        float8.check(device)


def test_a_cpu_refuses_before_training(make_loop: Callable[..., Loop]) -> None:
    with pytest.raises(Refused, match="this is a CPU: use --amp bf16"):
        make_loop("--amp", "fp8")


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of numbers that were rounded to FP8, on a CPU."""
    if importlib.util.find_spec("torchao") is None:
        pytest.skip("torchao is not installed")
    monkeypatch.setattr(float8, "EMULATED_ON", ("cpu",))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("flags", ["", "--recompute blocks", "--clip-norm 0.5"])
def test_the_losses_are_near_those_of_bf16_and_not_the_same(flags: str) -> None:
    torch.set_num_threads(1)
    given = [*task_flags("gpt"), *flags.split()]
    found, expected = (
        train(begin(small_task("gpt"), [*given, "--amp", amp], one_process()))
        for amp in ("fp8", "bf16")
    )
    assert found.norms != expected.norms
    assert relative_difference(found.losses[:-1], expected.losses[:-1]) < FP8_TOLERANCE


@pytest.mark.usefixtures("emulated")
def test_parameters_keep_their_names_and_stay_in_float32() -> None:
    model = tasks.build("gpt", 0).model()
    before = {name: value.shape for name, value in model.state_dict().items()}
    convert(model, CPU)
    assert {name: value.shape for name, value in model.state_dict().items()} == before
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}


@pytest.mark.usefixtures("emulated")
def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(Refused, match="finds no linear layers between the first and the last"):
        convert(tasks.build("resnet50", 0, size="tiny", data="synthetic").model(), CPU)
