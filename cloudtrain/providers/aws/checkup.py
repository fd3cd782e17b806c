"""Checks of an AWS account for `cloudtrain doctor aws`, in the order of repairs. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.planning.reference import ECR, parse_address
from cloudtrain.providers.aws.account import format_issues
from cloudtrain.providers.aws.config import AwsConfig, connect
from cloudtrain.providers.aws.network import network_checks
from cloudtrain.providers.aws.rights import (
    Account,
    Caller,
    account_check,
    caller_checks,
    inputs_of,
    key_policy_check,
    rights_checks,
    role_check,
)
from cloudtrain.providers.aws.section import AwsSection
from cloudtrain.units import exact_duration

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan

ON_DEMAND = "training job usage"
SPOT = "spot training job usage"
WARM_POOL = "training warm pool usage"
"""Names after "Amazon SageMaker AI endpoints and quotas": `TYPE for USAGE`."""

LONGEST = "Longest run time for a training job"
"""Name of the quota L-33A961FD, in seconds."""

_LISTINGS = ("list_service_quotas", "list_aws_default_service_quotas")
"""Quotas of the account, then the defaults: the first list lacks quotas never raised."""

_MISSING = ("404", "NoSuchBucket", "NotFound")


def account_checks(plan: Plan) -> Iterator[Check]:
    """Yield each check of a job's account as its answer comes.

    Without credentials no further question is possible.
    """
    target = plan.target
    config = target.config_as(AwsConfig)
    try:
        cloud = connect(config.region, config.profile)
    except UsageError as error:
        yield Question("boto3", "is it installed").failed(error)
        return
    malformed = format_issues("role", config.role)
    malformed += format_issues("bucket", config.bucket)
    yield from map(Question.of_setting, malformed)
    if malformed:
        return
    account = Account(
        cloud=cloud,
        config=config,
        target=target,
        spec=plan.spec,
    )
    for result in caller_checks(cloud):
        if isinstance(result, Caller):
            yield from _of_caller(account, result)
        else:
            yield result


def _of_caller(account: Account, caller: Caller) -> Iterator[Check]:
    account_answer = account_check(account, caller)
    yield account_answer
    if account_answer.is_wrong:  # further answers would be about another account
        return
    role = role_check(account)
    yield role
    if not role.is_wrong:
        yield from rights_checks(account, caller)
    yield from storage_checks(account)
    yield from input_checks(account)
    yield from quota_checks(account)
    yield from network_checks(account)


def storage_checks(account: Account) -> Iterator[Check]:
    """Yield the checks of the bucket, and of the key and the repository if the job has them."""
    yield _bucket(account)
    if account.config.kms_key:
        key: dict[str, Any] = {}
        yield _key(account, account.config.kms_key, key)
        if key:
            yield key_policy_check(account, key["Arn"])
    if account.target.image and account.target.image.recipe:
        yield _repository(account, account.target.image_address)


def _bucket(account: Account) -> Check:
    name = account.config.bucket
    region = account.config.region
    question = Question("bucket", f"is {name} there, and in {region}", ("aws", "bucket"))

    def ask() -> Check:
        try:
            answer = account.cloud.call("s3", "head_bucket", Bucket=name)
        except CloudError as error:
            if error.code in _MISSING:
                fix = (
                    "name yours in aws.bucket; the template of `cloudtrain infra template"
                    " --provider aws` makes one"
                )
                return question.wrong("there is no such bucket", fix)
            if error.is_denied:
                fix = (
                    "allow s3:ListBucket on it; if it is not yours, name another in aws.bucket"
                    f" ({error.what})"
                )
                return question.not_checked("S3 does not say whether it is there", fix)
            raise
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        bucket_region = answer.get("BucketRegion") or headers.get("x-amz-bucket-region", region)
        if bucket_region != region:
            fix = f"a bucket in {region}, or aws.region: {bucket_region}"
            return question.wrong(
                f"it is in {bucket_region}, and a job reads and writes in its own region",
                fix,
            )
        return question.found("it is")

    return question.answered_by(ask)


def _key(account: Account, key: str, usable: dict[str, Any]) -> Check:
    """Check the key; fill `usable` with the facts of one that can encrypt."""
    question = Question("key", f"can {key} encrypt", ("aws", "kms_key"))

    def ask() -> Check:
        try:
            metadata = account.cloud.call("kms", "describe_key", KeyId=key)["KeyMetadata"]
        except CloudError as error:
            if error.code != "NotFoundException":
                raise
            return question.wrong(
                "there is no such key in this region",
                "aws kms list-aliases shows those there are",
            )
        if metadata["KeyState"] != "Enabled":
            return question.wrong(
                f"its state is {metadata['KeyState']}",
                f"aws kms enable-key --key-id {metadata['KeyId']}",
            )
        if metadata.get("KeyUsage", "ENCRYPT_DECRYPT") != "ENCRYPT_DECRYPT":
            return question.wrong(
                f"it is a key for {metadata['KeyUsage']}",
                "a symmetric key for ENCRYPT_DECRYPT",
            )
        usable.update(metadata)
        return question.found("it can")

    return question.answered_by(ask)


def input_checks(account: Account) -> Iterator[Check]:
    """Yield a check that each input of the job exists."""
    for name, (bucket, prefix) in inputs_of(account).items():
        uri = f"s3://{bucket}/{prefix}"
        question = Question("input", f"is there anything at {uri}", ("inputs", name))
        yield question.answered_by(partial(_input, account, question, bucket, prefix))


def _input(account: Account, question: Question, bucket: str, prefix: str) -> Check:
    fix = (
        f"aws s3 ls s3://{bucket}/ shows what there is; inputs.{question.setting[1]} names another"
    )
    try:
        listed = account.cloud.call(
            "s3", "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1
        )
    except CloudError as error:
        if error.code not in ("NoSuchBucket", "NotFound"):
            raise
        return question.wrong(f"there is no bucket {bucket}", fix)

    if not listed.get("KeyCount"):
        return question.wrong("there is nothing", fix)
    return question.found("there is")


def _repository(account: Account, address: str) -> Check:
    """Check the repository of an image to build and push: cloudtrain creates none."""
    place = ECR.fullmatch(address)
    name = parse_address(address).repository
    question = Question(
        "repository",
        f"is {name} there for the image to be pushed to",
        ("aws", "repository"),
    )
    if place is None:
        return question.not_checked(f"{address} is not in ECR")

    def ask() -> Check:
        try:
            account.cloud.call(
                "ecr",
                "describe_repositories",
                registryId=place[1],
                repositoryNames=[name],
            )
        except CloudError as error:
            if error.code != "RepositoryNotFoundException":
                raise
            fix = (
                f"aws ecr create-repository --repository-name {name} --region"
                f" {account.config.region}"
            )
            return question.wrong("there is no such repository", fix)
        return question.found("it is")

    return question.answered_by(ask)


def quota_checks(account: Account) -> Iterator[Check]:
    """Yield the check of the machines' quota, and of the warm pool's if the job has one."""
    machines_at = account.spec.machines_at
    if account.spec.resources.spot:
        yield _quota_check(account, "spot quota", SPOT, machines_at)
    else:
        yield _quota_check(account, "quota", ON_DEMAND, machines_at)
    yield _longest_run(account)
    if account.spec.section(AwsSection).keep_alive:
        yield _quota_check(account, "warm pool", WARM_POOL, ("aws", "keep_alive"))


def _quota_check(account: Account, name: str, usage: str, path: tuple[str, ...]) -> Check:
    types = account.target.instances
    verb = "be kept" if usage == WARM_POOL else "run"
    question = Question(
        name,
        f"may {account.spec.machines} x {' or '.join(types)} {verb} at once",
        path,
    )

    def ask() -> Check:
        quotas = _quotas(account, {f"{kind} for {usage}" for kind in types})
        for kind in types:
            quota = quotas.get(f"{kind} for {usage}")
            if quota is not None and quota["Value"] >= account.spec.machines:
                return question.found(
                    f"the quota '{quota['QuotaName']}' ({quota['QuotaCode']}) is"
                    f" {quota['Value']:.0f}"
                )
        if not quotas:
            return question.not_checked(
                f"AWS lists no quota '{types[0]} for {usage}' in {account.config.region}"
            )
        return _too_small(account, question, next(iter(quotas.values())))

    return question.answered_by(ask)


def _longest_run(account: Account) -> Check:
    estimate = account.target.cost_estimate
    seconds = estimate.max_seconds if estimate else 0
    question = Question(
        "longest run", f"may a job run for {exact_duration(seconds)}", ("limits", "max_runtime")
    )

    def ask() -> Check:
        quota = _quotas(account, {LONGEST}).get(LONGEST)
        if quota is None:
            return question.not_checked(f"AWS lists no quota '{LONGEST}'")
        answer = f"the quota '{LONGEST}' is {exact_duration(int(quota['Value']))}"
        if quota["Value"] < seconds:
            fix = f"{_increase(account, quota, seconds)}; or a shorter limits.max_runtime"
            return question.wrong(answer, fix)
        return question.found(answer)

    return question.answered_by(ask)


def _increase(account: Account, quota: Mapping[str, Any], value: int) -> str:
    return (
        "ask for more: aws service-quotas request-service-quota-increase --service-code sagemaker"
        f" --quota-code {quota['QuotaCode']} --desired-value {value} --region"
        f" {account.config.region}"
    )


def _too_small(account: Account, question: Question, quota: Mapping[str, Any]) -> Check:
    code = quota["QuotaCode"]
    message = f"the quota '{quota['QuotaName']}' ({code}) is {quota['Value']:.0f}, {account.demand}"
    fix = f"{_increase(account, quota, account.spec.machines)}; or name another instance type"
    return question.wrong(message, fix)


def _quotas(account: Account, names: set[str]) -> dict[str, Mapping[str, Any]]:
    """Return quotas by name, the account's before AWS's defaults; read pages while needed."""
    quotas: dict[str, Mapping[str, Any]] = {}
    for operation in _LISTINGS:
        for page in account.cloud.pages("service-quotas", operation, ServiceCode="sagemaker"):
            for quota in page["Quotas"]:
                if quota["QuotaName"] in names:
                    quotas.setdefault(quota["QuotaName"], quota)
            if len(quotas) == len(names):
                return quotas
    return quotas
