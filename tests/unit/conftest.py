"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.runs.store import RunStore


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A data folder without any run."""
    return RunStore(tmp_path / "data")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a job folder with a program as the working folder; runs are stored beside it, in
    `data`.
    """
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").touch()
    monkeypatch.chdir(tmp_path / "job")
    return tmp_path / "job"


@pytest.fixture
def home(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """The runs of a user whose clock stands still."""
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(store.data_dir))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    return store
