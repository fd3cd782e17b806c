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


def sagemaker_quota(said: str) -> str:
    """How to get more of what an account has too little of: a new account's quota of GPU machines
    is 0.
    """
    if re.search(r"is not available in this region", said):
        return (
            "this region does not offer that instance type for training: name another one, or"
            " another region"
        )
    found = re.search(r"'([^']* for [^']*usage)'|(ml\.[a-z0-9-]+\.[a-z0-9]+[^'\".]*usage)", said)
    which = next((text for text in found.groups() if text), "") if found else ""
    quota = f"'{which}'" if which else "the instance type's training job usage"
    return (
        f"ask for more in the console: Service Quotas > Amazon SageMaker > {quota}; or name another"
        " instance type"
    )


def azure_quota(said: str) -> str:
    """How to get more of what a subscription has too little of: a new one's quota of GPU machines
    is 0.
    """
    found = re.search(r"\b([Ss]tandard\w+Family)\b", said) or re.search(
        r"[Ff]amily '?([\w ]+?)'?[ .,]", said
    )
    which = f" of {found[1]}" if found else ""
    return (
        f"ask for more{which} in the studio: Quota > Azure Machine Learning > the workspace's"
        " region; or another size"
    )
