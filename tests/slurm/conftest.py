"""The client of the cluster, which looks more often than at a real one."""

from __future__ import annotations

import pytest

from cloudtrain.providers.slurm.provider import Slurm
from tests.slurm.cluster import CONF


@pytest.fixture(autouse=True)
def _client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", CONF)
    monkeypatch.setattr(Slurm, "poll_seconds", lambda *_: 0.3)
