"""True if the bucket, the key and the repository of a job are there, and in the job's region."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.planning.reference import ECR, parse_address
from cloudtrain.providers.aws.account_checks import Account

_MISSING = ("404", "NoSuchBucket", "NotFound")


def storage_checks(account: Account) -> Iterator[Check]:
    """The bucket; the key and the repository where the job has one."""
    yield _bucket(account)
    if account.config.kms_key:
        yield _key(account, account.config.kms_key)
    if account.target.image and account.target.image.recipe:
        yield _repository(account, account.target.image_address)


def _bucket(account: Account) -> Check:
    name = account.config.bucket
    region = account.config.region
    asked = Question("bucket", f"is {name} there, and in {region}", ("aws", "bucket"))

    def ask() -> Check:
        try:
            answer = account.cloud.call("s3", "head_bucket", Bucket=name)
        except CloudError as error:
            if error.code in _MISSING:
                fix = (
                    "name yours in aws.bucket; the template of `cloudtrain infra template"
                    " --provider aws` makes one"
                )
                return asked.wrong("there is no such bucket", fix)
            if error.is_denied:
                fix = (
                    "allow s3:ListBucket on it; if it is not yours, name another in aws.bucket"
                    f" ({error.what})"
                )
                return asked.not_allowed("S3 does not say whether it is there", fix)
            raise
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        there = answer.get("BucketRegion") or headers.get("x-amz-bucket-region", region)
        if there != region:
            fix = f"a bucket in {region}, or aws.region: {there}"
            return asked.wrong(
                f"it is in {there}, and a job reads and writes in its own region", fix
            )
        return asked.ok("it is")

    return asked.answered_by(ask)


def _key(account: Account, key: str) -> Check:
    asked = Question("key", f"can {key} encrypt", ("aws", "kms_key"))

    def ask() -> Check:
        try:
            about = account.cloud.call("kms", "describe_key", KeyId=key)["KeyMetadata"]
        except CloudError as error:
            if error.code != "NotFoundException":
                raise
            return asked.wrong(
                "there is no such key in this region", "aws kms list-aliases shows those there are"
            )
        if about["KeyState"] != "Enabled":
            return asked.wrong(
                f"its state is {about['KeyState']}", f"aws kms enable-key --key-id {about['KeyId']}"
            )
        if about.get("KeyUsage", "ENCRYPT_DECRYPT") != "ENCRYPT_DECRYPT":
            return asked.wrong(
                f"it is a key for {about['KeyUsage']}", "a symmetric key for ENCRYPT_DECRYPT"
            )
        return asked.ok("it can")

    return asked.answered_by(ask)


def _repository(account: Account, address: str) -> Check:
    """That of an image which is built and pushed first: cloudtrain makes no repository."""
    place = ECR.fullmatch(address)
    name = parse_address(address).repository
    asked = Question(
        "repository", f"is {name} there for the image to be pushed to", ("aws", "repository")
    )
    if place is None:
        return asked.not_applicable(f"{address} is not in ECR")

    def ask() -> Check:
        try:
            account.cloud.call(
                "ecr", "describe_repositories", registryId=place[1], repositoryNames=[name]
            )
        except CloudError as error:
            if error.code != "RepositoryNotFoundException":
                raise
            fix = (
                f"aws ecr create-repository --repository-name {name} --region"
                f" {account.config.region}"
            )
            return asked.wrong("there is no such repository", fix)
        return asked.ok("it is")

    return asked.answered_by(ask)
