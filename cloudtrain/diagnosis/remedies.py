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
    match = re.search(r"'([^']* for [^']*usage)'|(ml\.[a-z0-9-]+\.[a-z0-9]+[^'\".]*usage)", message)
    name = next((text for text in match.groups() if text), "") if match else ""
    quota = f"'{name}'" if name else "the instance type's training job usage"
    return (
        f"ask for more in the console: Service Quotas > Amazon SageMaker > {quota}; or name another"
        " instance type"
    )


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
