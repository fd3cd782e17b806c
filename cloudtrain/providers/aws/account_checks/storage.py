"""Checks of a job's bucket, key and repository: existence and region."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.planning.reference import ECR, parse_address
from cloudtrain.providers.aws.account_checks import Account

_MISSING = ("404", "NoSuchBucket", "NotFound")


def storage_checks(account: Account) -> Iterator[Check]:
    """Yield the checks of the bucket, and of the key and the repository if the job has them."""
    yield _bucket(account)
    if account.config.kms_key:
        yield _key(account, account.config.kms_key)
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
                return question.not_allowed("S3 does not say whether it is there", fix)
            raise
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        bucket_region = answer.get("BucketRegion") or headers.get("x-amz-bucket-region", region)
        if bucket_region != region:
            fix = f"a bucket in {region}, or aws.region: {bucket_region}"
            return question.wrong(
                f"it is in {bucket_region}, and a job reads and writes in its own region", fix
            )
        return question.ok("it is")

    return question.answered_by(ask)


def _key(account: Account, key: str) -> Check:
    question = Question("key", f"can {key} encrypt", ("aws", "kms_key"))

    def ask() -> Check:
        try:
            metadata = account.cloud.call("kms", "describe_key", KeyId=key)["KeyMetadata"]
        except CloudError as error:
            if error.code != "NotFoundException":
                raise
            return question.wrong(
                "there is no such key in this region", "aws kms list-aliases shows those there are"
            )
        if metadata["KeyState"] != "Enabled":
            return question.wrong(
                f"its state is {metadata['KeyState']}",
                f"aws kms enable-key --key-id {metadata['KeyId']}",
            )
        if metadata.get("KeyUsage", "ENCRYPT_DECRYPT") != "ENCRYPT_DECRYPT":
            return question.wrong(
                f"it is a key for {metadata['KeyUsage']}", "a symmetric key for ENCRYPT_DECRYPT"
            )
        return question.ok("it can")

    return question.answered_by(ask)


def _repository(account: Account, address: str) -> Check:
    """Check the repository of an image to build and push: cloudtrain creates none."""
    place = ECR.fullmatch(address)
    name = parse_address(address).repository
    question = Question(
        "repository", f"is {name} there for the image to be pushed to", ("aws", "repository")
    )
    if place is None:
        return question.not_applicable(f"{address} is not in ECR")

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
            return question.wrong("there is no such repository", fix)
        return question.ok("it is")

    return question.answered_by(ask)
