"""Whatever goes wrong while a job is submitted to Azure ML: one job or none, and plain words."""

from __future__ import annotations

import threading

import pytest

import cloudtrain
from cloudtrain.api.lookup import find_run
from cloudtrain.errors import CloudError, CloudtrainError
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.faults import FaultKind
from tests.providers.azure.jobs import (
    ALWAYS,
    FIRST_SUBMIT_CALLS,
    JOB,
    PERMANENT,
    REPEATED_SUBMIT_CALLS,
    TRANSIENT,
    exists,
    name_of,
    reconnect,
    run_id_of,
    submitted,
)
from tests.providers.faults import NthCall, assert_each_struck, fault_each
from tests.support.events import events_of


def test_these_are_the_calls_of_a_submit(cloud: AzureCloud) -> None:
    reconnect()
    submitted("calls-1")
    assert cloud.endpoint.calls == [call[:2] for call in FIRST_SUBMIT_CALLS]
    reconnect()
    cloud.endpoint.reset()
    submitted("calls-2")
    assert cloud.endpoint.calls == [call[:2] for call in REPEATED_SUBMIT_CALLS]


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_first_submit_survives_a_transient_fault_in_each_of_its_calls(
    cloud: AzureCloud, kind: FaultKind
) -> None:
    run_id = run_id_of("once", kind)
    reconnect()
    fault_each(cloud.endpoint, kind, FIRST_SUBMIT_CALLS)
    run = submitted(run_id)
    assert_each_struck(cloud.endpoint, kind, FIRST_SUBMIT_CALLS)
    assert exists(cloud, run_id)
    assert run.status().state == "pending"
    assert [event["type"] for event in events_of(run.folder)].count("submitted") == 1


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_submit_of_an_unchanged_source_survives_a_transient_fault_in_each_of_its_calls(
    cloud: AzureCloud, kind: FaultKind
) -> None:
    run_id = run_id_of("again", kind)
    submitted(f"{run_id}-first")
    cloud.endpoint.reset()
    reconnect()
    fault_each(cloud.endpoint, kind, REPEATED_SUBMIT_CALLS)
    assert submitted(run_id).status().state == "pending"
    assert_each_struck(cloud.endpoint, kind, REPEATED_SUBMIT_CALLS)
    assert exists(cloud, run_id)
    assert ("blob", "PutBlob") not in cloud.endpoint.calls


@pytest.mark.parametrize("call", FIRST_SUBMIT_CALLS, ids=name_of)
@pytest.mark.parametrize("kind", [*TRANSIENT[:-1], *PERMANENT])
def test_a_submit_that_fails_for_good_leaves_one_job_or_none_and_status_says_which(
    cloud: AzureCloud, kind: FaultKind, call: NthCall
) -> None:
    run_id = run_id_of("ever", kind, name_of(call))
    reconnect()
    cloud.endpoint.fault(kind, *call, times=ALWAYS)
    if kind == "lost" and call[1] in (
        "PutCode",
        "PutJob",
    ):  # the answer is lost for good, and yet it is found
        assert submitted(run_id).status().state == "pending"
        assert exists(cloud, run_id)
        return
    if kind == "denied" and call[1] in (
        "ListVmSizes",
        "ListUsages",
    ):  # nobody needs this right to submit
        assert submitted(run_id).status().state == "pending"
        return
    with pytest.raises(CloudError) as failed:
        submitted(run_id)
    assert failed.value.exit_code == 4
    assert failed.value.hint
    cloud.endpoint.reset()
    state = find_run(run_id).status()
    assert not exists(cloud, run_id)
    assert state.state in ("failed", "submitting")
    if state.state == "submitting":  # no answer came: for a minute it may still arrive
        assert call[1] == "PutJob"
        assert "not known yet" in failed.value.message


@pytest.mark.parametrize("kind", ["error", "refused_lost"])
def test_a_create_without_a_response_is_reconciled_later(
    cloud: AzureCloud, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = run_id_of("later", kind)
    cloud.endpoint.fault(kind, "arm", "PutJob", times=ALWAYS)
    with pytest.raises(CloudError, match="not known yet"):
        submitted(run_id)
    cloud.endpoint.reset()
    assert find_run(run_id).status().state == "submitting"
    monkeypatch.setattr("cloudtrain.providers.cloud.idempotent_create.CREATE_TIMEOUT_SECONDS", 0)
    state = find_run(run_id).status()
    assert state.state == "failed"
    assert "Azure ML knows no job" in state.reason
    assert "nothing was started" in state.reason


def test_a_job_that_was_created_after_all_is_followed(cloud: AzureCloud) -> None:
    cloud.endpoint.fault("lost", "arm", "PutJob", times=ALWAYS)
    cloud.endpoint.fault("error", "arm", "GetJob", nth=2, times=ALWAYS)
    with pytest.raises(CloudError, match="not known yet"):
        submitted("late-1")
    cloud.endpoint.reset()
    run = find_run("late-1")
    assert run.status().state == "pending"
    assert run.stop().state == "stopped"


def test_a_job_that_was_created_after_all_can_be_stopped_at_once(cloud: AzureCloud) -> None:
    cloud.endpoint.fault("lost", "arm", "PutJob", times=ALWAYS)
    cloud.endpoint.fault("error", "arm", "GetJob", nth=2, times=ALWAYS)
    with pytest.raises(CloudError, match="not known yet"):
        submitted("late-2")
    cloud.endpoint.reset()
    assert find_run("late-2").stop().state == "stopped"
    assert cloud.service.jobs["late-2"].status == "Canceled"


@pytest.mark.parametrize(
    "strangers", [{}, {"name": "stranger"}], ids=["the same job", "another job"]
)
def test_a_name_that_somebody_else_uses_is_not_taken_for_ours_and_not_touched(
    cloud: AzureCloud, strangers: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run_id = f"taken-{len(strangers)}"
    submitted(run_id, **strangers)
    before = cloud.service.jobs[run_id].tags
    cloud.endpoint.reset()
    other = str(tmp_path_factory.mktemp("other"))
    plan = cloudtrain.plan(cloudtrain.load(JOB), "azure", run_id=run_id, data_dir=other)
    with pytest.raises(cloudtrain.RunExists, match="exists already"):
        cloudtrain.submit(plan)
    assert find_run(run_id, data_dir=other).status().state == "failed"
    assert find_run(run_id).status().state == "pending"
    assert ("arm", "PutJob") not in cloud.endpoint.calls
    assert cloud.service.jobs[run_id].tags == before


def test_a_name_taken_between_lookup_and_create_is_not_taken_for_ours(
    cloud: AzureCloud, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cloud.endpoint.fault("hang_before", "arm", "PutJob")
    refused: list[CloudtrainError] = []

    def slower() -> None:
        try:
            submitted("moment-1")
        except CloudtrainError as error:
            refused.append(error)

    thread = threading.Thread(target=slower)
    thread.start()
    cloud.endpoint.wait_until_hanging()
    other = str(tmp_path_factory.mktemp("other"))
    job = cloudtrain.load({**JOB, "env": {"ANOTHER": "job"}})
    cloudtrain.submit(cloudtrain.plan(job, "azure", run_id="moment-1", data_dir=other))
    before = cloud.service.jobs["moment-1"].tags
    cloud.endpoint.release()
    thread.join()
    assert [type(error) for error in refused] == [cloudtrain.RunExists]
    assert find_run("moment-1").status().state == "failed"
    assert find_run("moment-1", data_dir=other).status().state == "pending"
    assert cloud.service.jobs["moment-1"].tags == before
