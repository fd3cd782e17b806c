"""Deletes what holds data: a bucket with every version in it, a repository with its images, a key.
Only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cloudtrain.errors import CloudError

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient

KEY_DAYS = 30
"""How long a deleted key can still be brought back: the longest that KMS offers."""
_MISSING = ("NoSuchBucket", "404", "RepositoryNotFoundException", "NotFoundException")


def exists(cloud: AwsClient, resource_type: str, identity: str) -> bool:
    """Whether a bucket, repository or key that a stack has left is still there. CloudError if AWS
    does not say.
    """
    try:
        if resource_type == "AWS::KMS::Key":
            state = cloud.call("kms", "describe_key", KeyId=identity)["KeyMetadata"]["KeyState"]
            return bool(state != "PendingDeletion")
        service, operation, parameter = _LOOKS[resource_type]
        cloud.call(service, operation, **{parameter: [identity] if service == "ecr" else identity})
    except CloudError as error:
        if error.code in _MISSING:
            return False
        raise
    return True


def delete_for_good(cloud: AwsClient, resource_type: str, identity: str) -> None:
    """Delete one of them, with all that is in it. What is gone already is passed over."""
    try:
        _DELETIONS[resource_type](cloud, identity)
    except CloudError as error:
        if error.code not in _MISSING and not (
            error.code == "KMSInvalidStateException" and "pending" in error.what
        ):
            raise


def _delete_bucket(cloud: AwsClient, bucket: str) -> None:
    for upload in _uploads(cloud, bucket):
        cloud.call("s3", "abort_multipart_upload", Bucket=bucket, **upload)
    for page in cloud.pages("s3", "list_object_versions", Bucket=bucket):
        found = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        if not found:
            continue
        objects = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in found]
        answer = cloud.call(
            "s3", "delete_objects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True}
        )
        for error in answer.get("Errors", []):
            what = (
                f"s3://{bucket}/{error['Key']} cannot be deleted: {error['Code']}:"
                f" {error['Message']}"
            )
            raise CloudError(what, code=error["Code"])
    cloud.call("s3", "delete_bucket", Bucket=bucket)


def _uploads(cloud: AwsClient, bucket: str) -> list[dict[str, str]]:
    pages = cloud.pages("s3", "list_multipart_uploads", Bucket=bucket)
    found = [each for page in pages for each in page.get("Uploads", [])]
    return [{"Key": each["Key"], "UploadId": each["UploadId"]} for each in found]


def _delete_repository(cloud: AwsClient, repository: str) -> None:
    cloud.call("ecr", "delete_repository", repositoryName=repository, force=True)


def _delete_key(cloud: AwsClient, key: str) -> None:
    cloud.call("kms", "schedule_key_deletion", KeyId=key, PendingWindowInDays=KEY_DAYS)


_LOOKS = {
    "AWS::S3::Bucket": ("s3", "head_bucket", "Bucket"),
    "AWS::ECR::Repository": ("ecr", "describe_repositories", "repositoryNames"),
}
_DELETIONS: Mapping[str, Callable[[AwsClient, str], None]] = {
    "AWS::S3::Bucket": _delete_bucket,
    "AWS::ECR::Repository": _delete_repository,
    "AWS::KMS::Key": _delete_key,
}
