"""`cloudtrain doctor aws` and `check --online`: a good account, each fault, and the submitter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.api.doctor import exit_code
from cloudtrain.checkup import Check
from cloudtrain.providers.aws.client import aws
from tests.fakes.aws.cloud import ACCOUNT, BUCKET, REGION, Cloud
from tests.fakes.aws.policies import USER, Statement, statements, without
from tests.providers.aws.accounts import (
    BROKEN,
    BROKEN_NETWORKS,
    P4D,
    TRAINING_PLAN,
    HealthyAccount,
    allow,
    log_in,
    no_credentials,
)
from tests.providers.faults import checks_for
from tests.support.aws_template import DOCTOR, JOB, deploy
from tests.support.in_process import call
from tests.support.samples import names_of_wrong

# `cloudtrain doctor aws` reports nothing about a good account, and the one fault of every other.

pytestmark = pytest.mark.once

READS = {
    *(("sts", "GetCallerIdentity"), ("s3", "HeadBucket"), ("s3", "ListObjectsV2")),
    *(("ecr", "BatchGetImage"), ("ecr", "GetDownloadUrlForLayer")),
    *(tuple(action.split(":")) for action in DOCTOR),
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


def with_key(healthy: HealthyAccount) -> dict[str, Any]:
    """A job with a key that the role's policies do not mention."""
    key = healthy.client("kms").create_key()["KeyMetadata"]["Arn"]
    role = healthy.role.rpartition("/")[2]
    rights = json.dumps({"Version": "2012-10-17", "Statement": [allow(*NO_KEY)]})
    healthy.client("iam").put_role_policy(RoleName=role, PolicyName="job", PolicyDocument=rights)
    healthy.values["aws"] = {"kms_key": key}
    return healthy.spec()


NO_KEY = [action for action in JOB if not action.startswith("kms:")]


def test_the_smallest_job_needs_no_network_of_its_own_and_the_default_quota(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    healthy.cloud.account.quotas["ml.m5.xlarge"] = 15
    verdicts = {
        check.name: check for check in checks_of({"name": "digits", "aws": {"role": healthy.role}})
    }
    assert names_of_wrong([*verdicts.values()]) == []
    assert not verdicts.keys() & {"subnets", "key", "role and network"}
    assert verdicts["image"].verdict == "not checked", "it is AWS's own"
    assert "'ml.m5.xlarge for training job usage'" in verdicts["quota"].answer
    assert ("servicequotas", "ListAWSDefaultServiceQuotas") in healthy.cloud.endpoint.calls


def test_all_that_is_asked_is_a_kind_of_reading() -> None:
    for _, operation in READS:
        assert re.match(r"(Batch)?(Get|List|Describe|Head|Simulate)", operation), operation


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_account_is_told_of_the_one_thing_that_is_wrong(
    name: str, healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, message, break_ = BROKEN[name]
    break_(healthy, monkeypatch)
    log_in(healthy, monkeypatch)
    assert_told(checks_of(healthy.spec()), check, message)


@pytest.mark.parametrize("name", BROKEN_NETWORKS)
def test_a_broken_network_is_told(
    name: str, healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, message, spec_of = BROKEN_NETWORKS[name]
    log_in(healthy, monkeypatch)
    assert_told(checks_of(spec_of(healthy)), check, message)


def assert_told(checks: list[Check], name: str, message: str) -> None:
    """A check of that name is wrong with this message, and the things beside it are not."""
    wrong = [check for check in checks if check.is_wrong]
    assert wrong[0].name.startswith(name), wrong
    assert message in wrong[0].answer
    assert {check.setting for check in wrong} == {wrong[0].setting}
    assert exit_code(checks) == (4 if name == "credentials" else 2)


UNTOLD: dict[str, tuple[str, Callable[[HealthyAccount], dict[str, Any]]]] = {
    "conditions of the trust policy": ("trust policy", lambda h: h.spec()),
    "a bucket policy": ("bucket policies", lambda h: h.spec()),
    "the key's own policy": ("key policies", lambda h: with_key(h)),
    "a key that IAM does not allow": ("role and key", lambda h: with_key(h)),
    "routes of a subnet": ("routes of subnet-", lambda h: h.spec(h.network().open())),
    "other jobs": ("use of the quotas", lambda h: h.spec()),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_what_no_call_tells_is_named(
    name: str, healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    check, spec_of = UNTOLD[name]
    checks = checks_of(spec_of(healthy))
    assert names_of_wrong(checks) == []
    (untold,) = [item for item in checks if item.name.startswith(check)]
    assert untold.verdict == "not checked"


def test_a_bucket_that_s3_denies_is_wrong_where_the_caller_needs_it(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    healthy.client("s3").create_bucket(Bucket=healthy.name)
    healthy.values["inputs"] = {"train": {"aws": f"s3://{healthy.name}/"}}
    healthy.cloud.account.denied_actions.add("s3:ListBucket")
    checks = {check.name: check for check in checks_of(healthy.spec())}
    assert checks[f"bucket {BUCKET}"].is_wrong, "fetch lists it"
    assert checks[f"bucket {healthy.name}"].verdict == "not checked"
    assert "s3:ListBucket" in checks[f"bucket {healthy.name}"].fix


def test_a_bucket_of_another_account_is_left_to_its_policy(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    monkeypatch.setattr(healthy.cloud.account, "foreign_buckets", {BUCKET})
    checks = {check.name: check for check in checks_of(healthy.spec())}
    assert checks[f"bucket {BUCKET}"].verdict == "not checked"
    assert "another account's" in checks[f"bucket {BUCKET}"].answer


def test_a_condition_that_the_request_lacks_is_named_and_not_judged(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = allow("s3:GetObject", IpAddress={"aws:SourceIp": "10.0.0.0/8"})
    healthy.job = [allow(*(JOB.keys() - {"s3:GetObject"})), here]
    log_in(healthy, monkeypatch)
    checks = {check.name: check for check in checks_of(healthy.spec())}
    assert checks["role's rights"].verdict == "not checked"
    assert "depends on aws:SourceIp" in checks["role's rights"].answer


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
        "submitting",
        "following",
        "stopping",
    ], "the job's role may neither pass itself nor submit"
    healthy.cloud.account.denied_actions.add("iam:GetRole")
    by_name = {check.name: check for check in checks_of(healthy.spec())}
    assert by_name["submitting"].verdict == "not checked", "the role may have a path"


def test_the_command_asks_for_the_job_of_the_folder_and_says_what_is_not_set(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloudtrain.providers.local import machine

    monkeypatch.setattr(machine, "ask_python", lambda _: pytest.fail("torch is not looked for"))
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
    network = HealthyAccount(cloud).network().open()
    image = f"{cloud.stacks.outputs['cloudtrain']['Repository']}:1"
    cloud.registry.images.put(image.partition("/")[2].partition(":")[0], "1", "amd64")
    return {
        "name": "digits",
        "image": image,
        "resources": {"nodes": 2, "instance": {"aws": "ml.m5.xlarge"}},
        "limits": {"max_runtime": "1 h"},
        "aws": {"subnets": [network.subnet], "security_groups": [network.group]},
    }


def test_submitter_policy_allows_every_check(cloud: Cloud, submitter: list[Statement]) -> None:
    spec = job(cloud)
    checks = [*checks_of(spec), *checks_of({**spec, "image": "auto"})]
    assert names_of_wrong(checks) == []
    untold = {check.name.partition(" subnet-")[0] for check in checks if check.verdict != "found"}
    assert untold == {
        *("trust policy", "bucket policies", "key policies", "routes of", "use of the quotas")
    }


@pytest.mark.parametrize("action", DOCTOR)
def test_a_check_without_its_action_is_not_made_and_names_it(
    action: str, cloud: Cloud, submitter: list[Statement]
) -> None:
    everything = job(cloud)
    everything["secrets"] = {
        "TOKEN": {"aws": "secretsmanager:cloudtrain/token"},
        "KEY": {"aws": "ssm:/cloudtrain/key"},
    }
    everything["inputs"] = {
        "words": {"aws": "efs://fs-0123456789abcdef0/words"},
        "texts": {"aws": "fsx://fs-0123456789abcdef1/texts"},
    }
    everything["aws"]["training_plan"] = TRAINING_PLAN
    everything["image"] = "auto"
    cloud.account.caller_policy = without(action, submitter)
    checks = checks_of(everything)
    unseen = [check for check in checks if action in f"{check.answer} {check.fix}"]
    assert {check.verdict for check in unseen} == {"not checked"}


# `cloudtrain check --provider aws --online`: its questions about this job, and its reports of
# mistakes.

CHECK = ("check", "--provider", "aws", "--online")


def test_check_online_asks_for_the_very_job_and_tells_the_line(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    Path("job.yaml").write_text(json.dumps(healthy.spec(), indent=1))
    assert call(*CHECK[:-1]).code == 0
    assert healthy.cloud.endpoint.calls == [], "without --online no call is sent"
    result = call(*CHECK)
    untold = "use of the quotas, trust policy, bucket policies, key policies"
    assert result.out.endswith(f"; 14 things checked, all found; not checked: {untold}\n")
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
