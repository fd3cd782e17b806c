"""What a deployment is, and what would be done to it: values that are shown before anything
happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Action = Literal["create", "update", "replace", "delete", "keep"]
"""`replace`: deleted and created anew, under another name; `keep`: left as it is, where one may
expect otherwise.
"""

SettingValue = str | tuple[str, ...]
"""A setting as it is written to cloudtrain.toml: a text, or a list of texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleCost:
    """What a resource costs while no job runs."""

    usd_per_month: float | None
    """US dollars in 730 hours; None where it depends on how much is stored."""
    note: str
    """How it comes about, with the date of the price: `1 USD per key and month (2026-11)`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One resource, and what would be done to it."""

    action: Action
    resource: str
    """Its name in the template: `Bucket`."""
    kind: str
    """What it is, in plain words: `S3 bucket`."""
    identity: str = ""
    """What the cloud calls it; empty while it does not exist."""
    detail: str = ""
    """What changes of it, or why it is kept."""
    holds_data: bool = False
    """Whether it holds what users have stored: such a resource is deleted only on request."""
    idle_cost: IdleCost | None = None
    """None: it costs nothing while no job runs."""

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        idle = self.idle_cost
        return {
            "action": self.action,
            "resource": self.resource,
            "kind": self.kind,
            "identity": self.identity,
            "detail": self.detail,
            "holds_data": self.holds_data,
            "idle_usd_per_month": 0.0 if idle is None else idle.usd_per_month,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePlan:
    """What `infra up` or `infra down` would do, in the order in which people are told."""

    provider: str
    name: str
    """Of the deployment: of a stack, of a resource group."""
    where: str
    """The account and the region, as people say it: `account 123456789012, us-east-1`."""
    changes: tuple[Change, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)
    """All parameters with the values in force; none for `infra down`."""
    notes: tuple[str, ...] = ()
    """What else one should know before saying yes."""
    reference: Mapping[str, Any] = field(default_factory=dict)
    """What the provider needs to carry out this very plan, such as the ARN of a change set."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return all(change.action == "keep" for change in self.changes)

    @property
    def idle_usd_per_month(self) -> float:
        """What all resources cost in a month without jobs, as far as it does not depend on what is
        stored.
        """
        left = [change for change in self.changes if change.action != "delete"]
        return sum(each.idle_cost.usd_per_month or 0.0 for each in left if each.idle_cost)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "provider": self.provider,
            "name": self.name,
            "where": self.where,
            "changes": [change.to_json() for change in self.changes],
            "parameters": dict(self.parameters),
            "notes": list(self.notes),
            "idle_usd_per_month": self.idle_usd_per_month,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """A resource that exists, or is on its way."""

    name: str
    """Its name in the template."""
    kind: str
    """In plain words."""
    identity: str
    """What the cloud calls it; empty while it does not exist."""
    state: str
    """In the cloud's own word."""


DeploymentState = Literal["absent", "ready", "changing", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """What there is of a deployment."""

    provider: str
    name: str
    where: str
    state: DeploymentState
    reason: str = ""
    """The cloud's own word for the state, and why, if it failed."""
    resources: tuple[Resource, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    """What is not a setting, but of use to people: the policy to attach, the role for CI."""
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    """For cloudtrain.toml, by dotted key: `aws.bucket`."""

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "provider": self.provider,
            "name": self.name,
            "where": self.where,
            "state": self.state,
            "reason": self.reason,
            "resources": [
                {
                    "name": each.name,
                    "kind": each.kind,
                    "identity": each.identity,
                    "state": each.state,
                }
                for each in self.resources
            ],
            "parameters": dict(self.parameters),
            "outputs": dict(self.outputs),
            "settings": {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in self.settings.items()
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceEvent:
    """Something has happened to a resource while a plan is carried out."""

    resource: str
    kind: str
    state: Literal[
        "creating", "created", "changing", "changed", "deleting", "deleted", "kept", "failed"
    ]
    identity: str = ""
    reason: str = ""
    """Why it failed or is kept; else what else there is to say."""
