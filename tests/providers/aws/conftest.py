"""Fixtures of the tests of wire and faults: a cloud whose jobs never get beyond their first phase,
a job folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import botocore.loaders
import pytest

from tests.fakes.aws.cloud import Cloud


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """Provide a cloud that keeps every job in its first phase; jobs never run."""
    with Cloud(phase_seconds=3600) as made:
        yield made


create_loader = cache(botocore.loaders.create_loader)
"""Each new client of boto3 would read the models of its service again."""


@pytest.fixture(autouse=True)
def folder(
    cloud: Cloud, quick_attempts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    from cloudtrain.providers.aws.client import aws

    aws.cache_clear()  # it holds connections to the cloud of another test
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("botocore.loaders.create_loader", create_loader)
    monkeypatch.setattr(
        "botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('never run')\n")
    cloud.endpoint.reset()
    cloud.account.denied_actions.clear()
    return tmp_path
