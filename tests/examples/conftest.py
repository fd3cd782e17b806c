"""Fixtures: ranks of the examples, forked by one server that has imported what they import."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.entrypoints.groups import ForkServer, Group


class Run(Protocol):
    """The fixture `run`: runs a function of `ranks.py` on ranks in the test's folder."""

    def __call__(self, function: str, flags: str = ..., *, ranks: int = ...) -> Group: ...


class Losses(Protocol):
    """The fixture `losses`: runs a program in the test's folder; returns the losses it prints."""

    def __call__(self, program: str, flags: str, *, ranks: int = ...) -> list[float]: ...


@pytest.fixture(scope="session")
def example_server() -> Iterator[ForkServer]:
    """The process whose forks are the ranks of the examples."""
    server = ForkServer("tests.examples.ranks")
    yield server
    server.close()


@pytest.fixture
def run(example_server: ForkServer, tmp_path: Path) -> Run:
    """Runs a function on ranks, which must succeed."""

    def run_ranks(function: str, flags: str = "", *, ranks: int = 1) -> Group:
        main = f"tests.examples.ranks:{function}"
        group = Group(example_server, tmp_path, ranks, flags, program=main)
        assert group.wait() == [0] * ranks, group.output()
        return group

    return run_ranks


@pytest.fixture
def losses(run: Run) -> Losses:
    """Runs a program on some ranks, or with `ranks=0` its model in a loop by hand."""

    def read(program: str, flags: str, *, ranks: int = 0) -> list[float]:
        flags = f"{program} {flags}"
        if ranks:
            group = run("run_program", flags, ranks=ranks)
        else:
            group = run("train_alone", flags)
        printed = re.findall(r"^\w+ \d+: loss (\S+)$", group.logs[0].read_text(), re.MULTILINE)
        return [float(loss) for loss in printed]

    return read
