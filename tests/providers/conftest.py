"""Fixtures of the provider tests: clouds of their own."""

from __future__ import annotations

from tests.fakes.aws.fixtures import account, cloud
from tests.fakes.azure.fixtures import azure, azure_account, quick_retries
from tests.support.third_party import ssh_provider, ssh_site

__all__ = ["account", "azure", "azure_account", "cloud", "quick_retries", "ssh_provider", "ssh_site"]
