"""Fixtures of the provider tests: separate clouds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import boto3.s3.transfer
import pytest

from tests.fakes.aws.cloud import account, cloud
from tests.fakes.azure.cloud import azure, azure_account, quick_retries
from tests.providers.sites import PROVIDERS, Site, new_source, open_site
from tests.support.clock import Clock
from tests.support.wheels import ssh_provider, ssh_site

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
    monkeypatch.setattr("cloudtrain.providers.shared.idempotent_create.BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr("cloudtrain.api.monitor.MAX_BACKOFF", 1)


@pytest.fixture
def clock() -> Iterator[Clock]:
    """Time passes at once when this process sleeps."""
    with pytest.MonkeyPatch.context() as patch:
        made = Clock()
        made.install(patch)
        yield made


@pytest.fixture
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data folder of a second machine; the default one is the colleague's."""
    return str(tmp_path_factory.mktemp("second-machine"))


@pytest.fixture(scope="module", params=PROVIDERS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """One imitated cloud after the other."""
    with open_site(request.param) as opened:
        yield opened


@pytest.fixture
def site_folder(
    site: Site,
    quick_attempts: None,
    own_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The folder of the job, of a client of this cloud."""
    for name, value in site.cloud.environment().items():
        monkeypatch.setenv(name, value)
    job = tmp_path / "job"
    job.mkdir()
    new_source(job)
    monkeypatch.chdir(job)
    site.cloud.endpoint.reset()
    return job


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the large sources of `operations` in parts."""
    from tests.providers.aws.operations import LARGE_BYTES

    monkeypatch.setattr("cloudtrain.providers.aws.client.ONE_REQUEST_BYTES", LARGE_BYTES // 2)
    in_parts = partial(boto3.s3.transfer.TransferConfig, multipart_threshold=LARGE_BYTES // 2)
    monkeypatch.setattr("cloudtrain.providers.aws.client.TransferConfig", in_parts)
    monkeypatch.setattr("cloudtrain.providers.docker.engine.stored_login", lambda _: None)
