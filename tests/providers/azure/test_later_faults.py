"""Whatever goes wrong after the submit: waiting goes on or ends with words, a stop reaches the job,
nothing is lost.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.api.lookup import find_run, import_remote_runs
from cloudtrain.api.run import Run
from cloudtrain.errors import CloudError
from cloudtrain.providers.azure.submit import reconcile
from cloudtrain.runs.logs import LogLine
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.faults import FaultKind
from tests.providers.azure.jobs import (
    ALWAYS,
    JOB,
    append_log,
    command_line_of,
    exists,
    reconnect,
    submitted,
)
from tests.providers.faults import PERMANENT, TRANSIENT, run_id_of
from tests.support.events import events_of
from tests.support.limits import HANG_SECONDS

OBSERVING = [
    ("history", "GetDiscovery"),
    ("history", "GetRunDetails"),
    ("blob", "HeadBlob"),
    ("blob", "GetBlob"),
]
"""The first of them asks for an address, and needs no credentials."""


def submitted_with_log(cloud: AzureCloud, run_id: str) -> Run:
    """A run with a line in its log, before its first look."""
    run = submitted(run_id)
    append_log(cloud, run_id, 0, "[rank 0] hello")
    reconnect()  # or the address of the run history would be known
    cloud.endpoint.reset()
    return run


@pytest.mark.parametrize("kind", TRANSIENT)
def test_waiting_continues_while_a_cloud_does_not_answer(
    cloud: AzureCloud, kind: FaultKind
) -> None:
    run = submitted_with_log(cloud, run_id_of("wait", kind))
    times = 10 if kind != "slow" else 2
    for call in OBSERVING:
        cloud.endpoint.fault(kind, *call, times=times, seconds=0.05)
    unexpected_errors: set[str] = set()
    lines: list[LogLine] = []
    updates = run.watch()
    while not lines:
        update = next(updates)
        assert not update.state.has_ended
        unexpected_errors.add(update.last_error)
        lines += update.lines
    assert [line.text for line in lines] == ["hello"]
    assert bool(unexpected_errors - {""}) is (kind != "slow")
    struck = Counter(call for _, call in cloud.endpoint.struck)
    assert set(struck) == set(OBSERVING)
    assert kind == "slow" or min(struck.values()) == times


@pytest.mark.parametrize("kind", PERMANENT)
def test_waiting_ends_with_a_message_when_a_retry_cannot_help(
    cloud: AzureCloud, kind: FaultKind
) -> None:
    run = submitted_with_log(cloud, run_id_of("lasting", kind))
    cloud.endpoint.fault(kind, "history", "GetRunDetails", times=ALWAYS)
    with pytest.raises(CloudError) as failed:
        run.wait(20)
    assert ("az login" if kind == "expired" else "AzureML Data Scientist") in str(failed.value.hint)
    cloud.endpoint.reset()
    assert run.status().state == "pending"
    assert [line.text for line in run.logs()] == ["hello"]


@pytest.mark.parametrize("call", OBSERVING[2:], ids=lambda call: call[1])
@pytest.mark.parametrize("kind", ["denied", "expired", "throttle"])
def test_an_unreadable_log_does_not_keep_a_job_from_ending(
    cloud: AzureCloud, tmp_path: Path, kind: FaultKind, call: tuple[str, str]
) -> None:
    run = submitted_with_log(cloud, run_id_of("unread", kind, call[1]))
    cloud.endpoint.fault(kind, *call, times=ALWAYS)
    cloud.put(f"cloudtrain/runs/{run.id}/model/weights", b"w")
    cloud.service.jobs[run.id].finish("Completed")
    assert run.wait(60).state == "succeeded"
    with pytest.raises(CloudError, match="the log cannot be read: reading the log") as failed:
        list(run.logs())
    if kind != "throttle":
        assert ("az login" if kind == "expired" else "Storage Blob Data") in str(failed.value.hint)
    cloud.endpoint.reset()
    assert (run.fetch(tmp_path / "result") / "model" / "weights").read_bytes() == b"w"
    assert [line.text for line in run.logs()] == ["hello"]
    assert run.status().log_unread is None


def test_status_shows_the_last_known_state_and_then_the_error(
    cloud: AzureCloud, tmp_path: Path
) -> None:
    cli = command_line_of(cloud, tmp_path)
    assert cli.run("submit", "--provider", "azure", "--detach", "--run-id", "seen-1").code == 0
    cloud.log_out()
    result = cli.run("status", "seen-1")
    assert result.code == 4
    assert "seen-1  pending" in result.out
    assert "no Azure credentials" in result.err
    assert "Traceback" not in result.err


def test_observing_a_run_during_its_submit_does_not_end_it(
    cloud: AzureCloud, tmp_path: Path
) -> None:
    cli = command_line_of(cloud, tmp_path)
    cloud.endpoint.fault("hang_before", "arm", "PutCode")
    client = cli.start("submit", "--provider", "azure", "--detach", "--run-id", "looked-at")
    cloud.endpoint.wait_until_hanging()
    assert cli.json("status", "looked-at")["state"] == "submitting"
    cloud.endpoint.release()
    client.communicate(timeout=HANG_SECONDS)
    assert client.returncode == 0
    assert cli.json("status", "looked-at")["state"] == "pending"


@pytest.mark.parametrize("then", ["throttle", "denied", "expired"])
def test_a_first_attempt_of_unknown_outcome_counts_when_the_second_fails_otherwise(
    cloud: AzureCloud, then: FaultKind
) -> None:
    run_id = f"first-lost-{then}"
    cloud.endpoint.fault("lost", "arm", "PutJob", times=4)  # so often the SDK itself tries
    cloud.endpoint.fault(then, "arm", "PutJob", nth=5, times=ALWAYS)
    cloud.endpoint.fault("throttle", "arm", "GetJob", nth=2, times=4)
    with suppress(CloudError):
        submitted(run_id)
    cloud.endpoint.reset()
    assert exists(cloud, run_id)
    assert find_run(run_id).status().state == "pending"


def test_a_job_that_is_no_longer_visible_does_not_end_its_run(
    cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.cloud.idempotent_create.NEW_JOB_SECONDS", 0)
    run = submitted("lost-1")
    job = cloud.service.jobs.pop("lost-1")
    with pytest.raises(CloudError, match=r"knows no job lost-1") as failed:
        run.status()
    assert "azure.workspace" in str(failed.value.hint)
    with pytest.raises(CloudError, match=r"knows no job lost-1"):
        run.wait(20)
    with pytest.raises(CloudError, match=r"knows no job lost-1"):
        run.stop()
    cloud.service.jobs["lost-1"] = job
    assert not find_run("lost-1").status().has_ended


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workspace", "elsewhere"),
        ("resource_group", "elsewhere"),
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


def test_last_is_the_last_run_of_this_machine_also_after_an_import(
    cloud: AzureCloud, tmp_path_factory: pytest.TempPathFactory
) -> None:
    submitted("elsewhere-1")
    here = str(tmp_path_factory.mktemp("here"))
    plan = cloudtrain.plan(cloudtrain.load(JOB), "azure", run_id="mine-1", data_dir=here)
    cloudtrain.submit(plan)
    assert "elsewhere-1" in import_remote_runs("azure", data_dir=here)
    assert find_run("last", data_dir=here).id == "mine-1"


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_job_of_another_machine_is_imported_despite_transient_faults(
    cloud: AzureCloud, kind: FaultKind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = submitted(run_id_of("taken-up", kind))
    append_log(cloud, run.id, 0, "[rank 0] hello")
    cloud.service.jobs[run.id].finish("Completed")
    here = str(tmp_path_factory.mktemp("here"))
    for call in [
        ("arm", "GetJob"),
        ("history", "GetRunDetails"),
        ("blob", "HeadBlob"),
        ("blob", "GetBlob"),
    ]:
        cloud.endpoint.fault(kind, *call)
    adopted = find_run(run.id, data_dir=here, provider="azure")
    assert adopted.wait(20).state == "succeeded"
    assert [line.text for line in adopted.logs()] == ["hello"]


def test_following_a_job_with_expiring_credentials_says_that_it_goes_on(
    cloud: AzureCloud, tmp_path: Path
) -> None:
    cli = command_line_of(cloud, tmp_path)
    cloud.endpoint.fault("expired", "history", "GetRunDetails", nth=3, times=ALWAYS)
    result = cli.run("submit", "--provider", "azure", "--run-id", "followed-1")
    assert result.code == 4
    assert "the credentials have expired" in result.err
    assert "the job goes on meanwhile: cloudtrain wait followed-1" in result.err.replace(
        "python -m ", ""
    )
    assert "Traceback" not in result.err


def test_a_submission_that_sent_nothing_is_reconciled_without_a_call(cloud: AzureCloud) -> None:
    run = submitted("unsent-1")
    kept = [event for event in events_of(run.folder) if event["type"] == "submitting"]
    run.folder.events_file.write_text("".join(json.dumps(event) + "\n" for event in kept))
    cloud.endpoint.reset()
    from cloudtrain.providers.azure.client import workspace

    account = cloud.account
    at = workspace(account.subscription, account.resource_group, account.workspace)
    (ended,) = reconcile(at, run.folder, time.time())
    assert ended.to_json()["reason"].endswith("nothing was started")
    assert cloud.endpoint.calls == []
