"""Recorded answers of both clouds: the client reads them, the imitation says the same."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from tests.fakes.aws.cloud import Cloud, cloud
from tests.fakes.aws.jobs import BOOTING, DOWNLOADING_IMAGE, MESSAGES
from tests.fakes.azure.cloud import AzureCloud, azure, azure_account, quick_retries
from tests.fakes.azure.recorded import Exchange
from tests.fidelity.aws import differences, observations, steps
from tests.fidelity.azure_answers import AZURE, reason, verdicts
from tests.fidelity.azure_reading import check, readable

NEVER_OBSERVED = ("Interrupted", "MaxRuntimeExceeded", "Stopped")


def test_the_client_reads_what_was_observed() -> None:
    wrong = {
        f"{observation.kind} {observation.number}": found
        for observation in observations()
        if (found := differences(observation))
    }
    assert wrong == {}


def test_the_imitation_speaks_in_observed_messages() -> None:
    observed = " ".join(str(observation.value) for observation in observations())
    messages = {MESSAGES[name] for name in MESSAGES if name not in NEVER_OBSERVED}
    assert [text for text in (*messages, BOOTING, DOWNLOADING_IMAGE) if text not in observed] == []
    assert (
        sum(len(list(steps(item.value))) for item in observations() if item.kind == "transitions")
        > 100
    )


class Difference(NamedTuple):
    """A call that moto answers unlike AWS, and words of its answer."""

    service: str
    operation: str
    arguments: dict[str, Any]
    answer: str


REGISTRY = {"registryId": "999999999999", "repositoryNames": ["train"]}
LAYER = {"repositoryName": "train", "layerDigest": f"sha256:{'0' * 64}"}
CALLER = {"PolicySourceArn": "arn:aws:iam::123456789012:user/a", "ActionNames": ["s3:GetObject"]}
JOB = {
    "TrainingJobName": "bad_name",
    "RoleArn": "arn:aws:iam::123456789012:role/loopback",
    "AlgorithmSpecification": {"TrainingImage": "none", "TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "s3://none/"},
    "ResourceConfig": {"InstanceType": "ml.p99.48xlarge", "InstanceCount": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
}
MISSING = "500 Internal Server Error"
MOTO = {
    "ECR gives an address for a layer": Difference(
        "ecr", "get_download_url_for_layer", LAYER, MISSING
    ),
    "ECR keeps other accounts out": Difference(
        "ecr", "describe_repositories", REGISTRY, "RepositoryNotFoundException"
    ),
    "ECR's login lasts 12 hours": Difference(
        "ecr", "get_authorization_token", {}, "datetime.datetime(2015, 1, 1"
    ),
    "IAM simulates policies": Difference("iam", "simulate_principal_policy", CALLER, MISSING),
    "IAM, not STS, is in a user's ARN": Difference(
        "sts", "get_caller_identity", {}, "arn:aws:sts::123456789012:user/moto"
    ),
    "Service Quotas lists SageMaker's": Difference(
        "service-quotas", "list_service_quotas", {"ServiceCode": "sagemaker"}, MISSING
    ),
    "SageMaker refuses wrong names and unknown machines": Difference(
        "sagemaker", "create_training_job", JOB, "training-job/bad_name"
    ),
}
"""Behaviour of AWS -> moto's instead. The imitation answers all but STS's itself.

Contradictions to the services' models are in `tests/fakes/aws/service_models.py`.
"""


@pytest.mark.parametrize("fact", MOTO)
def test_moto_differs_from_aws_as_listed(cloud: Cloud, fact: str) -> None:
    """If this fails, moto may take the place of our own imitation."""
    row = MOTO[fact]
    call = getattr(cloud.client(row.service, direct=True), row.operation)
    try:
        answer = str(call(**row.arguments))
    except (ClientError, ResponseParserError) as error:
        answer = str(error)
    assert row.answer in answer


__all__ = ["azure", "azure_account", "cloud", "quick_retries"]


def test_the_imitation_answers_recorded_requests_as_azure_ml_did() -> None:
    differences = [
        f"{verdict.call}: {difference}"
        for verdict in verdicts()
        for difference in verdict.differences
        if not reason(AZURE, verdict.call, difference)
    ]
    assert differences == []


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize(
    "exchange",
    readable(),
    ids=lambda exchange: f"{exchange.recording.rpartition('/')[2]}-{exchange.number}",
)
def test_the_client_reads_what_azure_ml_answered(
    azure_account: AzureCloud, exchange: Exchange
) -> None:
    check(azure_account, exchange)
