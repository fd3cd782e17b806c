"""Fixtures of the imitated clouds' own tests."""

from __future__ import annotations

from tests.fakes.aws.cloud import account, cloud
from tests.fakes.azure.cloud import azure, azure_account, quick_retries, still

__all__ = ["account", "azure", "azure_account", "cloud", "quick_retries", "still"]
