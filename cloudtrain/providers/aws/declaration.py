"""Declaration of the aws provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.declaration import Declaration, Setting, UploadTerms

if TYPE_CHECKING:
    from cloudtrain.spec.section import Section


def _section() -> type[Section]:
    from cloudtrain.providers.aws.section import AwsSection

    return AwsSection


DECLARATION = Declaration(
    name="aws",
    label="SageMaker",
    is_remote=True,
    contract="sagemaker",
    input_schemes=("", "s3", "fsx", "efs"),
    input_example="s3://bucket/folder/",
    image_schemes=("dlc",),
    secret_stores={"secretsmanager": "NAME", "ssm": "NAME"},
    uploads=UploadTerms(
        usd=0.023,
        price="S3 Standard in the US, list price of 2026",
        tool="aws s3 sync",
    ),
    publishes=True,
    request_name="CreateTrainingJob",
    profile_variables=("AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
    section=_section,
    region_setting="region",
    settings={
        "region": Setting("AWS region", beside_job="harmless"),
        "role": Setting("execution role of SageMaker jobs"),
        "bucket": Setting("bucket for source, checkpoints and models"),
        "repository": Setting(
            "where images that are built are pushed: ECR's name or address of it"
        ),
        "subnets": Setting("subnets of the job's network", "texts"),
        "security_groups": Setting("security groups of the job's network", "texts"),
        "queue": Setting("queue of AWS Batch in which jobs wait for machines"),
        "kms_key": Setting("key that encrypts what the job writes"),
        "poll": Setting(
            "seconds between two looks at a job", "seconds", 10.0, beside_job="harmless"
        ),
    },
)
