"""What can be chosen about an Azure deployment: the values of `--set`, and the template's parameters that they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from cloudtrain.infrastructure.parameters import Parameter

ME = "me"
"""As a submitter: whose credentials these are."""

_ID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_SUBMITTER = rf"({ME}|{_ID}(:(user|group|app))?)"
_CLUSTER = r"[a-zA-Z][a-zA-Z0-9-]{1,31}:\w+:\d+(:spot)?"

PARAMETERS = (
    Parameter(
        name="clusters",
        meaning="clusters, NAME:SIZE:NODES, and :spot after it for low priority; separated by commas; none for none",
        default="cpu:Standard_DS3_v2:2,cpu-spot:Standard_DS3_v2:2:spot",
        pattern=rf"none|{_CLUSTER}(,{_CLUSTER})*",
        example="gpu:Standard_NC24ads_A100_v4:4",
    ),
    Parameter(
        name="submitters",
        meaning="who may submit: me, or object ids of Entra ID, ID:user, ID:group, ID:app; separated by commas",
        default=ME,
        pattern=rf"none|{_SUBMITTER}(,{_SUBMITTER})*",
        example="me,aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee:group",
    ),
    Parameter(
        name="github_subject",
        meaning="the subject of the GitHub workflows that may submit; none for none",
        default="none",
        pattern=r"none|repo:[\w.@-]+/[\w.@-]+:[\w./@:=-]+",
        example="repo:me/mine:ref:refs/heads/main",
    ),
    Parameter(
        name="registry", meaning="tier of the registry", default="basic", choices=("basic", "standard", "premium")
    ),
    Parameter(
        name="network",
        meaning="new: everything is reached from a private network alone; none: by public names, with roles",
        default="none",
        choices=("none", "new"),
    ),
    Parameter(
        name="network_range",
        meaning="addresses of a new network",
        default="10.20.0.0/16",
        pattern=r"(\d{1,3}\.){3}\d{1,3}/(8|9|1[0-6])",
        example="10.20.0.0/16",
    ),
    Parameter(
        name="budget",
        meaning="monthly budget of the resource group in the currency of the bill; 0: none",
        default="50",
        pattern=r"\d{1,9}",
        example="50",
    ),
    Parameter(
        name="alarm_email",
        meaning="who gets its mails besides the group's owners; separated by commas; none for none",
        default="none",
        pattern=r"none|[^@ ,]+@[^@ ,]+(,[^@ ,]+@[^@ ,]+)*",
        example="me@example.org",
    ),
)

_TYPES = {"user": "User", "group": "Group", "app": "ServicePrincipal"}


def resolved(values: Mapping[str, str], me: tuple[str, str]) -> dict[str, str]:
    """The values with `me` replaced. `me`: an object id, and user or app."""
    submitters = [":".join(me) if each == ME else each for each in values["submitters"].split(",")]
    return {**values, "submitters": ",".join(dict.fromkeys(submitters))}


def template_parameters(values: Mapping[str, str]) -> dict[str, Any]:
    """The template's parameters for these values; those that depend on the account are not among them."""
    return {
        "clusters": [_cluster(each) for each in _items(values["clusters"])],
        "submitters": [_submitter(each) for each in _items(values["submitters"])],
        "githubSubject": "".join(_items(values["github_subject"])),
        "registrySku": values["registry"].capitalize(),
        "privateNetwork": values["network"] == "new",
        "addressPrefix": values["network_range"],
        "budget": int(values["budget"]),
        "budgetEmails": _items(values["alarm_email"]),
    }


def chosen_values(parameters: Mapping[str, Any]) -> dict[str, str]:
    """What was chosen for a deployment, by the parameters that Azure keeps with it; absent those it lacks."""
    readers: dict[str, tuple[str, Callable[[Any], str]]] = {
        "clusters": ("clusters", lambda value: _joined(map(_cluster_text, value))),
        "submitters": ("submitters", lambda value: _joined(map(_submitter_text, value))),
        "github_subject": ("githubSubject", lambda value: value or "none"),
        "registry": ("registrySku", str.lower),
        "network": ("privateNetwork", lambda value: "new" if value else "none"),
        "network_range": ("addressPrefix", str),
        "budget": ("budget", str),
        "alarm_email": ("budgetEmails", _joined),
    }
    found = {}
    for name, (there, read) in readers.items():
        if there in parameters:
            found[name] = read(parameters[there])
    return found


def first_of_month() -> str:
    """When a new budget begins: the first day of this month, by UTC."""
    return time.strftime("%Y-%m-01", time.gmtime())


def _items(text: str) -> list[str]:
    return [] if text == "none" else text.split(",")


def _joined(items: Any) -> str:
    return ",".join(items) or "none"


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
