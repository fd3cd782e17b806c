"""`cloudtrain doctor aws` and `check --online`: a good account, each fault, and the submitter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.providers.aws.client import aws
from tests.fakes.aws.cloud import ACCOUNT, REGION, Cloud
from tests.fakes.aws.policies import USER, Statement, needed, statements, without
from tests.fakes.messages import Call
from tests.providers.aws.accounts import BROKEN, P4D, HealthyAccount, log_in, no_credentials
from tests.providers.faults import checks_for
from tests.support.aws_template import CHECKS, DOCTOR, SUBMITTER, deploy
from tests.support.in_process import call
from tests.support.samples import assert_only_wrong, names_of_wrong

# `cloudtrain doctor aws` reports nothing about a good account, and the one fault of every other.

pytestmark = pytest.mark.once

READS = {
    ("sts", "GetCallerIdentity"),
    ("iam", "GetRole"),
    ("iam", "SimulatePrincipalPolicy"),
    ("s3", "HeadBucket"),
    ("s3", "ListObjectsV2"),
    ("kms", "DescribeKey"),
    ("kms", "GetKeyPolicy"),
    ("servicequotas", "ListServiceQuotas"),
    ("servicequotas", "ListAWSDefaultServiceQuotas"),
    ("ec2", "DescribeSubnets"),
    ("ec2", "DescribeSecurityGroups"),
    ("ec2", "DescribeRouteTables"),
    ("ec2", "DescribeVpcEndpoints"),
    ("ecr", "DescribeRepositories"),
    ("ecr", "BatchGetImage"),
    ("ecr", "GetDownloadUrlForLayer"),
}
"""All that doctor may ask of AWS."""


@pytest.fixture(autouse=True)
def reads_only(cloud: Cloud, folder: Path) -> Iterator[None]:
    """No test makes any other call."""
    cloud.account.has_warm_pools = True
    cloud.account.quotas.clear()
    yield
    assert {tuple(call) for call in cloud.endpoint.calls} <= READS


@pytest.fixture
def healthy(cloud: Cloud) -> HealthyAccount:
    return HealthyAccount(cloud)


checks_of = partial(checks_for, "aws")


def test_the_smallest_job_needs_no_network_of_its_own_and_the_default_quota(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    healthy.cloud.account.quotas["ml.m5.xlarge"] = 15
    verdicts = {
        check.name: check for check in checks_of({"name": "digits", "aws": {"role": healthy.role}})
    }
    assert names_of_wrong([*verdicts.values()]) == []
    assert verdicts["network"].verdict == "not checked"
    assert "'ml.m5.xlarge for training job usage'" in verdicts["quota"].answer
    assert ("servicequotas", "ListAWSDefaultServiceQuotas") in healthy.cloud.endpoint.calls


def test_all_that_is_asked_is_a_kind_of_reading_that_infra_grants() -> None:
    for _, operation in READS:
        assert re.match(r"(Batch)?(Get|List|Describe|Head|Simulate)", operation), operation
    actions = {needed(Call(*read)) for read in READS} - {""}
    assert actions - set(SUBMITTER) == set(DOCTOR)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_account_is_told_of_the_one_thing_that_is_wrong(
    name: str, healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, message, break_ = BROKEN[name]
    break_(healthy, monkeypatch)
    log_in(healthy, monkeypatch)
    assert_only_wrong(checks_of(healthy.spec()), check, message)


BROKEN_NETWORKS: dict[str, tuple[str, Callable[[HealthyAccount], dict[str, Any]]]] = {
    "no such subnet": (
        "subnets",
        lambda h: h.spec(replace(h.network(), subnet="subnet-0123456789abcdef0")),
    ),
    "a group that lets nobody out by EFA": (
        "security groups",
        lambda h: h.spec(h.network().open(outward=False).with_endpoint()),
    ),
    "no way to S3": ("endpoints", lambda h: h.spec(h.network().open())),
    "an endpoint for other subnets": (
        "endpoints",
        lambda h: h.spec(h.network().open().with_endpoint().with_own_routes()),
    ),
    "an endpoint to other buckets": (
        "endpoints",
        lambda h: h.spec(h.network().open().with_endpoint(to="others")),
    ),
    "an endpoint that denies writing": (
        "endpoints",
        lambda h: h.spec(h.network().open().with_endpoint(denied="s3:Put*")),
    ),
}


@pytest.mark.parametrize("name", BROKEN_NETWORKS)
def test_a_broken_network_is_told_of_the_one_thing_that_is_wrong(
    name: str, healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, spec_of = BROKEN_NETWORKS[name]
    log_in(healthy, monkeypatch)
    assert check in names_of_wrong(checks_of(spec_of(healthy)))


def test_a_session_of_a_role_is_judged_by_the_role(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    session = healthy.client("sts").assume_role(RoleArn=healthy.role, RoleSessionName="alice")[
        "Credentials"
    ]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", session["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", session["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", session["SessionToken"])
    by_name = {check.name: check for check in checks_of(healthy.spec())}
    assert "assumed-role" in by_name["credentials"].answer
    assert names_of_wrong([*by_name.values()]) == [
        "PassRole",
        "submitting",
    ], "the job's role may neither pass itself nor submit"


def test_the_command_asks_for_the_job_of_the_folder_and_says_what_is_not_set(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloudtrain.providers.local import machine
    from cloudtrain.providers.local.machine import GpuFacts, PythonFacts

    monkeypatch.setattr(machine, "ask_driver", GpuFacts)
    monkeypatch.setattr(machine, "ask_python", lambda path: PythonFacts(path=path, version="3.11"))
    log_in(healthy, monkeypatch)
    healthy.cloud.account.quotas.update(P4D)
    Path("job.yaml").write_text(json.dumps(healthy.spec()))
    result = call("doctor", "aws")
    assert result.code == 2
    user = f"whose are they? arn:aws:iam::{ACCOUNT}:user/"
    assert f"\nSageMaker, {REGION}\n  found credentials     {user}" in result.out
    assert "  wrong quota " in result.out
    assert "aws service-quotas request-service-quota-increase" in result.out
    monkeypatch.delenv("CLOUDTRAIN_AWS_BUCKET")
    checks = json.loads(call("doctor", "aws", "--json").out)["checks"]
    missing = [(check["name"], check["answer"]) for check in checks if check["verdict"] == "wrong"]
    ((name, answer),) = missing
    assert name == "aws.bucket"
    assert re.fullmatch(r"job.yaml:1:\d+: is not set", answer)


# `cloudtrain doctor aws` by people who submit: the policy of the template allows every check.


@pytest.fixture
def submitter(
    cloud: Cloud, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Statement]]:
    """An account with the resources of the template, and the policy that this process has."""
    from cloudtrain.providers.aws.client import aws

    cloud.empty()
    cloud.account.quotas.clear()
    for name in ("ROLE", "BUCKET"):
        monkeypatch.delenv(f"CLOUDTRAIN_AWS_{name}")
    arn = deploy(cloud, Network="existing", KmsKey="new")["SubmitterPolicy"]
    result = call("infra", "settings", "--provider", "aws", "--yes")
    assert result.code == 0, result.err
    iam = cloud.client("iam", direct=True)
    user = USER.rpartition("/")[2]
    iam.create_user(UserName=user)
    iam.attach_user_policy(UserName=user, PolicyArn=arn)
    key = iam.create_access_key(UserName=user)["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    aws.cache_clear()
    policy = statements(
        [iam.get_policy_version(PolicyArn=arn, VersionId="v1")["PolicyVersion"]["Document"]]
    )
    cloud.account.caller_policy = policy
    yield policy
    cloud.account.caller_policy = None
    cloud.account.job_policy = None
    cloud.empty()


def job(cloud: Cloud) -> dict[str, Any]:
    """Return a job that makes doctor run every check except the one for the build repository."""
    network = HealthyAccount(cloud).network().open().with_endpoint()
    image = f"{cloud.stacks.outputs['cloudtrain']['Repository']}:1"
    cloud.registry.images.put(image.partition("/")[2].partition(":")[0], "1", "amd64")
    return {
        "name": "digits",
        "image": image,
        "resources": {"nodes": 2, "instance": {"aws": "ml.m5.xlarge"}},
        "limits": {"max_runtime": "1 h"},
        "aws": {"subnets": [network.subnet], "security_groups": [network.group]},
    }


def test_submitter_policy_allows_every_check_of_doctor(
    cloud: Cloud, submitter: list[Statement]
) -> None:
    spec = job(cloud)
    checks = [*checks_of(spec), *checks_of({**spec, "image": "auto"})]
    assert {check.name: check.answer for check in checks if check.verdict != "found"} == {}
    assert len({check.name for check in checks}) == 17


def test_check_without_its_action_is_skipped_and_names_it(
    cloud: Cloud, submitter: list[Statement]
) -> None:
    named = job(cloud)
    built = {**named, "image": "auto"}  # doctor looks for a repository only to build an image
    for action, names in CHECKS.items():
        cloud.account.caller_policy = without(action, submitter)
        checks = checks_of(built if action == "ecr:DescribeRepositories" else named)
        unseen = {check.name: check for check in checks if check.verdict == "not checked"}
        assert set(unseen) == set(names), action
        assert all(action in f"{check.answer} {check.fix}" for check in unseen.values())


# `cloudtrain check --provider aws --online`: its questions about this job, and its reports of
# mistakes.

CHECK = ("check", "--provider", "aws", "--online")


def test_check_online_counts_checks_that_it_skips(
    healthy: HealthyAccount, submitter: list[Statement], monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    Path("job.yaml").write_text(json.dumps(healthy.spec()))
    healthy.cloud.account.caller_policy = without("servicequotas:ListServiceQuotas", submitter)
    verdicts = [check["verdict"] for check in json.loads(call(*CHECK, "--json").out)["checks"]]
    made, skipped = (verdicts.count(verdict) for verdict in ("found", "not checked"))
    assert skipped > 1
    assert f"; {made} things checked, all found; not checked: " in call(*CHECK).out


def test_check_online_asks_for_the_very_job_and_tells_the_line(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    Path("job.yaml").write_text(json.dumps(healthy.spec(), indent=1))
    assert call(*CHECK[:-1]).code == 0
    assert healthy.cloud.endpoint.calls == [], "without --online no call is sent"
    result = call(*CHECK)
    assert (result.code, "; 11 things checked, all found; not checked: network\n" in result.out) == (0, True)
    healthy.cloud.account.quotas.update(P4D)
    result = call(*CHECK)
    assert result.code == 2
    quota = r"^job.yaml:\d+:\d+: resources: quota: the quota '.*' \(L-.*\) is 1, the job has 2$"
    assert re.search(quota, result.err, re.MULTILINE)
    result = call(*CHECK, "--json", "--set", "resources.nodes=1")
    checks = {check["name"]: check["verdict"] for check in json.loads(result.out)["checks"]}
    assert (result.code, checks["quota"]) == (0, "found")


def test_check_online_of_a_sweep_counts_machines_of_parallel_trials(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    sweep = {
        "objective": {"metric": "val_loss", "goal": "minimize"},
        "space": {"lr": [1, 2, 3, 4]},
        "method": "grid",
        "parallel": 4,
    }
    Path("job.yaml").write_text(json.dumps({**healthy.spec(), "sweep": sweep}, indent=1))
    healthy.cloud.account.quotas.update(dict.fromkeys(P4D, 7))
    result = call(*CHECK)
    assert result.code == 2
    quota = r"^job.yaml:\d+:\d+: sweep.parallel: quota: .* is 7, 4 trials at once have 8$"
    assert re.search(quota, result.err, re.MULTILINE)
    assert call(*CHECK, "--set", "sweep.parallel=3").code == 0


def test_check_online_without_credentials_is_trouble_with_the_cloud(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("job.yaml").write_text(json.dumps(healthy.spec()))
    no_credentials(healthy, monkeypatch)
    aws.cache_clear()
    result = call(*CHECK)
    assert result.code == 4
    assert "no AWS credentials" in result.err
