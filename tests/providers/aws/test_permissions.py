"""The submitter's policy of infra/aws on the wire: without one action exactly what needs it fails, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import boto3.s3.transfer
import pytest

from cloudtrain.api.run import Run
from cloudtrain.errors import CloudtrainError
from cloudtrain.providers.aws.permissions import SUBMITTER
from tests.fakes.aws.cloud import BUCKET, ROLE, Cloud
from tests.fakes.aws.permissions import needed
from tests.fakes.aws.policies import Statement, statements, without
from tests.fakes.messages import ServiceError
from tests.providers.aws.jobs import submitted
from tests.providers.aws.operations import KEY, LARGE_BYTES, OPERATIONS
from tests.support.aws_template import resolved


@pytest.fixture(scope="module")
def policy() -> list[Statement]:
    """The policy of a stack that uses the loopback's bucket, repository and role, and a key."""
    made = resolved(BucketName=BUCKET, RepositoryName="train", KmsKey=KEY)
    made.attributes["ExecutionRole", "Arn"] = ROLE
    return statements([made.properties("SubmitterPolicy")["PolicyDocument"]])


@pytest.fixture(autouse=True)
def everything_is_allowed_again(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("cloudtrain.providers.aws.client.STALE_SECONDS", -60)
    monkeypatch.setattr("cloudtrain.providers.aws.client.ONE_REQUEST_BYTES", LARGE_BYTES // 2)
    in_parts = partial(boto3.s3.transfer.TransferConfig, multipart_threshold=LARGE_BYTES // 2)
    monkeypatch.setattr("boto3.s3.transfer.TransferConfig", in_parts)
    monkeypatch.setattr("cloudtrain.submission.registry._docker_login", lambda _: None)
    monkeypatch.setenv("CLOUDTRAIN_AWS_REGION", cloud.region)
    yield
    cloud.account.caller_policy = None


@pytest.fixture
def run(cloud: Cloud) -> Run:
    """A job that is there, submitted by somebody who may do everything."""
    return submitted(f"there-{len(cloud.service.jobs)}")


def failure(cloud: Cloud, run: Run, name: str) -> str:
    """What an operation says when it fails; empty if it does not."""
    try:
        OPERATIONS[name].do(cloud, run)
    except CloudtrainError as error:
        return error.render()
    except ServiceError as error:  # of a protocol that is not the client's
        return error.message
    return ""


@pytest.mark.parametrize("name", OPERATIONS)
def test_with_the_whole_policy_an_operation_passes_and_needs_exactly_its_actions(
    cloud: Cloud, run: Run, policy: list[Statement], name: str
) -> None:
    """What is not needed is not missed either: the decision looks at nothing else."""
    cloud.account.caller_policy = policy
    cloud.account.attempted.clear()
    cloud.endpoint.reset()
    assert failure(cloud, run, name) == ""
    assert cloud.account.attempted == OPERATIONS[name].needs
    seen = {needed(call) for call in cloud.endpoint.calls} - {""}
    assert seen <= {each.action for each in SUBMITTER if not each.implied_by}, "such calls are in the list"


def test_every_action_is_needed_by_some_operation() -> None:
    assert set().union(*(each.needs for each in OPERATIONS.values())) == {each.action for each in SUBMITTER}


@pytest.mark.parametrize("action", [each.action for each in SUBMITTER])
def test_without_one_action_exactly_what_needs_it_fails_and_names_it(
    cloud: Cloud, run: Run, policy: list[Statement], action: str
) -> None:
    cloud.account.caller_policy = without(action, policy)
    for name, operation in OPERATIONS.items():
        if action in operation.needs:
            said = failure(cloud, run, name)
            assert (action in said) == (action not in operation.silent), (name, said)


def test_a_role_or_a_bucket_of_somebody_else_is_of_no_use(
    cloud: Cloud, run: Run, policy: list[Statement], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.account.caller_policy = policy
    monkeypatch.setenv("CLOUDTRAIN_AWS_ROLE", "arn:aws:iam::123456789012:role/administrator")
    with pytest.raises(CloudtrainError, match=r"iam:PassRole on resource: .*role/administrator"):
        submitted("escalated")
    monkeypatch.setenv("CLOUDTRAIN_AWS_ROLE", ROLE)
    monkeypatch.setenv("CLOUDTRAIN_AWS_BUCKET", "somebody-elses")
    with pytest.raises(CloudtrainError, match=r"s3:PutObject on resource: .*somebody-elses"):
        submitted("exfiltrated")
