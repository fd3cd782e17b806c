"""Every strategy has the losses of one process, and handles devices, precision and generators."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from cloudtrain_trainer import state
from cloudtrain_trainer.tasks import Draw
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.loss_curves import (
    PADDED,
    STEPS,
    TOLERANCE,
    begin,
    one_process,
    small_task,
    task_flags,
    train,
)


@pytest.mark.once
@pytest.mark.parametrize(("ranks", "program"), [(2, "curves"), (4, "curves"), (2, "details")])
def test_losses_and_gradients_are_those_of_one_process(
    group: StartGroup, ranks: int, program: str
) -> None:
    """Run strategy_checks.py, one group of ranks per size."""
    checks = group(ranks, program=f"tests.entrypoints.strategy_checks:{program}")
    assert checks.wait() == [0] * ranks, checks.output()
    assert [log.read_text().count("all checks passed on rank") for log in checks.logs] == [
        1
    ] * ranks


def curve_by_hand(name: str) -> list[float]:
    """Return losses and val_loss of a loop by functions of torch alone, on whole batches."""
    task = small_task(name)
    torch.manual_seed(0)
    model = task.model()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(matrices, weight_decay=task.weight_decay)
    optimizer.add_param_group({"params": vectors, "weight_decay": 0.0})
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(0)).tolist()

    def loss_of(data: Any, indices: list[int]) -> torch.Tensor:
        inputs, labels = data[Draw(0, indices)]
        return F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())

    losses = []
    for number in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = task.lr * (number + 1) / 10
        loss = loss_of(task.train, order[32 * number : 32 * (number + 1)])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():
        return [*losses, loss_of(task.validation, list(range(61))).item()]


@pytest.mark.parametrize("name", ["digits", "gpt", PADDED])
def test_micro_batches_have_the_losses_of_a_loop_written_by_hand(name: str) -> None:
    torch.set_num_threads(1)
    expected = curve_by_hand(name)
    for accumulate in ("1", "8"):
        flags = [*task_flags(name), "--accumulate", accumulate]
        trained = train(begin(small_task(name), flags, one_process()))
        assert trained.losses[:-1] == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("digits", "--strategy model-parallel --clip-norm 0.5"),
        ("digits", "--strategy dp --accumulate 3"),
        ("gpt", "--strategy model-parallel --stages 4"),
        ("resnet50", "--strategy model-parallel"),
    ],
    ids=["digits, stages, clipped", "digits, dp", "gpt, stages", "resnet50, stages"],
)
def test_losses_are_the_same_when_one_process_uses_several_devices(name: str, flags: str) -> None:
    """Here all devices are the CPU: values are checked, not placement."""
    torch.set_num_threads(1)
    clip = ["--clip-norm", "0.5"] if "--clip-norm" in flags else []
    spread = train(begin(small_task(name), [*task_flags(name), *flags.split()], one_process()))
    expected = train(begin(small_task(name), [*task_flags(name), *clip], one_process()))
    assert spread.losses == pytest.approx(expected.losses, rel=TOLERANCE)


def test_replicas_of_dp_compute_in_the_requested_precision() -> None:
    """torch runs each replica in a new thread, where autocast means fp16 on a GPU."""
    loop = begin(small_task("digits"), ["--strategy", "dp", "--amp", "bf16"], one_process())
    assert isinstance(loop.step.wrapped, torch.nn.DataParallel)
    replica = loop.step.wrapped.module._replicate_for_data_parallel()
    inputs, _ = next(loop.batches.load(0, 0))
    dtypes: list[torch.dtype] = []

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            dtypes.append(replica(inputs).dtype)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert dtypes == [torch.bfloat16]


@pytest.mark.parametrize("strategy", ["dp", "model-parallel"])
def test_the_generator_of_every_gpu_is_saved_and_restored(
    strategy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two simulated GPUs with generators only: each gets its state back."""
    loop = begin(small_task("digits"), ["--strategy", strategy], one_process())
    gpus = [torch.device("cuda", n) for n in (0, 1)]
    states = {device: torch.tensor([10 + device.index], dtype=torch.uint8) for device in gpus}
    monkeypatch.setattr(torch.cuda, "get_rng_state", states.__getitem__)
    monkeypatch.setattr(type(loop.strategy), "devices", gpus)
    torch.save(state.generator_states(loop.strategy.devices), tmp_path / "own.pt")
    expected = dict(states)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda one, device: states.update({device: one})
    )
    states.clear()
    state.restore_generators(
        torch.load(tmp_path / "own.pt", weights_only=True), loop.strategy.devices
    )
    assert states == expected
    assert loop.checkpointer._layout()["devices"] == 2, (
        "a resume with another number of GPUs seeds the generators again"
    )
