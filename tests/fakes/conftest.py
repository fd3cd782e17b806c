"""Fixtures of the imitated clouds' own tests."""

from __future__ import annotations

from tests.fakes.aws.fixtures import account, cloud
from tests.fakes.azure.fixtures import azure, azure_account, quick_retries, still

__all__ = ["account", "azure", "azure_account", "cloud", "quick_retries", "still"]
