"""A security review of a job: warnings of `check` at their lines; strict settings refuse it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import cloudtrain
from cloudtrain.errors import SpecError
from cloudtrain.planning.plan import Plan
from cloudtrain.submission.preflight import preflight, security_issues
from tests.support.in_process import call

AWS: dict[str, Any] = {
    "region": "us-east-1",
    "role": "arn:aws:iam::123456789012:role/train",
    "bucket": "my-bucket",
}
AZURE: dict[str, Any] = {
    "subscription": "00000000-0000-0000-0000-000000000000",
    "resource_group": "rg",
    "workspace": "ws1",
    "location": "eastus",
}
SAFE_AWS = {
    **AWS,
    "subnets": ["subnet-0123456789abcdef0"],
    "security_groups": ["sg-0123456789abcdef0"],
    "network_isolation": True,
    "encrypt_traffic": True,
    "kms_key": "arn:aws:kms:us-east-1:123456789012:key/01234567-89ab-cdef-0123-456789abcdef",
}
SAFE_AZURE = {**AZURE, "compute": "gpu-cluster", "identity": "managed"}
TOKEN = {"HF_TOKEN": {"aws": "secretsmanager:hf", "azure": "keyvault:vault/hf"}}
pytestmark = pytest.mark.usefixtures("folder")


def spec(section: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A job on two machines."""
    name = "azure" if "workspace" in section else "aws"
    job = {"name": "digits", "entrypoint": "train.py", "limits": {"max_runtime": "1 h"}}
    return {**job, "resources": {"nodes": 2, "gpus": 1}, **more, name: section}


def plan_of(job: dict[str, Any], **options: Any) -> Plan:
    return cloudtrain.plan(cloudtrain.load(job), "azure" if "azure" in job else "aws", **options)


def findings(job: dict[str, Any]) -> list[str]:
    """The fields that there are findings about."""
    return [issue.field for issue in security_issues(plan_of(job))]


def test_a_safe_job_has_no_findings() -> None:
    assert findings(spec(SAFE_AWS)) == []
    assert findings(spec(SAFE_AZURE)) == []


def test_an_ordinary_job_has_all_of_prowlers_four() -> None:
    assert findings(spec(AWS)) == [
        "aws.subnets",
        "aws.network_isolation",
        "aws.encrypt_traffic",
        "aws.kms_key",
    ]
    assert findings(spec(AZURE)) == ["azure.compute", "azure.identity"]


@pytest.mark.parametrize(
    ("job", "fields"),
    [
        (spec(SAFE_AWS | {"encrypt_traffic": False}), ["aws.encrypt_traffic"]),
        (spec(SAFE_AWS | {"encrypt_traffic": False}, resources={"nodes": 1, "gpus": 1}), []),
        (spec(SAFE_AWS | {"kms_key": None}), ["aws.kms_key"]),
        (spec(SAFE_AWS | {"network_isolation": False}), ["aws.network_isolation"]),
        (spec(SAFE_AWS | {"network_isolation": False}, secrets=TOKEN), []),
        (spec(SAFE_AWS | {"network_isolation": False}, dependencies=["einops"]), []),
        (spec(SAFE_AWS | {"network_isolation": False, "remote_debug": True}), ["aws.remote_debug"]),
        (spec(SAFE_AZURE | {"services": ["tensorboard"]}), []),
        (spec(SAFE_AZURE | {"services": ["jupyter"]}), ["azure.services"]),
        (spec(SAFE_AZURE | {"compute": None}), ["azure.compute", "azure.compute"]),
        (spec(SAFE_AZURE | {"compute": None, "identity": "user"}), ["azure.compute"]),
        (
            spec(SAFE_AZURE | {"compute": None, "identity": None}, secrets=TOKEN),
            ["azure.compute"] * 2,
        ),
        (spec(SAFE_AZURE | {"identity": None}), ["azure.identity"]),
        (spec(SAFE_AZURE | {"identity": None}, secrets=TOKEN), []),
    ],
)
def test_each_finding_is_about_the_field_that_sets_it_right(
    job: dict[str, Any], fields: list[str]
) -> None:
    assert findings(job) == fields


def test_volumes_are_named_where_the_machines_have_none_of_their_own() -> None:
    def key_message(instance: str) -> str:
        job = spec(
            SAFE_AWS | {"kms_key": None}, resources={"nodes": 2, "instance": {"aws": instance}}
        )
        return next(issue.message for issue in security_issues(plan_of(job)))

    assert "volumes" in key_message("ml.m5.xlarge")
    assert "volumes" not in key_message("ml.p4d.24xlarge"), (
        "its NVMe disks are encrypted, and take no key"
    )


def test_a_rehearsal_sends_nothing_and_has_none() -> None:
    assert security_issues(plan_of(spec(AWS), as_=None)) != []
    assert security_issues(cloudtrain.plan(cloudtrain.load(spec(AWS)), "local", as_="aws")) == []


def test_findings_are_warnings_of_check_at_their_lines_and_no_concern_of_plan(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        yaml.safe_dump(spec(AWS, env={"HF_TOKEN": "abc"}), sort_keys=False)
    )
    lines = (folder / "job.yaml").read_text().splitlines()
    at = next(number for number, line in enumerate(lines, 1) if line.startswith("aws:"))
    token = next(number for number, line in enumerate(lines, 1) if "HF_TOKEN" in line)
    result = call("check", "--provider", "aws")
    assert result.code == 0
    assert (
        f"note: job.yaml:{at}:1: aws.encrypt_traffic: is off: what the 2 nodes send each other"
        in result.err
    )
    assert f"note: job.yaml:{token}:3: env.HF_TOKEN: looks like a secret" in result.err
    assert len(json.loads(call("check", "--provider", "aws", "--json").out)["warnings"]) == 5
    assert not plan_of(spec(AWS)).issues


def test_a_line_is_told_also_where_settings_name_the_account(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.yaml").write_text(
        "entrypoint: train.py\nresources: {nodes: 2}\nlimits: {max_runtime: 1 h}\n"
    )
    for name, value in AWS.items():
        monkeypatch.setenv(f"CLOUDTRAIN_AWS_{name.upper()}", value)
    assert "note: job.yaml:2:1: aws.encrypt_traffic: " in call("check", "--provider", "aws").err


@pytest.mark.parametrize("section", [AWS, AZURE], ids=["aws", "azure"])
def test_strict_settings_refuse_the_job_before_it_is_sent(
    section: dict[str, Any], folder: Path
) -> None:
    (folder / "cloudtrain.toml").write_text('policy = "strict"\n')
    plan = plan_of(spec(section))
    assert {issue.severity for issue in security_issues(plan)} == {"error"}
    assert all("policy" in str(issue.hint) for issue in security_issues(plan))
    with pytest.raises(SpecError) as refused:
        cloudtrain.submit(plan)
    assert [issue.field for issue in refused.value.issues] == [
        issue.field for issue in security_issues(plan)
    ]
    safe = plan_of(spec(SAFE_AZURE if section is AZURE else SAFE_AWS))
    assert not [issue for issue in preflight(safe, starting=False) if issue.is_error]


def test_check_tells_each_finding_once_where_settings_are_strict(folder: Path) -> None:
    (folder / "cloudtrain.toml").write_text('policy = "strict"\n')
    (folder / "job.yaml").write_text(yaml.safe_dump(spec(AWS)))
    result = call("check", "--provider", "aws")
    assert result.code == 2
    assert result.err.count("aws.kms_key: is not set") == 1
    assert call("check", "--as", "aws", "--set", "resources.gpus=0").code == 0


def test_a_policy_is_warn_or_strict(folder: Path) -> None:
    (folder / "cloudtrain.toml").write_text('policy = "stern"\n')
    (folder / "job.yaml").write_text(yaml.safe_dump(spec(AWS)))
    assert "cloudtrain.toml:1: policy: expected warn or strict, got 'stern'" in call("check").err
