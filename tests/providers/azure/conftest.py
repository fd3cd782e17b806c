"""Fixtures of the tests of wire and faults: a workspace whose jobs never get beyond their first
phase, a job folder.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.azure.cloud import AzureCloud, cheap_clients
from tests.providers.azure.operations import forget


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureCloud]:
    """Provide a workspace that keeps every job in its first phase; jobs never run."""
    forget()
    with AzureCloud(phase_seconds=3600) as made, cheap_clients():
        yield made
        forget()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture
def cloud(azure_account: AzureCloud) -> AzureCloud:
    return azure_account


@pytest.fixture(autouse=True)
def folder(
    cloud: AzureCloud,
    quick_retries: None,
    quick_attempts: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    monkeypatch.chdir(tmp_path)
    # New to the workspace.
    (tmp_path / "train.py").write_text(f"print('never run', {str(tmp_path)!r})\n")
    cloud.endpoint.reset()
    return tmp_path
