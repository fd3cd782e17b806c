"""The submitter's policy of infra/aws on the wire: without one action exactly its operations fail,
with a message.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloudtrain.api.run import Run
from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.client import aws
from tests.fakes.aws.cloud import ACCOUNT, BUCKET, REGION, ROLE, Cloud, request
from tests.fakes.aws.policies import Statement, needed, statements
from tests.providers.aws.operations import KEY, OPERATIONS, QUEUE, submitted
from tests.providers.faults import failure
from tests.support.aws_template import IMPLIED, SUBMITTER, resolved

ARN = f"arn:aws:batch:{REGION}:{ACCOUNT}:job-queue/{QUEUE}"
pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def policy() -> list[Statement]:
    """The policy of a stack that uses the loopback's bucket, repository and role, and a key."""
    made = resolved(BucketName=BUCKET, RepositoryName="train", KmsKey=KEY, Queue=ARN)
    made.attributes["ExecutionRole", "Arn"] = ROLE
    return statements([made.properties("SubmitterPolicy")["PolicyDocument"]])


@pytest.fixture(autouse=True)
def everything_is_allowed_again(
    cloud: Cloud, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setattr("cloudtrain.providers.aws.status.TAG_DELAY_SECONDS", 0)
    yield
    cloud.account.caller_policy = None


@pytest.fixture
def run(cloud: Cloud) -> Run:
    """Return an existing job, submitted by a user with all rights."""
    return submitted(f"there-{len(cloud.service.jobs)}")


@pytest.mark.parametrize("name", OPERATIONS)
def test_with_the_whole_policy_an_operation_passes_and_needs_exactly_its_actions(
    cloud: Cloud, run: Run, policy: list[Statement], name: str
) -> None:
    """Unneeded actions are not missed either: the decision ignores everything else."""
    cloud.account.caller_policy = policy
    cloud.account.attempted.clear()
    cloud.endpoint.reset()
    assert failure(lambda: OPERATIONS[name].do(cloud, run)) == ""
    assert cloud.account.attempted == OPERATIONS[name].needs
    used_actions = {needed(call) for call in cloud.endpoint.calls} - {""}
    assert used_actions <= set(SUBMITTER) - IMPLIED, "such calls are in the list"


def test_every_action_is_needed_by_some_operation() -> None:
    opted_in = {"s3:DeleteObject"}  # for `rm --remote`, where an account allows it
    needs = set().union(*(operation.needs for operation in OPERATIONS.values()))
    assert needs == set(SUBMITTER) - opted_in


@pytest.fixture
def unrelated(cloud: Cloud) -> str:
    """The name of a job in the same account that cloudtrain did not start."""
    name = f"unrelated-{len(cloud.service.jobs)}"
    cloud.service.call("CreateTrainingJob", request(cloud, name))
    return name


def test_stop_and_tags_of_unrelated_jobs_are_denied(
    cloud: Cloud, policy: list[Statement], unrelated: str
) -> None:
    cloud.account.caller_policy = policy
    with pytest.raises(CloudError, match="not authorized to perform: sagemaker:StopTrainingJob"):
        aws(cloud.region).call("sagemaker", "stop_training_job", TrainingJobName=unrelated)
    tags = [{"Key": "cloudtrain-run", "Value": unrelated}]
    with pytest.raises(CloudError, match="not authorized to perform: sagemaker:AddTags"):
        aws(cloud.region).call(
            "sagemaker", "add_tags", ResourceArn=cloud.account.arn(unrelated), Tags=tags
        )


def test_a_job_without_our_tag_cannot_be_started(cloud: Cloud, policy: list[Statement]) -> None:
    cloud.account.caller_policy = policy
    body = {**request(cloud, "untagged"), "RoleArn": ROLE}
    with pytest.raises(CloudError, match="not authorized to perform: sagemaker:CreateTrainingJob"):
        aws(cloud.region).call("sagemaker", "create_training_job", **body)


def test_stop_is_repeated_until_policies_see_the_tags_of_a_new_job(
    cloud: Cloud, run: Run, policy: list[Statement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.aws.status.TAG_DELAY_SECONDS", 3600)
    monkeypatch.setattr(cloud.account, "tag_delay_seconds", 3600)
    cloud.account.caller_policy = policy
    assert not run.request_stop(run.cached_status())
    assert not cloud.service.jobs[run.id].stop_asked.is_set()
    monkeypatch.setattr(cloud.account, "tag_delay_seconds", 0)
    assert run.request_stop(run.cached_status())
    assert cloud.service.jobs[run.id].stop_asked.is_set()


def test_stop_of_an_old_job_is_denied_at_once(
    cloud: Cloud, run: Run, policy: list[Statement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud.account, "tag_delay_seconds", 3600)
    cloud.account.caller_policy = policy
    with pytest.raises(CloudError, match="sagemaker:StopTrainingJob"):
        run.request_stop(run.cached_status())


def test_release_denied_for_a_new_job_says_when_to_repeat_it(
    cloud: Cloud, run: Run, policy: list[Statement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.aws.status.TAG_DELAY_SECONDS", 3600)
    monkeypatch.setattr(cloud.account, "tag_delay_seconds", 3600)
    cloud.account.caller_policy = policy
    assert "repeat it when the job is 5 minutes old" in failure(
        lambda: OPERATIONS["release"].do(cloud, run)
    )
