"""A step of each strategy on fake tensors of GPUs: devices, dtypes, pinned copies, fused optimizers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.entrypoints.trainer.fake_gpu_steps import CASES, FAULTS
from tests.repo.tools import ROOT
from tests.support.waiting import HANG_SECONDS

pytestmark = [pytest.mark.once, pytest.mark.linux("loads a library before torch, by rpath")]

SEEN_AS = {
    "a batch that stays in host memory": "a copy to cuda:1 waits",  # DDP moves it
    "a step without autocast": "mm computes in torch.float32",
    "autocast of another device": "mm computes in torch.float32",
    "a batch that is not pinned": "a copy reads memory that is not pinned",
    "a copy that waits": "a copy to cuda:1 waits",
    "an optimizer that is not fused": "the optimizer is not fused",
}


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run fake_gpu_steps.py."""
    return problems_of("fake_gpu_steps", tmp_path_factory.mktemp("gpu"))


def problems_of(program: str, folder: Path) -> dict[str, list[str]]:
    """Run a program in a process that loads the fake GPUs before torch."""
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA, which takes the place of the fake GPUs")
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler, which tests/support/fake_gpu.cpp needs")

    library = folder / "fake_gpu.so"
    home = Path(torch.__file__).parent
    subprocess.run(
        [
            compiler,
            "-std=c++20",
            "-shared",
            "-fPIC",
            f"-I{home / 'include'}",
            str(ROOT / "tests" / "support" / "fake_gpu.cpp"),
            f"-L{home / 'lib'}",
            f"-Wl,-rpath,{home / 'lib'}",
            "-lc10",
            "-ltorch_cpu",
            "-o",
            str(library),
        ],
        check=True,
        timeout=HANG_SECONDS,
    )
    code = (
        f"import ctypes; ctypes.CDLL({str(library)!r});"
        f" from tests.entrypoints.trainer import {program}; {program}.main()"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=HANG_SECONDS,
    ).stdout
    answer: dict[str, list[str]] = json.loads(output.splitlines()[-1])
    return answer


@pytest.mark.parametrize("case", CASES)
def test_a_step_mixes_no_devices_and_waits_for_no_copy(
    problems: dict[str, list[str]], case: str
) -> None:
    assert problems[case] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(problems: dict[str, list[str]], fault: str) -> None:
    assert any(SEEN_AS[fault] in problem for problem in problems[fault]), problems[fault]
