"""The checks for real accounts work on the imitated ones, so that they are ready for a person with
an account.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.containers import Container
from tests.live import __main__ as live
from tests.providers.aws.accounts import HealthyAccount
from tests.repo.tools import ROOT
from tests.support.waiting import HANG_SECONDS


@pytest.fixture
def forked() -> Iterator[None]:
    Container.forked = True
    yield
    Container.forked = False


@pytest.mark.thorough
@pytest.mark.torchrun
def test_every_fact_is_seen_on_sagemaker(
    tmp_path: Path, forked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cloud() as cloud:
        account = HealthyAccount(cloud, name=cloud.role.rpartition("/")[2])
        assert facts_not_seen("aws", cloud.clean() | account.make(), tmp_path, monkeypatch) == []


@pytest.mark.thorough
@pytest.mark.torchrun
def test_every_fact_is_seen_on_azure_ml(
    tmp_path: Path, forked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AzureCloud() as cloud:
        assert facts_not_seen("azure", cloud.clean(), tmp_path, monkeypatch) == []


def facts_not_seen(
    provider: str, environment: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str, str]]:
    monkeypatch.setattr(live, "POLL_SECONDS", 0.2)
    account = live.Account(provider, 8.0, folder / "live")
    account.environment = environment
    return [row for row in live.prove(account) if row[1] != "yes"]


def test_nothing_is_started_without_the_word_of_a_person() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CLOUDTRAIN_LIVE"}
    process = subprocess.run(
        [sys.executable, "-m", "tests.live", "aws"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert process.returncode == 2
    assert "set CLOUDTRAIN_LIVE=aws" in process.stderr
