"""Every strategy on two and four ranks learns what one process learns, and survives what may happen to it."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
import torch

from cloudtrain_trainer import state
from tests.entrypoints.strategy_checks import OWN, TOLERANCE, alone, begin, curve, quiet
from tests.entrypoints.test_training import Launch, torchrun

HERE = Path(__file__).parent


@pytest.mark.torchrun
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_loss_curve_is_that_of_one_process(tmp_path: Path, ranks: int) -> None:
    launch = torchrun(tmp_path, ranks, HERE / "strategy_checks.py")
    launch.finish()
    output = "".join(launch.lines)
    assert launch.process.returncode == 0, output
    assert len(re.findall(r"^all checks passed on rank \d$", output, re.MULTILINE)) == ranks


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("digits", "--strategy model-parallel --clip-norm 0.5"),
        ("digits", "--strategy dp --accumulate 3"),
        ("gpt", "--strategy model-parallel --stages 4"),
        ("resnet50", "--strategy model-parallel"),
    ],
)
def test_so_it_is_when_one_process_drives_several_devices(name: str, flags: str) -> None:
    """Here all of them are the CPU: values are checked, not placement."""
    torch.set_num_threads(1)
    task, own = quiet(name), [f"--{key}={value}" for key, value in OWN.get(name, {}).items()]
    argv = ["--task", name, "--batch-size", "32", *own]
    clip = ["--clip-norm", "0.5"] if "--clip-norm" in flags else []
    found, wanted = curve(task, [*argv, *flags.split()], alone()), curve(task, [*argv, *clip], alone())
    assert found == pytest.approx(wanted, rel=TOLERANCE)


def test_replicas_of_dp_compute_in_the_precision_that_was_asked_for() -> None:
    """torch runs each in a new thread under `autocast(enabled=True)`, which on a GPU means fp16 there."""
    loop = begin(quiet("digits"), ["--strategy", "dp", "--amp", "bf16"], alone())
    assert isinstance(loop.step.wrapped, torch.nn.DataParallel)
    replica = loop.step.wrapped.module._replicate_for_data_parallel()
    inputs, _ = next(loop.batches.load(0, 0))
    seen: list[torch.dtype] = []

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            seen.append(replica(inputs).dtype)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [torch.bfloat16]


@pytest.mark.parametrize("strategy", ["dp", "model-parallel"])
def test_the_generator_of_every_gpu_is_kept(strategy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two GPUs, of which only the generators are there: what is saved for each comes back to it."""
    loop, gpus = begin(quiet("digits"), ["--strategy", strategy], alone()), [torch.device("cuda", n) for n in (0, 1)]
    states = {device: torch.tensor([10 + device.index], dtype=torch.uint8) for device in gpus}
    monkeypatch.setattr(torch.cuda, "get_rng_state", states.__getitem__)
    monkeypatch.setattr(type(loop.strategy), "devices", gpus)
    torch.save(state.generator_states(loop.strategy.devices), tmp_path / "own.pt")
    wanted = dict(states)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda one, device: states.update({device: one}))
    states.clear()
    state.restore_generators(torch.load(tmp_path / "own.pt", weights_only=True), loop.strategy.devices)
    assert states == wanted
    assert loop.checkpointer._layout()["devices"] == 2, "with other GPUs the noise is drawn anew, and it is said"


@pytest.mark.torchrun
@pytest.mark.parametrize("check", ["killed", "resharded", "probed", "ran_out"])
def test_a_training_survives(tmp_path: Path, check: str) -> None:
    """killed: resumed to the bit. resharded: goes on elsewhere. probed, ran_out: too little memory, same result."""
    launch = Launch(tmp_path, str(HERE / "forked.py"), check, str(tmp_path))
    launch.finish()
    assert launch.process.returncode == 0, "".join(launch.lines)
