"""`cloudtrain doctor aws` and `check --online`: a good account, each fault, and the submitter."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cloudtrain.api.doctor import exit_code
from cloudtrain.checkup import Check
from cloudtrain.providers.aws import checkup
from cloudtrain.providers.aws.client import aws
from tests.fakes.aws.cloud import ACCOUNT, BUCKET, REGION, Cloud
from tests.fakes.aws.policies import USER, Statement, statements, without
from tests.providers.aws.accounts import TRAINING_PLAN, HealthyAccount
from tests.providers.aws.operations import QUEUE
from tests.providers.faults import checks_for
from tests.support.aws_template import DOCTOR, deploy
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

ACCOUNTS = yaml.safe_load((Path(__file__).parents[2] / "data" / "aws_accounts.yaml").read_text())
UNTOLD = ["use of the quotas", "trust policy", "bucket policies", "key policies"]
"""Questions about any job that no call answers."""


@pytest.fixture(autouse=True)
def reads_only(cloud: Cloud, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test makes any other call, and none changes the account of another."""
    for name in ("quotas", "denied_actions", "foreign_buckets"):
        monkeypatch.setattr(cloud.account, name, type(getattr(cloud.account, name))())
    monkeypatch.setattr(cloud.account, "has_warm_pools", True)
    cloud.registry.images.put("arm", "1", "arm64")
    yield
    assert {tuple(call) for call in cloud.endpoint.calls} <= READS


@pytest.fixture
def healthy(cloud: Cloud) -> HealthyAccount:
    return HealthyAccount(cloud)


checks_of = partial(checks_for, "aws")


def log_in(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch, row: Mapping[str, Any] = {}
) -> None:
    """Make the account as a row says, and take its user's key."""
    for name, value in healthy.make(row).items():
        monkeypatch.setenv(name, value)


def assert_told(checks: list[Check], name: str, message: str) -> None:
    """A check of that name is wrong with this message, and the things beside it are not."""
    wrong = [check for check in checks if check.is_wrong]
    assert wrong[0].name.startswith(name), wrong
    assert message in wrong[0].answer
    assert {check.setting for check in wrong} == {wrong[0].setting}
    assert exit_code(checks) == (4 if name == "credentials" else 2)


def unchecked(checks: list[Check]) -> dict[str, str]:
    """Return the checks that were not made, with their reasons, but for those of every job."""
    untold = [check for check in checks if check.verdict == "not checked"]
    return {check.name: check.answer for check in untold if check.name not in UNTOLD}


def test_the_smallest_job_needs_no_network_of_its_own_and_the_default_quota(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(healthy, monkeypatch)
    healthy.cloud.account.quotas["ml.m5.xlarge"] = 15
    checks = checks_of({"name": "digits", "aws": {"role": healthy.role}})
    assert names_of_wrong(checks) == []
    assert list(unchecked(checks)) == ["image"], "it is AWS's own"
    assert [check.name for check in checks] == [
        *("credentials", "clock", "account", "execution role", f"bucket {BUCKET}", "quota"),
        *("longest run", "all instances", "use of the quotas", "role's rights", "submitting"),
        *("following", "stopping", "fetching", *UNTOLD[1:], "image"),
    ]
    assert ("servicequotas", "ListAWSDefaultServiceQuotas") in healthy.cloud.endpoint.calls


def test_all_that_is_asked_is_a_kind_of_reading() -> None:
    for _, operation in READS:
        assert re.match(r"(Batch)?(Get|List|Describe|Head|Simulate)", operation), operation


@pytest.mark.parametrize("name", ACCOUNTS)
def test_an_account_that_lacks_one_thing_is_told_of_that_thing(
    name: str, healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = healthy.filled(ACCOUNTS[name])
    log_in(healthy, monkeypatch, row)
    for service, operation, parameters in row.get("calls", ()):
        getattr(healthy.client(service), operation)(**parameters)
    account = healthy.cloud.account
    account.quotas.update(row.get("quotas", {}))
    for attribute, value in row.get("account", {}).items():
        setattr(account, attribute, set(value) if isinstance(value, list) else value)
    if "plan" in row:
        healthy.cloud.account.training_plans["mine"] = row["plan"]
        row.setdefault("job", {"aws": {"training_plan": TRAINING_PLAN}})
    if "queue" in row:
        healthy.cloud.service.batch.add_queue(QUEUE, **row["queue"])
        row["job"] = {"aws": {"queue": QUEUE, **row.get("job", {}).get("aws", {})}}

    checks = checks_of(healthy.spec(row.get("job", {})))
    if "wrong" in row:
        assert_told(checks, row["wrong"], row["says"])
    else:
        assert names_of_wrong(checks) == []
        assert row["says"] in unchecked(checks)[row["unchecked"]]


def test_credentials_and_the_clock_are_looked_at_first(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name)
        aws.cache_clear()
        assert_told(checks_of(healthy.spec()), "credentials", "no AWS credentials")
    aws.cache_clear()
    log_in(healthy, monkeypatch)
    healthy.cloud.endpoint.fault("expired", "sts", times=9)
    assert_told(checks_of(healthy.spec()), "credentials", "expired")
    healthy.cloud.endpoint.reset()
    monkeypatch.setattr(checkup, "time", SimpleNamespace(time=lambda: time.time() - 600))
    assert_told(checks_of(healthy.spec()), "clock", " slow")


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
    healthy.cloud.account.quotas["ml.p4d.24xlarge"] = 1
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
    cloud.empty()
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
    network = HealthyAccount(cloud)
    image = f"{cloud.stacks.outputs['cloudtrain']['Repository']}:1"
    cloud.registry.images.put(image.partition("/")[2].partition(":")[0], "1", "amd64")
    return {
        "name": "digits",
        "image": image,
        "resources": {"nodes": 2, "instance": {"aws": "ml.m5.xlarge"}},
        "limits": {"max_runtime": "1 h"},
        "aws": {"subnets": [network["subnet"]], "security_groups": [network["group"]]},
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
    everything["aws"]["queue"] = QUEUE
    cloud.service.batch.add_queue(QUEUE)
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
    healthy.cloud.account.quotas["ml.p4d.24xlarge"] = 1
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
    healthy.cloud.account.quotas["ml.p4d.24xlarge"] = 7
    result = call(*CHECK)
    assert result.code == 2
    quota = r"^job.yaml:\d+:\d+: sweep.parallel: quota: .* is 7, 4 trials at once have 8$"
    assert re.search(quota, result.err, re.MULTILINE)
    assert call(*CHECK, "--set", "sweep.parallel=3").code == 0


def test_check_online_without_credentials_is_trouble_with_the_cloud(
    healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("job.yaml").write_text(json.dumps(healthy.spec()))
    healthy.cloud.endpoint.fault("expired", "sts", times=9)
    result = call(*CHECK)
    assert (result.code, "expired" in result.err) == (4, True)
