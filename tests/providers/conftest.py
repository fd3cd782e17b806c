"""Fixtures of the provider tests: clouds of their own."""

from __future__ import annotations

from tests.loopback.aws.fixtures import account, cloud
from tests.loopback.azure.fixtures import azure, azure_account, quick_retries

__all__ = ["account", "azure", "azure_account", "cloud", "quick_retries"]
