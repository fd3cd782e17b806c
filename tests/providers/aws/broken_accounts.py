"""Faults of an AWS account, one each: the check that reports it, its message, and how to cause it."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.providers.aws import account_rights as identity
from tests.fakes.aws.cloud import ACCOUNT
from tests.providers.aws.accounts import (
    TRUST,
    HealthyAccount,
    job_rights,
    user_rights,
    without,
)

Break = Callable[[HealthyAccount, pytest.MonkeyPatch], None]


def set_values(**values: Any) -> Break:
    return lambda healthy, _: healthy.values.update(values)


def statements(part: str, broken: Callable[[HealthyAccount], list[dict[str, Any]]]) -> Break:
    return lambda healthy, _: setattr(healthy, part, broken(healthy))


def no_credentials(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthy, "make", dict)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)


def slow_clock(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "time", SimpleNamespace(time=lambda: time.time() - 600))


def bucket_elsewhere(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"LocationConstraint": "eu-west-1"}
    healthy.client("s3").create_bucket(Bucket=healthy.name, CreateBucketConfiguration=where)
    healthy.values["aws"] = {"bucket": healthy.name}


def image_for_arm(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy.cloud.registry.images.put("arm", "1", "arm64")
    healthy.values["image"] = healthy.cloud.image.replace("train:1", "arm:1")


def disabled_key(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    key = healthy.client("kms").create_key()["KeyMetadata"]["Arn"]
    healthy.client("kms").disable_key(KeyId=key.rpartition("/")[2])
    healthy.values["aws"] = {"kms_key": key}


P4D = {"ml.p4d.24xlarge": 1}


def small_quota(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy.cloud.account.quotas.update(P4D)


def no_warm_pools(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy.values["aws"] = {"keep_alive": "1 h"}
    healthy.cloud.account.has_warm_pools = False


OTHER = "999999999999"
NO_CONDITION = {key: value for key, value in TRUST.items() if key != "Condition"}
BROKEN: dict[str, tuple[str, str, Break]] = {
    "no credentials": ("credentials", "no AWS credentials", no_credentials),
    "expired login": (
        *("credentials", "expired"),
        lambda healthy, _: healthy.cloud.endpoint.fault("expired", "sts", times=9),
    ),
    "clock ten minutes slow": ("clock", " slow", slow_clock),
    "another account": (
        "account",
        f"are of {ACCOUNT}",
        set_values(aws={"role": f"arn:aws:iam::{OTHER}:role/train"}),
    ),
    "no such role": (
        "execution role",
        "no such role",
        set_values(aws={"role": f"arn:aws:iam::{ACCOUNT}:role/gone"}),
    ),
    "role of EC2": (
        *("execution role", "does not trust"),
        statements(
            "trust", lambda _: [{**NO_CONDITION, "Principal": {"Service": "ec2.amazonaws.com"}}]
        ),
    ),
    "no PassRole": (
        "PassRole",
        "iam:PassRole",
        statements("user", lambda h: user_rights(h.role)[1:]),
    ),
    "no right to store": (
        *("submitting", "s3:PutObject"),
        statements("user", lambda h: without(user_rights(h.role), "s3:PutObject")),
    ),
    "job may not rotate checkpoints": (
        *("role's rights", "s3:DeleteObject"),
        statements("job", lambda _: without(job_rights(), "s3:DeleteObject")),
    ),
    "no such bucket": ("bucket", "no such bucket", set_values(aws={"bucket": "nobodys-bucket"})),
    "bucket in another region": ("bucket", "eu-west-1", bucket_elsewhere),
    "key is disabled": ("key", "Disabled", disabled_key),
    "no such repository": (
        "repository",
        "no such",
        set_values(image="auto", aws={"repository": "gone"}),
    ),
    "no such image": (
        *("image", "no such image"),
        lambda h, _: h.values.update(image=h.cloud.image.replace("train:1", "train:2")),
    ),
    "image for other processors": ("image", "arm64", image_for_arm),
    "quota too small": ("quota", "is 1, the job has 2", small_quota),
    "no warm pools": (
        *("warm pool", "is 0"),
        no_warm_pools,
    ),
}
