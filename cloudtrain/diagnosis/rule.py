"""Rule of a known failure: its signs in a log, cause, remedy, and advice about a restart."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

Restart = Literal["retry", "never", "after a change"]
"""Advice about a restart.

`retry`: the same job may succeed; `never`: the work is done, or another job is needed; `after a
change`: the same job would fail again.
"""

SAGEMAKER_TRUST = "the role (aws.role) must trust sagemaker.amazonaws.com: look at its trust policy"

KILLED_FROM_OUTSIDE = (
    "the engine saw no process of this container killed for want of memory: somebody or something"
    " sent the signal (docker kill, docker stop, kill -9)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Known failure. The first of `RULES` that matches a line explains it."""

    name: str
    """Stable name in lower case with hyphens: `gpu-out-of-memory`."""
    patterns: tuple[str, ...]
    """Regular expressions; at least one must match a line. Fast on hostile lines, too."""
    places: tuple[str, ...] = ()
    """Regular expressions of `Raised.described`: an exception and its place.

    They identify a failure by its package or function, if no pattern matches.
    """
    unless: str = ""
    """Regular expression that must not match the same line."""
    cause: str
    """Cause: one sentence without its full stop."""
    remedy: str | Callable[[str], str]
    """Remedy: one sentence, or a function of the matching line."""
    restart: Restart = "after a change"
    source: str
    """Address of documentation or a discussion."""
    is_consequence: bool = False
    """True if another process caused it: a root cause only if nothing else is known."""
    is_symptom: bool = False
    """True if it shows how a process ended and not why, such as by SIGKILL."""

    def matches(self, text: str) -> bool:
        """Return True if a line, or a message of several lines, shows this failure."""
        if not _joined(self.patterns).search(text):
            return False
        return not (self.unless and _compiled(self.unless).search(text))

    def knows_place(self, described: str) -> bool:
        """Return True if an exception is known by the place where it was raised."""
        return any(_compiled(place).search(described) for place in self.places)

    def remedy_for(self, text: str) -> str:
        """Return the remedy for the matching line."""
        if isinstance(self.remedy, str):
            return self.remedy

        return self.remedy(text)


@cache
def _joined(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def full_disk(message: str) -> str:
    """Return what to do about a full disk, with the file or the folder that did not fit."""
    remedy = "free some disk space, write elsewhere, or ask the cloud for more: resources.disk"
    place = re.search(
        r"No space left on device: '([^']+)'|([^\s:']*/[^\s:']*): (?:No space left|Disk quota)",
        message,
    )
    if place is None:
        return remedy

    return f"{place[1] or place[2]} did not fit on its disk: {remedy}"


def sagemaker_quota(message: str) -> str:
    """Return how to raise the quota of an AWS account, which is 0 for GPUs at first."""
    if re.search(r"is not available in this region", message):
        return (
            "this region does not offer that instance type for training: name another one, or"
            " another region"
        )
    limit = re.search(r"service limit '([^']+)'", message)
    usage = re.search(r"(ml\.[a-z0-9-]+\.[a-z0-9]+)([^'\".]*usage)?", message)
    name = ""
    if limit:
        name = limit[1]

    if not limit and usage:  # older messages: "for training-job/ml.p2.xlarge is 0"
        name = usage[1] + (usage[2] or " for training job usage")
    quota = "the instance type's training job usage"
    if name:
        quota = f"'{name}'"

    remedy = f"ask for more in the console: Service Quotas > Amazon SageMaker > {quota}"
    if usage or not name:
        return f"{remedy}; or name another instance type"
    return remedy


def azure_quota(message: str) -> str:
    """Return how to raise the quota of an Azure subscription, which is 0 for GPUs at first."""
    match = re.search(r"\b([Ss]tandard\w+Family)\b", message) or re.search(
        r"[Ff]amily '?([\w ]+?)'?[ .,]", message
    )
    quota = ""
    if match:
        quota = f" of {match[1]}"

    return (
        f"ask for more{quota} in the studio: Quota > Azure Machine Learning > the workspace's"
        " region; or another size"
    )
