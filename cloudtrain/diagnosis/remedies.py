"""What to do about failures whose remedy depends on what a cloud said, or which a provider knows
better than a log.
"""

from __future__ import annotations

import re

SAGEMAKER_TRUST = "the role (aws.role) must trust sagemaker.amazonaws.com: look at its trust policy"

KILLED_FROM_OUTSIDE = (
    "the engine saw no process of this container killed for want of memory: somebody or something"
    " sent the signal (docker kill, docker stop, kill -9)"
)

ENGINE_STOPPED = (
    "cloudtrain rerun goes on from the last checkpoint; containers outlive a restart of the engine"
    ' where /etc/docker/daemon.json says "live-restore": true'
)


def sagemaker_quota(message: str) -> str:
    """How to get more of what an account has too little of: a new account's quota of GPU machines
    is 0.
    """
    if re.search(r"is not available in this region", message):
        return (
            "this region does not offer that instance type for training: name another one, or"
            " another region"
        )
    match = re.search(r"'([^']* for [^']*usage)'|(ml\.[a-z0-9-]+\.[a-z0-9]+[^'\".]*usage)", message)
    which = next((text for text in match.groups() if text), "") if match else ""
    quota = f"'{which}'" if which else "the instance type's training job usage"
    return (
        f"ask for more in the console: Service Quotas > Amazon SageMaker > {quota}; or name another"
        " instance type"
    )


def azure_quota(message: str) -> str:
    """How to get more of what a subscription has too little of: a new one's quota of GPU machines
    is 0.
    """
    match = re.search(r"\b([Ss]tandard\w+Family)\b", message) or re.search(
        r"[Ff]amily '?([\w ]+?)'?[ .,]", message
    )
    quota = f" of {match[1]}" if match else ""
    return (
        f"ask for more{quota} in the studio: Quota > Azure Machine Learning > the workspace's"
        " region; or another size"
    )
