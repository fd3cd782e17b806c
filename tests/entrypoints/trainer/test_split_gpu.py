"""A step of strategies that split a model on fake tensors of GPUs."""

from __future__ import annotations

import pytest

from tests.entrypoints.trainer.split_gpu_steps import CASES, FAULTS
from tests.entrypoints.trainer.test_fake_gpu import problems_of

pytestmark = [pytest.mark.once, pytest.mark.linux("loads a library before torch, by rpath")]


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run split_gpu_steps.py."""
    return problems_of("split_gpu_steps", tmp_path_factory.mktemp("gpu"))


@pytest.mark.parametrize("case", CASES)
def test_a_step_mixes_no_devices_and_waits_for_no_copy(
    problems: dict[str, list[str]], case: str
) -> None:
    assert problems[case] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(problems: dict[str, list[str]], fault: str) -> None:
    expected = "at least two devices, cuda:1 and cpu"
    assert any(expected in problem for problem in problems[fault]), problems[fault]
