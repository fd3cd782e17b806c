"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.runs.store import RunStore


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A data folder without any run."""
    return RunStore(tmp_path / "data")
