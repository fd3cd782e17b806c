"""The right that a call needs, and AWS's refusal without it.

After the Service Authorization Reference (actions of Amazon S3, SageMaker, CloudWatch Logs and
ECR): most calls need the action with their name, S3's do not.
"""

from __future__ import annotations

from collections.abc import Container

from tests.fakes.messages import Call, ServiceError

USER = "arn:aws:iam::123456789012:user/tester"
_S3 = {
    "HeadObject": "s3:GetObject",
    "GetObject": "s3:GetObject",
    "HeadBucket": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "PutObject": "s3:PutObject",
    **dict.fromkeys(
        ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"), "s3:PutObject"
    ),
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
}
_DENIALS = {
    "ec2": ("UnauthorizedOperation", 403),
    "iam": ("AccessDenied", 403),
    "sts": ("AccessDenied", 403),
}
"""Codes of services that speak older protocols ("Error codes" of EC2's reference, "Common errors"
of IAM's).
"""
_FREE = (("sts", "GetCallerIdentity"),)
"""Actions open to everybody, whatever a policy denies (API reference of STS, GetCallerIdentity)."""


def needed(call: Call) -> str:
    """The IAM action of a call; empty for one that needs none."""
    if call in _FREE:
        return ""
    return (
        _S3.get(call.operation, f"s3:{call.operation}")
        if call.service == "s3"
        else f"{call.service}:{call.operation}"
    )


def denied(call: Call) -> ServiceError | None:
    """The refusal of one who lacks the right. S3 may keep to itself which one it is: two words are
    all it promises.
    """
    action = needed(call)
    if not action:
        return None
    if call.service == "s3":
        return ServiceError("AccessDenied", "Access Denied", 403)
    message = (
        f"User: {USER} is not authorized to perform: {action} because no identity-based policy"
        " allows it"
    )
    code, status = _DENIALS.get(call.service, ("AccessDeniedException", 400))
    return ServiceError(code, message, status)


def refusal(call: Call, denied_actions: Container[str]) -> ServiceError | None:
    """The refusal of a call by one who lacks these rights: actions, or all of a service as
    `logs:*`.
    """
    action = needed(call)
    return (
        denied(call)
        if action in denied_actions or f"{action.partition(':')[0]}:*" in denied_actions
        else None
    )
