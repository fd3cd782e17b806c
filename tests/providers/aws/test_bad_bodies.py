"""An answer that is not AWS's is named as such, and tried again, whichever call it answers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from cloudtrain.providers.aws.client import aws
from tests.fakes.aws.cloud import Cloud
from tests.fakes.messages import Call
from tests.providers.aws.jobs import submitted
from tests.providers.aws.operations import OPERATIONS
from tests.providers.bad_bodies import Do, calls_by_operation, complaints

pytestmark = pytest.mark.once

UNHARMED = {
    # The job is looked up, and found.
    Call("sagemaker", "CreateTrainingJob"),
    Call("sagemaker", "CreateHyperParameterTuningJob"),
    # Their answers say nothing.
    Call("sagemaker", "StopTrainingJob"),
    Call("sagemaker", "StopHyperParameterTuningJob"),
    # Their purpose is met as far as possible.
    Call("s3", "AbortMultipartUpload"),
    Call("ecr", "GetDownloadUrlForLayer"),
}
"""Calls whose answers are optional for an operation."""


@pytest.fixture
def operations(
    cloud: Cloud, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Do]]:
    """Everything that the client does, with one attempt of boto3's for each call."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    run = submitted(f"there-{len(cloud.service.jobs)}")
    aws.cache_clear()
    on_the_wire = {
        name: operation for name, operation in OPERATIONS.items() if name != "push an image"
    }
    yield {name: partial(operation.do, cloud, run) for name, operation in on_the_wire.items()}
    aws.cache_clear()


def test_every_call_names_an_answer_that_cannot_be_read(
    cloud: Cloud, operations: dict[str, Do], thorough: bool
) -> None:
    calls = calls_by_operation(cloud.endpoint, operations)
    assert len(calls) > 20
    problems = "\n".join(complaints(cloud.endpoint, operations, calls, UNHARMED, thorough))
    assert not problems, problems
