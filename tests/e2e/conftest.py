"""Fixtures of the tests that run real commands and real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.workbench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A workbench of one test."""
    made = Bench(tmp_path / "bench")
    yield made
    made.close()
