"""Faults while a job is stopped: it is cancelled, or an error reports that it is not."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.submission.run import Run
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.faults import FaultKind
from tests.providers.azure.jobs import ALWAYS, append_outcome, command_line_of, reconnect, submitted
from tests.providers.faults import TRANSIENT, assert_each_struck, fault_each, run_id_of
from tests.support.limits import HANG_SECONDS

pytestmark = pytest.mark.once


def running(cloud: AzureCloud, run_id: str) -> Run:
    """A run whose job runs, and whose nodes have said their last words already: a stop need not
    wait for them.
    """
    run = submitted(run_id)
    for node in range(2):
        append_outcome(cloud, run_id, node, "stopped")
    cloud.service.jobs[run_id].enter("Running")
    reconnect()
    cloud.endpoint.reset()
    return run


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """These jobs never end by themselves."""
    monkeypatch.setattr("cloudtrain.providers.azure.stop.FINISHING_SECONDS", 0)


STOPPING = [
    ("history", "GetRunDetails", 1),
    ("arm", "GetDatastore", 1),
    ("arm", "ListSecrets", 1),
    ("blob", "PutBlob", 1),
    ("blob", "HeadBlob", 1),
    ("arm", "CancelJob", 1),
]


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_stop_reaches_the_job_despite_a_transient_fault_in_each_of_its_calls(
    cloud: AzureCloud, kind: FaultKind
) -> None:
    run = running(cloud, run_id_of("stop", kind))
    fault_each(cloud.endpoint, kind, STOPPING)
    state = run.stop()
    assert (state.state, state.reason) == ("stopped", "stop was asked")
    assert_each_struck(cloud.endpoint, kind, STOPPING)
    assert [
        name
        for name in cloud.blobs(f"cloudtrain/runs/{run.id}/output/")
        if name.endswith(".cloudtrain-stop")
    ]


def test_a_stop_of_a_job_in_the_queue_cancels_at_once(cloud: AzureCloud) -> None:
    run = submitted("queued-1")
    cloud.endpoint.reset()
    assert run.stop().state == "stopped"
    assert ("blob", "PutBlob") not in cloud.endpoint.calls, "no process could read it"
    assert ("arm", "CancelJob") in cloud.endpoint.calls


def test_a_stop_of_a_job_that_has_ended_does_nothing(cloud: AzureCloud) -> None:
    run = submitted("over-1")
    cloud.service.jobs["over-1"].finish("Completed")
    cloud.endpoint.reset()
    assert run.stop().state == "succeeded"
    assert ("arm", "CancelJob") not in cloud.endpoint.calls


@pytest.mark.parametrize("kind", ["denied", "lost"])
def test_a_cancel_refused_because_the_job_has_ended_is_not_an_error(
    cloud: AzureCloud, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(f"meanwhile-{kind}")

    def ends_in_this_moment(*_: object) -> bool:
        cloud.service.jobs[run.id].finish("Completed")
        return False

    monkeypatch.setattr("cloudtrain.providers.azure.stop._is_running", ends_in_this_moment)
    cloud.endpoint.fault(kind, "arm", "CancelJob", times=ALWAYS)
    assert run.stop().state == "succeeded"


@pytest.mark.parametrize(
    "call", [("history", "GetRunDetails"), ("blob", "HeadBlob")], ids=lambda call: call[1]
)
@pytest.mark.parametrize("kind", ["denied", "expired"])
def test_a_stop_is_sent_although_nothing_can_be_read(
    cloud: AzureCloud, kind: FaultKind, call: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.azure.stop.NOTICE_SECONDS", 0)
    monkeypatch.setattr("cloudtrain.providers.azure.stop._grace_seconds", lambda _: 0.5)
    run = running(cloud, run_id_of("blind", kind, call[1]))
    cloud.endpoint.fault(kind, *call, times=ALWAYS)
    with suppress(CloudError):  # not everybody may see that it has ended
        run.stop()
    assert cloud.service.jobs[run.id].cancel_asked.is_set()


def test_a_refused_cancel_is_reported_when_the_job_s_status_is_unknown(
    cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.azure.stop.NOTICE_SECONDS", 0)
    monkeypatch.setattr("cloudtrain.providers.azure.stop._grace_seconds", lambda _: 0.2)
    run = running(cloud, "refused-1")
    cloud.endpoint.fault("denied", "arm", "CancelJob", times=ALWAYS)
    cloud.endpoint.fault("expired", "history", "GetRunDetails", times=ALWAYS)
    with pytest.raises(CloudError, match="refused-1 was not told to stop: cancelling the job"):
        run.stop()


def test_a_cancel_counts_although_its_response_is_lost_for_good(cloud: AzureCloud) -> None:
    run = submitted("unheard-1")
    cloud.endpoint.fault("lost", "arm", "CancelJob", times=ALWAYS)
    assert run.stop().state == "stopped"


def test_a_denied_stop_names_the_missing_role_and_does_not_end_the_run(cloud: AzureCloud) -> None:
    run = running(cloud, "not-allowed-1")
    cloud.endpoint.fault("denied", "arm", "CancelJob", times=ALWAYS)
    with pytest.raises(CloudError, match="not authorized") as failed:
        run.stop()
    assert "jobs/cancel/action: AzureML Data Scientist" in str(failed.value.hint)
    cloud.endpoint.reset()
    assert cloud.service.jobs[run.id].status == "Running"
    assert not run.status().has_ended


@pytest.mark.parametrize(
    ("kind", "call"),
    [("denied", ("blob", "PutBlob")), ("expired", ("arm", "ListSecrets"))],
    ids=["no right to write the file", "an expired login"],
)
def test_a_job_that_cannot_be_told_to_save_runs_on_until_a_second_stop(
    cloud: AzureCloud, kind: FaultKind, call: tuple[str, str]
) -> None:
    run = submitted(f"untold-{kind}")
    reconnect()
    cloud.service.jobs[run.id].enter("Running")
    cloud.endpoint.fault(kind, *call, times=ALWAYS)
    with pytest.raises(CloudError, match="to save, so it was not stopped") as refused:
        run.stop()
    assert f"once more `cloudtrain stop {run.id}` cancels it at once" in str(refused.value.hint)
    assert not cloud.service.jobs[run.id].cancel_asked.is_set()
    assert run.cached_status().state != "stopping"
    state = run.stop()
    assert state.state == "stopped"
    assert "to save, so what came after its last checkpoint is lost: " in state.reason
    assert cloud.service.jobs[run.id].status == "Canceled"


def test_job_without_a_save_in_its_grace_period_is_cancelled_with_reason(
    cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.azure.stop.NOTICE_SECONDS", 0)
    monkeypatch.setattr("cloudtrain.providers.azure.stop._grace_seconds", lambda _: 0.2)
    run = submitted("slow-save-1")
    cloud.service.jobs[run.id].enter("Running")
    state = run.stop()
    assert state.state == "stopped"
    assert "without having said that it has saved (azure.stop_grace gives more)" in state.reason


def test_a_node_that_was_killed_is_named_in_the_reason(cloud: AzureCloud) -> None:
    run = submitted("forced-1")
    append_outcome(cloud, run.id, 0, "stopped", why="stop_file")
    append_outcome(cloud, run.id, 1, "stopped", why="stop_file", forced=True)
    cloud.service.jobs[run.id].enter("Running")
    state = run.stop()
    assert state.state == "stopped"
    assert "(node 1 ended by force: what it was saving may be lost" in state.reason


@pytest.mark.parametrize("why", ["sigterm", "preempted"])
def test_completed_job_with_a_node_stopped_by_its_platform_did_not_succeed(
    cloud: AzureCloud, why: str
) -> None:
    run = submitted(f"evicted-{why}")
    cloud.service.jobs[run.id].enter("Running")
    append_outcome(cloud, run.id, 0, "stopped", why=why)
    append_outcome(cloud, run.id, 1, "succeeded")
    cloud.service.jobs[run.id].finish("Completed")
    state = run.wait(HANG_SECONDS)
    assert state.state == "stopped"
    assert state.reason.startswith("node 0 stopped before it was done: its ")


def test_an_interrupt_while_a_stop_waits_leaves_the_job_to_save_and_says_so(
    cloud: AzureCloud, tmp_path: Path
) -> None:
    cli = command_line_of(cloud, tmp_path)
    assert cli.run("submit", "--provider", "azure", "--detach", "--run-id", "hasty-1").code == 0
    job = cloud.service.jobs["hasty-1"]
    job.enter("Running")
    client = cli.start("stop", "hasty-1")
    cli.wait_for_event("hasty-1", lambda event: event["type"] == "stop_requested")
    assert cloud.blobs("cloudtrain/runs/hasty-1/output/.cloudtrain-stop")
    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=HANG_SECONDS)
    assert client.returncode == 130
    assert "Traceback" not in err
    assert "hasty-1: stop requested, it saves and ends; no longer waiting" in err
    assert not job.cancel_asked.is_set()
    job.finish("Completed")
