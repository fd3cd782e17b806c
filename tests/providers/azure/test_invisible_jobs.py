"""Runs whose job or workspace in Azure ML is no longer visible, or was never sent."""

from __future__ import annotations

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.submission.lookup import find_run
from tests.fakes.azure.cloud import AzureCloud
from tests.providers.azure.jobs import (
    reconnect,
    submitted,
)
from tests.providers.faults import run_id_of
from tests.support.limits import HANG_SECONDS


def test_a_job_that_is_no_longer_visible_does_not_end_its_run(
    cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.shared.idempotent_create.NEW_JOB_SECONDS", 0)
    run = submitted("lost-1")
    job = cloud.service.jobs.pop("lost-1")
    with pytest.raises(CloudError, match=r"knows no job lost-1") as failed:
        run.status()
    assert "azure.workspace" in str(failed.value.hint)
    with pytest.raises(CloudError, match=r"knows no job lost-1"):
        run.wait(HANG_SECONDS)
    with pytest.raises(CloudError, match=r"knows no job lost-1"):
        run.stop()
    cloud.service.jobs["lost-1"] = job
    assert not find_run("lost-1").status().has_ended


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workspace", "elsewhere"),
        ("subscription", "99999999-0000-0000-0000-000000000000"),
    ],
)
def test_a_workspace_that_is_no_longer_visible_does_not_end_a_run(
    cloud: AzureCloud, field: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(run_id_of("moved", field))
    with monkeypatch.context() as patch:
        patch.setattr(cloud.account, field, value)
        reconnect()
        with pytest.raises(CloudError) as failed:
            run.status()
    assert f"azure.{field}" in str(failed.value.hint)
    reconnect()
    assert run.status().state == "pending"
