"""Whatever goes wrong while a job is stopped: it is cancelled, and where it is not, this is said."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.run import Run
from tests.loopback.azure.cloud import AzureCloud
from tests.loopback.faults import Kind
from tests.loopback.waiting import eventually
from tests.providers.azure.jobs import EVER, PASSING, bench_of, forget, run_id_of, said_last, submitted


def running(cloud: AzureCloud, run_id: str) -> Run:
    """A run whose job runs, and whose nodes have said their last words already: a stop need not wait for them."""
    run = submitted(run_id)
    for node in range(2):
        said_last(cloud, run_id, node, "stopped")
    cloud.service.jobs[run_id].enter("Running")
    forget()
    cloud.front.reset()
    return run


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """These jobs never end by themselves."""
    monkeypatch.setattr("cloudtrain.azure.stop.FINISHING_SECONDS", 0)


STOPPING = [
    ("history", "GetRunDetails"),
    ("arm", "GetDatastore"),
    ("arm", "ListSecrets"),
    ("blob", "PutBlob"),
    ("blob", "HeadBlob"),
    ("arm", "CancelJob"),
]


@pytest.mark.parametrize("call", STOPPING, ids=lambda call: call[1])
@pytest.mark.parametrize("kind", PASSING)
def test_a_stop_reaches_the_job_through_what_passes(cloud: AzureCloud, kind: Kind, call: tuple[str, str]) -> None:
    run = running(cloud, run_id_of("stop", kind, call[1]))
    cloud.front.fault(kind, *call)
    state = run.stop()
    assert (state.state, state.reason) == ("stopped", "stop was asked")
    assert call in cloud.front.calls
    assert [name for name in cloud.blobs(f"cloudtrain/runs/{run.id}/output/") if name.endswith(".cloudtrain-stop")]


def test_a_stop_of_a_job_in_the_queue_cancels_at_once(cloud: AzureCloud) -> None:
    run = submitted("queued-1")
    cloud.front.reset()
    assert run.stop().state == "stopped"
    assert {service for service, _ in cloud.front.calls} == {"history", "arm"}
    assert ("arm", "CancelJob") in cloud.front.calls


def test_a_stop_of_a_job_that_has_ended_does_nothing(cloud: AzureCloud) -> None:
    run = submitted("over-1")
    cloud.service.jobs["over-1"].finish("Completed")
    cloud.front.reset()
    assert run.stop().state == "succeeded"
    assert ("arm", "CancelJob") not in cloud.front.calls


@pytest.mark.parametrize("kind", ["error", "denied", "lost"])
def test_a_cancel_that_is_refused_since_the_job_is_over_is_no_error(
    cloud: AzureCloud, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(f"meanwhile-{kind}")

    def ends_in_this_moment(*_: object) -> bool:
        cloud.service.jobs[run.id].finish("Completed")
        return False

    monkeypatch.setattr("cloudtrain.azure.stop._is_running", ends_in_this_moment)
    cloud.front.fault(kind, "arm", "CancelJob", times=EVER)
    assert run.stop().state == "succeeded"


def test_a_cancel_whose_answer_is_lost_for_good_was_one_all_the_same(cloud: AzureCloud) -> None:
    run = submitted("unheard-1")
    cloud.front.fault("lost", "arm", "CancelJob", times=EVER)
    assert run.stop().state == "stopped"


def test_a_stop_that_is_not_allowed_says_which_role_is_missing_and_ends_no_run(cloud: AzureCloud) -> None:
    run = running(cloud, "not-allowed-1")
    cloud.front.fault("denied", "arm", "CancelJob", times=EVER)
    with pytest.raises(CloudError, match="not authorized") as failed:
        run.stop()
    assert "jobs/cancel/action: AzureML Data Scientist" in str(failed.value.hint)
    cloud.front.reset()
    assert cloud.service.jobs[run.id].status == "Running"
    assert not run.status().has_ended


@pytest.mark.parametrize(("kind", "call"), [("denied", ("blob", "PutBlob")), ("expired", ("arm", "ListSecrets"))])
def test_a_job_that_cannot_be_told_to_save_is_cancelled_and_this_is_said(
    cloud: AzureCloud, kind: Kind, call: tuple[str, str]
) -> None:
    run = submitted(f"untold-{kind}")
    forget()
    cloud.service.jobs[run.id].enter("Running")
    cloud.front.fault(kind, *call, times=EVER)
    state = run.stop()
    assert state.state == "stopped"
    assert state.reason.startswith("stop was asked; whether it has saved is not known: ")
    assert cloud.service.jobs[run.id].status == "Canceled"


def test_a_stop_that_is_interrupted_while_it_waits_for_the_checkpoint_cancels_all_the_same(
    cloud: AzureCloud, tmp_path: Path
) -> None:
    bench = bench_of(cloud, tmp_path)
    assert bench.run("submit", "--provider", "azure", "--detach", "--run-id", "hasty-1").code == 0
    job = cloud.service.jobs["hasty-1"]
    job.enter("Running")
    client = bench.begin("stop", "hasty-1")
    eventually(lambda: cloud.blobs("cloudtrain/runs/hasty-1/output/.cloudtrain-stop"))
    assert not job.cancel_asked.is_set()
    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=60)
    assert client.returncode == 130
    assert "Traceback" not in err
    assert eventually(lambda: job.has_ended)
    assert eventually(lambda: bench.json("status", "hasty-1")["state"] == "stopped")
