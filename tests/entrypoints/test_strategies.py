"""Every strategy on two and four ranks learns what one process learns, and survives what may happen to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.entrypoints.strategy_checks import OWN, TOLERANCE, alone, curve, quiet
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


@pytest.mark.torchrun
@pytest.mark.timeout(240)
@pytest.mark.parametrize("check", ["killed", "resharded", "probed", "ran_out"])
def test_a_training_survives(tmp_path: Path, check: str) -> None:
    """killed: resumed to the bit. resharded: goes on elsewhere. probed, ran_out: too little memory, same result."""
    launch = Launch(tmp_path, str(HERE / "forked.py"), check, str(tmp_path), deadline=220)
    launch.finish()
    assert launch.process.returncode == 0, "".join(launch.lines)
