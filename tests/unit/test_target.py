"""A provider's decisions for a plan are typed values, and plan.json restores them, old files
included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from cloudtrain.planning.target import ProviderConfig
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.docker.config import DockerConfig
from cloudtrain.providers.local.config import LocalConfig
from tests.golden.cases import plan_of

CONFIGS: Mapping[str, type[ProviderConfig]] = {
    "aws": AwsConfig,
    "azure": AzureConfig,
    "docker": DockerConfig,
    "local": LocalConfig,
}
TEXT = (
    "name: digits\nlimits: {max_runtime: 1 h}\naws: {subnets: [subnet-1], security_groups:"
    " [sg-1]}\n"
)

OLD_AWS: Mapping[str, Any] = {
    "region": "us-east-1",
    "role": "arn:aws:iam::123456789012:role/train",
    "bucket": "my-bucket",
    "repository": None,
    "subnets": ["subnet-1"],
    "security_groups": ["sg-1"],
    "kms_key": None,
    "borrowed": ["aws.region"],
    "placeholders": [],
    "instances": ["ml.p4d.24xlarge"],
    "prices": {"ml.p4d.24xlarge": 25.25},
    "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1",
    "recipe": None,
    "poll": 10.0,
    "unpaid": [],
}
"""`target.facts` of an early plan.json, before these were types."""

OLD_ADOPTED = {
    "region": "eu-west-1",
    "bucket": "b",
    "instances": ["ml.m5.xlarge"],
    "prices": {},
    "poll": 5.0,
}
"""The same of a run that another machine had started: less was known of it."""


@pytest.mark.parametrize("provider", CONFIGS)
def test_a_config_comes_back_from_json_as_it_was(provider: str) -> None:
    target = plan_of(provider, TEXT).target
    stored = json.loads(json.dumps(target.to_json()))["facts"]
    assert CONFIGS[provider].from_json(stored) == target.config


def test_a_config_that_an_earlier_version_wrote_is_read() -> None:
    config = AwsConfig.from_json(OLD_AWS)
    assert (config.region, config.bucket, config.poll) == ("us-east-1", "my-bucket", 10.0)
    assert (config.subnets, config.prices) == (("subnet-1",), {"ml.p4d.24xlarge": 25.25})


def test_what_plan_json_says_of_image_and_machines_is_where_it_always_was() -> None:
    stored = plan_of("aws", TEXT).target.to_json()["facts"]
    assert stored.keys() >= OLD_AWS.keys() - {"borrowed"}


def test_of_a_run_that_another_machine_started_less_is_known() -> None:
    config = AwsConfig.from_json(OLD_ADOPTED)
    assert (config.region, config.poll, config.role, config.kms_key) == ("eu-west-1", 5.0, "", None)


def test_what_a_later_version_adds_is_passed_over() -> None:
    assert DockerConfig.from_json({"shm_bytes": 1, "invented": True}) == DockerConfig(shm_bytes=1)


def test_the_config_of_another_provider_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="has AwsConfig, not AzureConfig"):
        plan_of("aws", TEXT).target.config_as(AzureConfig)
