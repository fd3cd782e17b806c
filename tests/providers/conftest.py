"""Fixtures of the provider tests: clouds of their own."""

from __future__ import annotations

import pytest

from tests.fakes.aws.fixtures import account, cloud
from tests.fakes.azure.fixtures import azure, azure_account, quick_retries
from tests.support.third_party import ssh_provider, ssh_site

__all__ = [
    "account",
    "azure",
    "azure_account",
    "cloud",
    "quick_retries",
    "ssh_provider",
    "ssh_site",
]


@pytest.fixture
def quick_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fault this process tries again at once, where its own code waits: at a create, and
    between looks.
    """
    monkeypatch.setattr("cloudtrain.providers.cloud.idempotent_create.BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr("cloudtrain.api.monitor.MAX_BACKOFF", 1)
