"""Remedies that depend on a cloud's message, or on a provider."""

from __future__ import annotations

import re

SAGEMAKER_TRUST = "the role (aws.role) must trust sagemaker.amazonaws.com: look at its trust policy"

KILLED_FROM_OUTSIDE = (
    "the engine saw no process of this container killed for want of memory: somebody or something"
    " sent the signal (docker kill, docker stop, kill -9)"
)


def sagemaker_quota(message: str) -> str:
    """Return how to raise the quota of an AWS account, which is 0 for GPUs at first."""
    if re.search(r"is not available in this region", message):
        return (
            "this region does not offer that instance type for training: name another one, or"
            " another region"
        )
    limit = re.search(r"service limit '([^']+)'", message)
    usage = re.search(r"(ml\.[a-z0-9-]+\.[a-z0-9]+)([^'\".]*usage)?", message)
    name = limit[1] if limit else ""
    if not limit and usage:  # older messages: "for training-job/ml.p2.xlarge is 0"
        name = usage[1] + (usage[2] or " for training job usage")
    quota = f"'{name}'" if name else "the instance type's training job usage"
    remedy = f"ask for more in the console: Service Quotas > Amazon SageMaker > {quota}"
    if usage or not name:
        return f"{remedy}; or name another instance type"
    return remedy


def azure_quota(message: str) -> str:
    """Return how to raise the quota of an Azure subscription, which is 0 for GPUs at first."""
    match = re.search(r"\b([Ss]tandard\w+Family)\b", message) or re.search(
        r"[Ff]amily '?([\w ]+?)'?[ .,]", message
    )
    quota = f" of {match[1]}" if match else ""
    return (
        f"ask for more{quota} in the studio: Quota > Azure Machine Learning > the workspace's"
        " region; or another size"
    )
