"""The section `aws` of job.yaml: settings of the account, and options of SageMaker."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from cloudtrain.errors import Issue
from cloudtrain.spec import fields
from cloudtrain.spec.section import Duration, Members, Section, Strings


def _read_training_plan(value: Any) -> str | Mapping[str, str] | None:
    """Read the ARN of a training plan, or one for each instance type."""
    if value is None or isinstance(value, str):
        return value

    plans = fields.expect(value, dict, "an ARN, or a mapping from instance type to ARN")
    return fields.read_each(
        plans, lambda arn: fields.expect(arn, str, "the ARN of a training plan")
    )


class AwsSection(Section):
    """Fields for SageMaker; region, role, bucket and network may be in the settings instead."""

    region: str | None = Field(None, description="where jobs run, such as us-east-1")
    role: str | None = Field(None, description="ARN of the role that the job runs as")
    bucket: str | None = Field(None, description="bucket for source, checkpoints and models")
    output: str | None = Field(
        None,
        description="S3 folder for model and output, s3://bucket/folder; default: in the bucket",
    )
    compress_output: bool = Field(
        True,
        description="upload model and output as an archive each; false: file by file",
    )
    repository: str | None = Field(
        None,
        description="ECR repository for images that are built, its name or address",
    )
    subnets: Strings = Field((), description="run inside these subnets of your network")
    security_groups: Strings = Field((), description="with these security groups")
    kms_key: str | None = Field(
        None,
        description="key that encrypts the machines' disks and what the job writes",
    )
    keep_alive: Duration = Field(
        None,
        description="keep the machines this long for the next job; they are billed",
    )
    training_plan: Annotated[
        str | Mapping[str, str] | None,
        BeforeValidator(_read_training_plan),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]}),
    ] = Field(
        None,
        description="ARN of a training plan: run on its machines, which are paid in advance;"
        " {TYPE: ARN} for some types of `resources.instance`, the others on demand",
    )
    queue: str | None = Field(
        None,
        description="queue of AWS Batch in which the job waits for machines, its name",
    )
    share: str | None = Field(
        None, description="share identifier in a queue whose policy is fair share"
    )
    quota_share: str | None = Field(
        None, description="quota share in a queue whose policy has quota shares"
    )
    priority: int | None = Field(
        None, ge=0, le=9999, description="priority in its share of the queue; larger is earlier"
    )
    network_isolation: bool = Field(
        False,
        description="no network for the container but the other nodes",
    )
    encrypt_traffic: bool = Field(
        False,
        description="encrypt what the nodes send each other; slower",
    )
    remote_debug: bool = Field(
        False,
        description="allow a shell in the container through Systems Manager",
    )
    infra_check: bool = Field(False, description="test hardware and network before the job starts")
    tensorboard: bool = Field(
        False,
        description="upload what is written to CLOUDTRAIN_TENSORBOARD_DIR as it comes",
    )
    request: Members = Field(
        {},
        description="members of CreateTrainingJob that no other field sets, merged into the request;"
        " null removes one",
    )
    sweep_request: Members = Field(
        {},
        description="members of CreateHyperParameterTuningJob that no other field sets, for a sweep"
        " with engine: native",
    )

    def training_plans(self, types: Sequence[str]) -> Mapping[str, str]:
        """Return the ARN of the training plan of each of these types that has one."""
        plans = self.training_plan or {}
        if isinstance(plans, str):
            return dict.fromkeys(types, plans)

        return {name: plans[name] for name in types if name in plans}

    @classmethod
    def contradictions(cls, section: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Issue]:
        """Return issues with spot machines, warm pools and training plans in one job."""
        resources = spec.get("resources")
        is_spot = isinstance(resources, dict) and resources.get("spot") is True

        messages = {}
        if is_spot and section.get("keep_alive"):
            messages["keep_alive"] = "cannot go with spot: SageMaker keeps no interruptible machine"
        if section.get("training_plan"):
            if is_spot:
                messages["training_plan"] = "cannot go with spot: its machines are reserved"
            elif section.get("keep_alive"):
                messages["training_plan"] = "cannot go with keep_alive: its cost is unknown then"

        hint = "leave one of them out"
        return [Issue(("aws", name), message, hint) for name, message in messages.items()]
