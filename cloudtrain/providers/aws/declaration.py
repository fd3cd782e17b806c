"""What SageMaker is called, and what of a spec it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.declaration import Declaration

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
    input_schemes=("s3",),
    input_example="s3://bucket/folder/",
    image_schemes=("dlc",),
    secret_stores={"secretsmanager": "NAME", "ssm": "NAME"},
    request_name="CreateTrainingJob",
    section=_section,
)
