"""Fixtures of the tests that run real commands and real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CommandLine]:
    """A job folder and a home for one test."""
    made = CommandLine(tmp_path / "workspace")
    yield made
    made.close()
