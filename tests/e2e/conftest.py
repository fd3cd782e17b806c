"""Fixtures of the tests that run real commands and real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CommandLine]:
    """A job folder and a home for one test; its local runs are forks of a process that has imported
    torch.
    """
    made = CommandLine(tmp_path / "workspace", modules=("warm_jobs",))
    yield made
    made.close()


@pytest.fixture(scope="module")
def cli_with_inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """The same for the tests of a module, with two inputs beside its folder."""
    made = CommandLine(
        tmp_path_factory.mktemp("e2e") / "a folder, with spaces", modules=("warm_jobs",)
    )
    (made.folder / "data").mkdir()
    (made.folder / "data" / "x.txt").write_text("input data")
    (made.folder / "data" / "t.csv").write_text("a,b")
    yield made
    made.close()
