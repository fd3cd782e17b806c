"""The programs of `examples/parallelism` on CPU ranks: their losses are those of one process.

Losses are printed with six digits. Sums in another order change the last one or two of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.examples.conftest import Losses, Run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "parallelism"
PROGRAMS = sorted(EXAMPLES.glob("*/*.py"))
TOLERANCE = 5e-6


class Case(NamedTuple):
    """A program on some ranks, and the flags of both sides of the comparison."""

    program: str
    ranks: int
    flags: str
    own: str = ""
    """Further flags of the program."""
    alone: str = ""
    """Further flags of the loop by hand."""


CASES = {
    "data-parallel": Case("data-parallel/data_parallel.py", 1, "--steps=4"),
    "ddp": Case("ddp/ddp.py", 2, "--epochs=2"),
    "tensor": Case("tensor/tensor.py", 2, "--steps=4"),
    "two stages": Case("pipeline/pipeline.py", 2, "--steps=4"),
    "four stages": Case("pipeline/pipeline.py", 4, "--steps=4", own="--micro-batches=8"),
    "model-parallel": Case("model-parallel/model_parallel.py", 1, "--steps=2"),
    "hybrid": Case("hybrid/hybrid.py", 4, "--steps=4", own="--tensor=2"),
    "context-parallel": Case("context-parallel/context_parallel.py", 4, "--steps=4 --tokens=64"),
    "keras": Case("keras/keras_ddp.py", 2, "--steps=4", alone="--parts=2"),
}


@pytest.mark.once
@pytest.mark.parametrize("name", CASES)
def test_a_program_has_the_losses_of_one_process(name: str, losses: Losses) -> None:
    case = CASES[name]
    expected = losses(case.program, f"{case.flags} {case.alone}")
    assert len(expected) >= 2
    measured = losses(case.program, f"{case.flags} {case.own}", ranks=case.ranks)
    assert measured == pytest.approx(expected, abs=TOLERANCE)


def test_fsdp2_continues_on_another_number_of_ranks_from_its_newest_complete_checkpoint(
    losses: Losses, tmp_path: Path
) -> None:
    expected = losses("fsdp2/fsdp2.py", "--steps=6")
    before = losses("fsdp2/fsdp2.py", "--steps=3", ranks=4)
    assert before == pytest.approx(expected[:3], abs=TOLERANCE)
    (tmp_path / "checkpoints" / "step-000005").mkdir()  # of a run that died while it saved
    after = losses("fsdp2/fsdp2.py", "--steps=6", ranks=2)
    assert after == pytest.approx(expected[3:], abs=TOLERANCE)


def test_resnet_50_is_whole_and_ends_on_the_second_device(run: Run) -> None:
    printed = run("split_resnet").logs[0].read_text()
    assert printed == "25557032 parameters\ndevices cpu meta meta\n"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.parent.name)
def test_a_program_says_first_what_its_technique_costs_and_when_to_use_it(path: Path) -> None:
    description = path.read_text().split('"""')[1]
    for topic in (
        r"Memory\b",
        r"\b[Mm]essages\b",
        r"\b[Uu]se\b",
        "For real work: ",
        "    (torchrun|python) ",
    ):
        assert re.search(topic, description), topic
