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
