"""Security review of a SageMaker job before it is sent. Pure.

Four rules are Prowler's for training jobs of live accounts (sagemaker_training_jobs_…: VPC
settings, network isolation, encryption of volume and output, encryption between containers), one is
ours: a shell into the container.
"""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.issues import Issue
from cloudtrain.planning.launch import dependencies_document
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.request import has_own_disk, needs_volume, section_of


def security_findings(plan: Plan) -> list[Issue]:
    """Return an issue for each rule that the job breaks, with the path of its field."""
    return [*_network(plan), *_encryption(plan), *_access(plan)]


def _network(plan: Plan) -> Iterator[Issue]:
    section = section_of(plan)
    if not plan.target.config_as(AwsConfig).subnets:
        message = (
            "is not set: the job runs in no network of yours, and nothing that you own limits what"
            " it reaches"
        )
        yield Issue(("aws", "subnets"), message, "aws.subnets and aws.security_groups of your VPC")
    if not section.network_isolation and not _needs_network(plan):
        message = "is off: the containers may reach any network, and nothing in the job needs one"
        yield Issue(
            ("aws", "network_isolation"),
            message,
            "aws.network_isolation: true, unless your program does",
        )


def _needs_network(plan: Plan) -> bool:
    """Return True if isolation would break the job: see the rules of `network_isolation`."""
    installs = bool(dependencies_document(plan)) and not plan.spec.dependencies.vendor
    return installs or bool(plan.spec.secrets) or section_of(plan).remote_debug


def _encryption(plan: Plan) -> Iterator[Issue]:
    nodes = plan.spec.resources.nodes
    types = plan.target.instances
    if nodes > 1 and not section_of(plan).encrypt_traffic:
        message = f"is off: what the {nodes} nodes send each other is not encrypted"
        yield Issue(
            ("aws", "encrypt_traffic"), message, "aws.encrypt_traffic: true; training takes longer"
        )
    if not plan.target.config_as(AwsConfig).kms_key:
        what_lacks = "what the job writes has no"
        if needs_volume(types) and not has_own_disk(types):
            what_lacks = "neither the machines' volumes nor what the job writes has a"
        yield Issue(
            ("aws", "kms_key"), f"is not set: {what_lacks} key of yours", "aws.kms_key: its ARN"
        )


def _access(plan: Plan) -> Iterator[Issue]:
    if section_of(plan).remote_debug:
        message = "opens a shell in the running container to those who may use Systems Manager"
        yield Issue(("aws", "remote_debug"), message, "leave it out once the job runs")
