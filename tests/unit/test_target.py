"""What a provider decides for a plan is a typed value, and comes back from plan.json as it was, old files included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.docker.config import DockerConfig
from cloudtrain.providers.local.config import LocalConfig
from cloudtrain.target import ProviderConfig, Target
from tests.golden.cases import plan_of

CONFIGS: Mapping[str, type[ProviderConfig]] = {
    "aws": AwsConfig,
    "azure": AzureConfig,
    "docker": DockerConfig,
    "local": LocalConfig,
}
TEXT = "name: digits\nlimits: {max_runtime: 1 h}\naws: {subnets: [subnet-1], security_groups: [sg-1]}\n"

OLD_AWS: Mapping[str, Any] = {
    "provider": "aws",
    "contract": "sagemaker",
    "where": "us-east-1",
    "max_nodes": 500,
    "grace_seconds": 120,
    "schemes": ["s3"],
    "kin": [],
    "unused": [],
    "facts": {
        "region": "us-east-1",
        "role": "arn:aws:iam::123456789012:role/train",
        "bucket": "my-bucket",
        "repository": None,
        "subnets": [],
        "security_groups": [],
        "kms_key": None,
        "borrowed": ["aws.region"],
        "placeholders": [],
        "instances": ["ml.p4d.24xlarge"],
        "prices": {"ml.p4d.24xlarge": 25.25},
        "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1",
        "recipe": None,
        "poll": 10.0,
        "unpaid": [],
    },
    "gpus": 8,
    "quote": None,
    "problems": [],
}
"""The target of a plan.json as 0.2.0 wrote it before configurations were types."""

OLD_ADOPTED = {
    "provider": "aws",
    "contract": "sagemaker",
    "grace_seconds": 120,
    "facts": {"region": "eu-west-1", "bucket": "b", "instances": ["ml.m5.xlarge"], "prices": {}, "poll": 5.0},
}
"""The same of a run that another machine had started: less was known of it."""


@pytest.mark.parametrize("provider", CONFIGS)
def test_a_target_comes_back_from_json_as_it_was(provider: str) -> None:
    target = plan_of(provider, TEXT).target
    again = Target.from_json(json.loads(json.dumps(target.to_json())), CONFIGS[provider])
    for name in ("provider", "contract", "grace_seconds", "config", "image", "instances", "borrowed", "gpus", "unused"):
        assert getattr(again, name) == getattr(target, name), name


def test_a_target_that_an_earlier_version_wrote_is_read() -> None:
    target = Target.from_json(OLD_AWS, AwsConfig)
    config = target.config_as(AwsConfig)
    assert (config.region, config.bucket, config.poll) == ("us-east-1", "my-bucket", 10.0)
    assert config.prices == {"ml.p4d.24xlarge": 25.25}
    assert (target.instances, target.gpus, target.grace_seconds) == (("ml.p4d.24xlarge",), 8, 120)
    assert target.image_address.endswith("/train:1")
    assert target.borrowed == {"aws.region": "us-east-1"}


def test_of_a_run_that_another_machine_started_less_is_known() -> None:
    target = Target.from_json(OLD_ADOPTED, AwsConfig)
    config = target.config_as(AwsConfig)
    assert (config.region, config.poll, config.role, config.kms_key) == ("eu-west-1", 5.0, "", None)
    assert target.image is None


def test_what_a_later_version_adds_is_passed_over() -> None:
    assert DockerConfig.from_json({"shm_bytes": 1, "invented": True}) == DockerConfig(shm_bytes=1)


def test_the_settings_of_another_provider_are_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="has AwsConfig, not AzureConfig"):
        plan_of("aws", TEXT).target.config_as(AzureConfig)
