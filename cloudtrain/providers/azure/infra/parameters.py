"""What can be chosen about an Azure deployment: the values of `--set`, and the template's
parameters that they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from cloudtrain.infrastructure.idle_costs import Priced, usd_per_month
from cloudtrain.infrastructure.parameters import (
    EMAIL,
    NONE,
    Parameter,
    from_template,
    github_subject,
    network_range,
    to_template,
)

ME = "me"
"""As a submitter: whose credentials these are."""

_ID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_SUBMITTER = rf"({ME}|{_ID}(:(user|group|app))?)"
_CLUSTER = r"[a-zA-Z][a-zA-Z0-9-]{1,31}:\w+:\d+(:spot)?"
_TYPES = {"user": "User", "group": "Group", "app": "ServicePrincipal"}
_ROLES = {"custom": "custom", "built-in": "builtIn"}
_TIERS = ("basic", "standard", "premium")
NETWORK = (
    Priced("Microsoft.Network/natGateways"),
    Priced("Microsoft.Network/publicIPAddresses"),
    Priced("Microsoft.Network/privateEndpoints", how_many=6),
    Priced("Microsoft.Network/privateDnsZones", how_many=6),
)
"""What of a private network is billed by the month, beside the registry's tier."""


def _tier_usd_per_month(tier: str) -> float:
    return usd_per_month(
        "azure", Priced("Microsoft.ContainerRegistry/registries", tier.capitalize())
    )


def _each(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Reads each part of a text with commas; none of an empty one."""
    return lambda text: [read(part) for part in text.split(",")] if text else []


def _joined(write: Callable[[Any], str]) -> Callable[[Any], str]:
    """The inverse."""
    return lambda items: ",".join(map(write, items))


def _cluster(text: str) -> dict[str, Any]:
    name, size, nodes, *spot = text.split(":")
    return {
        "name": name,
        "size": size,
        "maxNodes": int(nodes),
        "priority": "LowPriority" if spot else "Dedicated",
    }


def _cluster_text(cluster: Mapping[str, Any]) -> str:
    spot = ":spot" if cluster["priority"] == "LowPriority" else ""
    return f"{cluster['name']}:{cluster['size']}:{cluster['maxNodes']}{spot}"


def _submitter(text: str) -> dict[str, str]:
    identity, _, kind = text.partition(":")
    return {"id": identity.lower(), "type": _TYPES[kind or "user"]}


def _submitter_text(submitter: Mapping[str, str]) -> str:
    kinds = {type_: kind for kind, type_ in _TYPES.items()}
    return f"{submitter['id']}:{kinds[submitter['type']]}"


PARAMETERS = (
    Parameter(
        name="clusters",
        meaning=(
            "clusters, NAME:SIZE:NODES, and :spot after it for low priority; separated by commas;"
            " none for none"
        ),
        default="cpu:Standard_DS3_v2:2,cpu-spot:Standard_DS3_v2:2:spot",
        pattern=rf"none|{_CLUSTER}(,{_CLUSTER})*",
        example="gpu:Standard_NC24ads_A100_v4:4",
        template="clusters",
        empty=NONE,
        write=_each(_cluster),
        read=_joined(_cluster_text),
    ),
    Parameter(
        name="submitters",
        meaning=(
            "who may submit: me, or object ids of Entra ID, ID:user, ID:group, ID:app; separated by"
            " commas"
        ),
        default=ME,
        pattern=rf"none|{_SUBMITTER}(,{_SUBMITTER})*",
        example="me,aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee:group",
        template="submitters",
        empty=NONE,
        write=_each(_submitter),
        read=_joined(_submitter_text),
    ),
    Parameter(
        name="submitter_role",
        meaning=(
            "custom: a role with exactly what cloudtrain uses; built-in: AzureML Data Scientist"
        ),
        default="custom",
        choices=tuple(_ROLES),
        template="submitterRole",
        write=lambda role: _ROLES[role],
        read=lambda there: next(role for role in _ROLES if _ROLES[role] == there),
    ),
    github_subject("githubSubject"),
    Parameter(
        name="registry",
        meaning="tier of the registry; a new network takes premium in any case",
        default="basic",
        choices=_TIERS,
        idle_usd_per_month={tier: _tier_usd_per_month(tier) for tier in _TIERS},
        template="registrySku",
        write=str.capitalize,
        read=str.lower,
    ),
    Parameter(
        name="network",
        meaning=(
            "new: everything is reached from a private network alone; none: by public names, with"
            " roles"
        ),
        default=NONE,
        choices=(NONE, "new"),
        idle_usd_per_month={"new": usd_per_month("azure", *NETWORK)},
        template="privateNetwork",
        write=lambda value: value == "new",
        read=lambda is_private: "new" if is_private else NONE,
    ),
    network_range("addressPrefix", "10.20.0.0/16", "8|9|1[0-6]"),
    Parameter(
        name="budget",
        meaning="monthly budget of the resource group in the currency of the bill; 0: none",
        default="50",
        pattern=r"\d{1,9}",
        example="50",
        template="budget",
        write=int,
    ),
    Parameter(
        name="alarm_email",
        meaning="who gets its mails besides the group's owners; separated by commas; none for none",
        default=NONE,
        pattern=rf"none|{EMAIL}(,{EMAIL})*",
        example="me@example.org",
        template="budgetEmails",
        empty=NONE,
        write=_each(str),
        read=_joined(str),
    ),
)
"""What `--set` takes for azure."""


def resolved(values: Mapping[str, str], me: tuple[str, str]) -> dict[str, str]:
    """The values with `me` replaced. `me`: an object id, and user or app."""
    submitters = [":".join(me) if each == ME else each for each in values["submitters"].split(",")]
    return {**values, "submitters": ",".join(dict.fromkeys(submitters))}


def template_parameters(values: Mapping[str, str]) -> dict[str, Any]:
    """The template's parameters for these values; those that depend on the account are not among
    them.
    """
    return to_template(PARAMETERS, values)


def chosen_values(parameters: Mapping[str, Any]) -> dict[str, str]:
    """What was chosen for a deployment, by the parameters that Azure keeps with it; absent those it
    lacks.
    """
    return from_template(PARAMETERS, parameters)


def first_of_month() -> str:
    """When a new budget begins: the first day of this month, by UTC."""
    return time.strftime("%Y-%m-01", time.gmtime())
