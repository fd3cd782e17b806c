"""Fixtures that other test folders take over: `from tests.fakes.aws.fixtures import cloud,
account`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.fakes.aws.cloud import Cloud


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """Provide a cloud for all tests of a module; closing it reports its own mistakes."""
    with Cloud() as made:
        yield made
    assert not made.account.unexpected_errors, "\n".join(made.account.unexpected_errors)


@pytest.fixture
def account(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """The same cloud for one test: no faults, no calls, no lacks, and this process is its client."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    cloud.endpoint.reset()
    before = dict(vars(cloud.account))
    yield cloud
    cloud.endpoint.reset()
    cloud.account.capacity.clear()
    cloud.account.quotas.clear()
    cloud.account.missing_images.clear()
    cloud.account.denied_actions.clear()
    for name in (
        *("grace_seconds", "phase_seconds", "has_warm_pools"),
        *("caller_policy", "job_policy", "tag_delay_seconds"),
    ):
        setattr(cloud.account, name, before[name])
    cloud.account.logs.lag_seconds = 0
