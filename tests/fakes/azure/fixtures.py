"""Fixtures that other test folders take over: `from tests.fakes.azure.fixtures import azure,
azure_account`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator

import pytest

from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.schema import official_schema, official_violations


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureCloud]:
    """Provide a workspace for all tests of a module.

    Closing it reports its own mistakes, and checks requests against Microsoft's schema if
    available.
    """
    with AzureCloud() as made:
        yield made
    assert not made.account.unexpected_errors, "\n".join(made.account.unexpected_errors)
    official = official_schema() or {}
    for job in made.service.jobs.values():
        assert official_violations(official, job.properties) == [], job.name


@pytest.fixture
def azure_account(azure: AzureCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureCloud]:
    """The same workspace for one test: no faults, no calls, no lacks, and this process is its
    client.
    """
    # The SDK writes AZUREML_CURRENT_CLOUD itself: what is unset here is unset again afterwards.
    monkeypatch.setenv("AZUREML_CURRENT_CLOUD", "")
    for name in [
        name
        for name in os.environ
        if name.startswith(("AZURE_", "ARM_", "AZUREML_", "MSI_", "IDENTITY_"))
    ]:
        monkeypatch.delenv(name)
    for name, value in azure.environment().items():
        monkeypatch.setenv(name, value)
    azure.endpoint.reset()
    account = azure.account
    state = (
        "computes",
        "quotas",
        "vm_sizes",
        "secrets",
        "access",
        "rights",
    )
    plain = (
        *("user", "phase_seconds", "job_page", "blob_page"),
        *("datastore_credentials", "workspace_state", "takes_keys", "secret_seconds"),
    )
    before = {name: copy.deepcopy(getattr(account, name)) for name in (*state, *plain)}
    yield azure
    azure.endpoint.reset()
    azure.log_out(and_in=True)
    for name, value in before.items():
        setattr(account, name, value)


@pytest.fixture
def still(azure_account: AzureCloud) -> AzureCloud:
    """The same workspace, with jobs that never get beyond their first phase."""
    azure_account.account.phase_seconds = 3600
    return azure_account


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure's clients of this process try again at once; by themselves they wait 15 s before
    storage's second try.
    """
    for place in (
        "azure.core.pipeline.policies.RetryPolicy.get_backoff_time",
        "azure.storage.blob._shared.policies.ExponentialRetry.get_backoff_time",
    ):
        monkeypatch.setattr(place, lambda *_: 0.01)
