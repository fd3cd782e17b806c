"""Jobs in a queue of AWS Batch: each is known whatever happens, through all its training jobs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.cli.plan_view import overview
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.attempts import attempts_without_queue
from cloudtrain.providers.aws.client import aws
from cloudtrain.providers.shared.shapes import violations
from tests.fakes.aws.service_models import service_model
from tests.providers.known_sequences import KNOWN
from tests.providers.sites import ALWAYS, QUEUE, QueueSite, open_site
from tests.providers.test_cloud_machine import (
    NewMachine,
    new_machine,
    run_sequences,
    sequences,
    strike_submits,
)
from tests.support.clock import Clock
from tests.support.in_process import call

__all__ = ["new_machine"]

SEQUENCES = int(os.environ.get("CLOUDTRAIN_SEQUENCES", "5"))
"""Random sequences; a campaign of hundreds is run by hand."""
RARE = (
    *("lost, then denied", "late, then status", "killed at each request", "stop lost"),
    *("stop from another machine", "a name in use", "jobs of others", "not shown yet"),
)
"""Sequences of `KNOWN` that are not left to a thorough run."""

HOUR = 3600.0

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("site_folder")]


@pytest.fixture(scope="module")
def site() -> Iterator[QueueSite]:
    with open_site("queue") as opened:
        assert isinstance(opened, QueueSite)
        yield opened


@pytest.fixture(autouse=True)
def _queue_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_AWS_QUEUE", QUEUE)


@pytest.mark.timeout(5000)
def test_every_queued_job_is_known_whatever_happens(new_machine: NewMachine) -> None:
    run_sequences(new_machine, sequences(SEQUENCES))


@pytest.mark.parametrize("times", [1, ALWAYS], ids=["once", "for good"])
def test_every_queued_job_is_known_whichever_request_is_struck(
    new_machine: NewMachine, times: int, thorough: bool
) -> None:
    strike_submits(new_machine, times, thorough=thorough)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in RARE else pytest.mark.thorough) for name in KNOWN],
)
def test_every_queued_job_is_known_in_a_rare_sequence(new_machine: NewMachine, name: str) -> None:
    machine = new_machine()
    try:
        KNOWN[name](machine)
        machine.every_job_has_our_tags()
    finally:
        machine.teardown()


@pytest.fixture
def batch(site: QueueSite) -> Iterator[Any]:
    """Return Batch, whose queue is empty after each test."""
    yield site.cloud.service.batch
    site.cloud.service.batch.machines = 100
    for name in site.job_names():
        site.end_job(name)
        site.forget_job(name)


def test_a_job_waits_at_its_place_until_there_are_machines(site: QueueSite, batch: Any) -> None:
    batch.machines = 0
    site.submit("first")
    second = site.submit("second")
    assert second.status().phase == f"waiting in the queue {QUEUE}, place 2"
    assert second.status().attempts == []

    batch.machines = 2
    assert second.status().phase == "starting"
    job = site.job_of("second")
    assert second.status().attempts == [job["TrainingJobArn"]]
    assert job.name.startswith("AWSBatchsecond")


def test_the_object_of_the_sdk_is_of_the_training_job_that_the_queue_has_started(
    site: QueueSite, batch: Any
) -> None:
    pytest.importorskip("sagemaker.core.utils.utils").SageMakerClient.reset()
    batch.machines = 0
    run = site.submit("native")
    with pytest.raises(UsageError, match="the queue has started none"):
        run.native()

    batch.machines = 1
    run.status()
    assert run.native().training_job_name == site.job_of("native").name


def test_a_job_that_waits_is_stopped_and_nothing_was_billed(site: QueueSite, batch: Any) -> None:
    batch.machines = 0
    run = site.submit("waiting")
    run.stop()
    state = run.status()
    assert (state.state, state.reason, state.billing) == ("stopped", "stop requested", None)
    assert get_provider("aws").artifacts(run.folder, state).keys() == {"checkpoints"}


def test_a_preempted_job_starts_again_and_all_of_it_is_read_and_billed(
    site: QueueSite, batch: Any
) -> None:
    run = site.submit("preempted", limits={"retries": 1, "max_runtime": "1 h"})
    run.status()
    for number in (1, 2):
        site.job_of("preempted").take_machines()
        site.start_job("preempted")
        site.write_log("preempted", 0, f"[rank 0] attempt {number}")
        if number == 1:
            batch.preempt("preempted")
    site.put_model("preempted", weights="w")
    site.finish_job("preempted")

    state = run.wait(60)
    assert state.state == "succeeded"
    assert [line.text for line in run.logs()] == ["attempt 1", "attempt 2"]
    first, second = batch.named("preempted").attempts
    assert state.attempts == [first["TrainingJobArn"], second["TrainingJobArn"]]
    assert state.billing is not None
    seconds = first["BillableTimeInSeconds"] + second["BillableTimeInSeconds"]
    assert state.billing.billable_seconds == seconds
    uris = get_provider("aws").artifacts(run.folder, state)
    assert uris["model"].endswith(f"/{second.name}/output/model.tar.gz")


def test_a_job_that_batch_has_forgotten_ends_as_its_training_job(
    site: QueueSite, batch: Any, clock: Clock
) -> None:
    run = site.submit("forgotten")
    run.status()
    site.put_model("forgotten", weights="w")
    site.finish_job("forgotten")
    job = batch.jobs.pop(batch.named("forgotten").arn)
    assert run.wait(60).state == "succeeded"
    batch.jobs[job.arn] = job


@pytest.fixture
def forgotten(batch: Any, clock: Clock) -> Iterator[Callable[[str], None]]:
    """Let Batch forget a job, hours after its submit."""
    jobs = {}

    def forget(name: str) -> None:
        job = batch.named(name)
        jobs[job.arn] = batch.jobs.pop(job.arn)
        clock.advance(3 * HOUR)

    yield forget
    batch.jobs.update(jobs)


def test_a_job_that_nobody_looked_at_is_found_by_its_tags_after_batch_has_forgotten_it(
    site: QueueSite, batch: Any, forgotten: Callable[[str], None]
) -> None:
    run = site.submit("unseen", limits={"retries": 1, "max_runtime": "1 h"})
    for number in (1, 2):
        site.job_of("unseen").take_machines()
        site.start_job("unseen")
        if number == 1:
            batch.preempt("unseen")
    site.finish_job("unseen")
    attempts = [job["TrainingJobArn"] for job in batch.named("unseen").attempts]
    forgotten("unseen")
    state = run.wait(60)
    assert (state.state, state.attempts) == ("succeeded", attempts)


def test_a_forgotten_job_has_no_end_if_sagemaker_may_not_be_searched(
    site: QueueSite, forgotten: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = site.submit("hidden")
    monkeypatch.setattr(site.cloud.account, "denied_actions", {"sagemaker:Search"})
    forgotten("hidden")
    with pytest.raises(CloudError, match="how hidden ended is unknown"):
        run.status()


def test_a_forgotten_job_has_no_end_while_sagemaker_cannot_be_searched() -> None:
    class Throttled:
        def pages(self, *_: str, **__: Any) -> Iterator[Any]:
            raise CloudError("rate exceeded", transient=True)

    cloud: Any = Throttled()
    with pytest.raises(CloudError, match="how late ended is unknown") as raised:
        attempts_without_queue(cloud, "late", {}, ["arn:aws:sagemaker:::training-job/first"])
    assert raised.value.transient


def test_a_forgotten_job_without_a_training_job_never_began(
    site: QueueSite, batch: Any, forgotten: Callable[[str], None]
) -> None:
    batch.machines = 0
    run = site.submit("never")
    forgotten("never")
    assert run.status().reason == (
        "AWS Batch has forgotten it, and SageMaker knows no training job of it"
    )


def test_a_removed_run_leaves_nothing_in_the_bucket(site: QueueSite, batch: Any) -> None:
    run = site.submit("gone")
    run.status()
    site.put_model("gone", weights="w")
    site.finish_job("gone")
    run.wait(60)
    assert call("rm", "--remote", "--yes", "gone").code == 0
    assert not [name for name in site.cloud.keys("cloudtrain/runs/") if "gone" in name]


def test_a_job_that_was_preempted_too_often_has_failed(site: QueueSite, batch: Any) -> None:
    run = site.submit("evicted")
    run.status()
    batch.preempt("evicted")
    state = run.wait(60)
    assert state.state == "failed"
    assert "preemption" in state.reason.lower()


def test_a_job_of_the_same_name_in_capitals_is_another_one(site: QueueSite, batch: Any) -> None:
    site.submit("twin")
    run = site.submit("TWIN")
    assert run.status().ref["arn"] == batch.named("TWIN").arn  # type: ignore[index]


def test_a_killed_and_repeated_request_is_rejected_by_its_token(
    site: QueueSite, batch: Any
) -> None:
    run = site.submit("once")
    document = run.folder.document("request.json")
    with pytest.raises(CloudError, match="token was received before"):
        aws(site.cloud.region).call("batch", "submit_service_job", **document)


def test_max_cost_pays_for_all_attempts(site: QueueSite) -> None:
    def seconds(retries: int) -> int:
        limits = {"max_cost": "10 USD", "retries": retries}
        plan = cloudtrain.plan(cloudtrain.load({**site.job, "limits": limits}), "aws")
        estimate = plan.target.cost_estimate
        assert estimate is not None
        assert estimate.worst_usd == pytest.approx(10, abs=0.01)
        return estimate.max_seconds + estimate.overhead_seconds

    assert seconds(1) == pytest.approx(seconds(0) / 2, abs=1)


def test_export_puts_the_job_into_the_queue_by_the_cli(site: QueueSite, tmp_path: Path) -> None:
    plan = cloudtrain.plan(cloudtrain.load(dict(site.job)), "aws")
    assert "SubmitServiceJob of a CreateTrainingJob" in overview(plan)
    made = get_provider("aws").export(plan)
    assert list(made.commands[-1])[:3] == ["aws", "batch", "submit-service-job"]
    document = json.loads(made.files["request.json"])
    shape = service_model("batch").operation_model("SubmitServiceJob").input_shape
    assert not violations(shape, document)
