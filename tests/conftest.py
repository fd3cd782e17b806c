"""What all tests share: a home of their own, no settings from outside, and no process left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new home for each test; nothing of the person's own settings or runs is seen or touched."""
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith(("CLOUDTRAIN_", "XDG_", "PET_", "TORCHELASTIC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    return home
