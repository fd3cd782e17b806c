"""The ARM template of infra/azure, evaluated as Resource Manager does."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.bundle import bundled
from cloudtrain.providers.azure.rights import rights_of
from tests.fakes.azure.account import WORKSPACES, Cluster
from tests.fakes.azure.rights import BUILT_IN, Access, Assignment, role_of

if TYPE_CHECKING:
    from tests.fakes.azure.cloud import AzureCloud


LOOKING = rights_of("looking")["anything"]
ON_WORKSPACE = {
    use: rights_of("people")[use] for use in rights_of("people").keys() - {"blobs", "keys"}
}
SUBMITTER = sorted({*LOOKING, *chain.from_iterable(ON_WORKSPACE.values())})
"""Actions of people and CI. The datastores of the template have no keys."""


# Evaluate an ARM template: its resources and outputs, as Azure Resource Manager reads them.
# After "Template syntax and expressions", "ARM template functions" and "Resource iteration" in
# Microsoft's documentation. Functions that our template does not use are errors, so that the
# template cannot come to need one that nothing checks. Networks and budgets are left out: they
# grant nothing.

NOT_EVALUATED = ("Microsoft.Network/", "Microsoft.Consumption/")

_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|-?\d+|\w+|[()\[\].,])")


class Resource(NamedTuple):
    """A resource that a deployment creates."""

    id: str
    kind: str
    body: Mapping[str, Any]
    """Location, identity and properties."""


class Template:
    """A template with values of parameters, in one resource group."""

    def __init__(
        self,
        document: Mapping[str, Any],
        values: Mapping[str, Any],
        group: Mapping[str, str],
        reference: Callable[..., Any],
    ) -> None:
        """`group`: id, name, location, subscription, tenant. `reference`: see its function."""
        self._document = document
        self._values = values
        above = f"/subscriptions/{group['subscription']}"
        self._functions: Mapping[str, Callable[..., Any]] = {
            **FUNCTIONS,
            "parameters": self._parameter,
            "variables": lambda name: self._value(document["variables"][name]),
            "resourceGroup": lambda: group,
            "subscription": lambda: {
                "subscriptionId": group["subscription"],
                "tenantId": group["tenant"],
            },
            "resourceId": lambda *parts: resource_id(group["id"], *parts),
            "subscriptionResourceId": lambda *parts: resource_id(above, *parts),
            "reference": reference,
            "copyIndex": lambda: self._index,
        }
        self._group = group
        self._index = 0

    def resources(self) -> Iterator[Resource]:
        """Yield the resources whose condition holds."""
        for body in self._document["resources"]:
            if body["type"].startswith(NOT_EVALUATED) or not self._value(
                body.get("condition", True)
            ):
                continue
            count = self._value(body["copy"]["count"]) if "copy" in body else 1
            for self._index in range(count):
                scope = self._value(body["scope"]) if "scope" in body else self._group["id"]
                names = self._value(body["name"]).split("/")
                sent = {key: body[key] for key in ("identity", "properties") if key in body}
                yield Resource(
                    resource_id(scope, body["type"], *names), body["type"], self._value(sent)
                )

    def outputs(self) -> dict[str, Any]:
        """Return the outputs whose condition holds, as a deployment shows them."""
        return {
            name: {"type": output["type"], "value": self._value(output["value"])}
            for name, output in self._document["outputs"].items()
            if self._value(output.get("condition", True))
        }

    def _parameter(self, name: str) -> Any:
        declaration = self._document["parameters"][name]
        if name in self._values:
            return self._values[name]
        return self._value(declaration["defaultValue"])

    def _value(self, value: Any) -> Any:
        """Return a value with all expressions in it evaluated."""
        if isinstance(value, dict):
            return {self._value(key): self._value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
            tokens = _TOKEN.findall(value[1:-1])
            result = self._evaluate(_tree(tokens))
            if tokens:
                raise ValueError(f"{tokens[0]!r} is too much in {value}")
            return result
        return value

    def _evaluate(self, tree: Any) -> Any:
        if not isinstance(tree, tuple):
            return tree
        name, *arguments = tree
        if name == "if":  # evaluates only the branch that it takes
            condition, yes, no = arguments
            return self._evaluate(yes if self._evaluate(condition) else no)
        return self._functions[name](*map(self._evaluate, arguments))


def _tree(tokens: list[str]) -> Any:
    """Take an expression from the tokens: a text, a number, or a tuple of function and arguments."""
    word = tokens.pop(0)
    if word.startswith("'"):
        return word[1:-1].replace("''", "'")
    if word.lstrip("-").isdecimal():
        return int(word)
    if tokens.pop(0) != "(":
        raise ValueError(f"no bracket after {word}")
    arguments = []
    while tokens[0] != ")":
        arguments.append(_tree(tokens))
        if tokens[0] == ",":
            tokens.pop(0)
    tokens.pop(0)
    tree: Any = (word, *arguments)
    while tokens and tokens[0] in (".", "["):
        sign = tokens.pop(0)
        tree = ("member", tree, tokens.pop(0) if sign == "." else _tree(tokens))
        if sign == "[":
            tokens.pop(0)
    return tree


def resource_id(scope: str, kind: str, *names: str) -> str:
    """Return the id of a resource below a scope: types and names alternate."""
    provider, *types = kind.split("/")
    pairs = "/".join(f"{one}/{name}" for one, name in zip(types, names, strict=True))
    return f"{scope}/providers/{provider}/{pairs}"


def _unique_string(*parts: str) -> str:
    """Return 13 letters and digits that are the same for the same texts."""
    digest = hashlib.sha256("/".join(parts).encode()).digest()
    return "".join("abcdefghijklmnopqrstuvwxyz234567"[byte % 32] for byte in digest[:13])


def _concat(*values: Any) -> Any:
    return [*chain(*values)] if isinstance(values[0], list) else "".join(map(str, values))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "member": lambda value, key: value[key],
    "and": lambda *values: all(values),
    "concat": _concat,
    "createObject": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "div": lambda one, second: one // second,
    "empty": lambda value: not value,
    "equals": lambda one, second: one == second,
    "extensionResourceId": resource_id,
    "guid": lambda *parts: str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(parts))),
    "length": len,
    "mod": lambda one, second: one % second,
    "mul": lambda one, second: one * second,
    "not": lambda value: not value,
    "null": lambda: None,
    "replace": lambda text, old, new: text.replace(old, new),
    "take": lambda value, count: value[:count],
    "toLower": str.lower,
    "true": lambda: True,
    "uniqueString": _unique_string,
}
"""Functions whose result depends on their arguments alone."""


# The ARM template of infra/azure, evaluated for a few deployments, and the rights that it grants.

DOCUMENT: dict[str, Any] = json.loads((bundled("infra") / "azure" / "template.json").read_text())
GROUP = {
    "id": "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/lab",
    "name": "lab",
    "location": "eastus",
    "subscription": "11111111-2222-3333-4444-555555555555",
    "tenant": "99999999-8888-7777-6666-555555555555",
}
PEOPLE = [{"id": "aaaaaaaa-0000-0000-0000-00000000000a", "type": "User"}]
CASES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "everything": {
        "privateNetwork": True,
        "githubSubject": "repo:me/mine:ref:refs/heads/main",
        "submitters": PEOPLE,
    },
    "built-in role": {
        "githubSubject": "repo:me/mine:x",
        "submitters": PEOPLE,
        "submitterRole": "builtIn",
    },
    "least": {"clusters": [], "budget": 0},
}


def evaluated(
    parameters: Mapping[str, Any], group: Mapping[str, str], object_id: Callable[[str], str]
) -> Template:
    """Return the template with these values. `object_id`: from the name of an identity."""

    def reference(id_: str, *_: Any) -> dict[str, str]:
        name = id_.rpartition("/")[2]
        return {
            "principalId": object_id(name),
            "clientId": object_id(name),
            "loginServer": f"{name}.azurecr.io",
        }

    return Template(DOCUMENT, parameters, group, reference)


@cache
def deployed(case: str) -> list[Resource]:
    """Return the resources of a case. The object id of an identity is its name."""
    return list(evaluated(CASES[case], GROUP, lambda name: name).resources())


@cache
def access(case: str) -> Access:
    """Return the roles that a case assigns; a principal is the name of an identity, or an object
    id.
    """
    return _granted(deployed(case))


def _granted(resources: Iterable[Resource]) -> Access:
    """Return the roles that these resources define and assign."""
    roles = dict(BUILT_IN)
    assignments = []
    for resource in resources:
        properties = resource.body.get("properties", {})
        if resource.kind == "Microsoft.Authorization/roleDefinitions":
            name = resource.id.rpartition("/")[2]
            roles[name] = role_of(properties["roleName"], properties["permissions"])
        if resource.kind == "Microsoft.Authorization/roleAssignments":
            assignment = Assignment(
                principal=properties["principalId"],
                role=properties["roleDefinitionId"].rpartition("/")[2],
                scope=resource.id.rpartition("/providers/Microsoft.Authorization/")[0],
            )
            assignments.append(assignment)
    return Access(roles=roles, assignments=assignments, is_enforced=True)


@cache
def scopes(case: str) -> dict[str, str]:
    """Return the ids of the resources that roles are assigned on, by plain names."""
    [workspace] = [one for one in deployed(case) if one.kind == WORKSPACES]
    parts = workspace.body["properties"]
    vaults = {one.id for one in deployed(case) if one.kind == "Microsoft.KeyVault/vaults"}
    [jobs_vault] = vaults - {parts["keyVault"]}
    return {
        "workspace": workspace.id,
        "storage": parts["storageAccount"],
        "registry": parts["containerRegistry"],
        "workspace vault": parts["keyVault"],
        "jobs vault": jobs_vault,
    }


def deploy(cloud: AzureCloud, **parameters: Any) -> Mapping[str, str]:
    """Give an imitated subscription what the template makes, and only the rights that it grants.

    Return the object ids of the identities by their names.
    """
    account = cloud.account
    account.resource_group = "cloudtrain"
    group = {
        "id": f"/subscriptions/{account.subscription}/resourceGroups/{account.resource_group}",
        "name": account.resource_group,
        "location": account.location,
        "subscription": account.subscription,
        "tenant": account.tenant,
    }
    object_ids: dict[str, str] = defaultdict(lambda: str(uuid.uuid4()))
    template = evaluated(parameters, group, object_ids.__getitem__)
    resources = list(template.resources())

    def of_kind(kind: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [(one.id, one.body) for one in resources if one.kind == kind]

    def identity_of(body: Mapping[str, Any]) -> str:
        """Return the object id of the first identity of a resource."""
        first = next(iter(body["identity"]["userAssignedIdentities"]))
        return object_ids[first.rpartition("/")[2]]

    [(workspace, body)] = of_kind(WORKSPACES)
    parts = body["properties"]
    [jobs_vault] = [
        id_ for id_, _ in of_kind("Microsoft.KeyVault/vaults") if id_ != parts["keyVault"]
    ]
    account.workspace = workspace.rpartition("/")[2]
    account.parts = {
        **{name: parts[name] for name in ("storageAccount", "keyVault", "containerRegistry")},
        "jobsVault": jobs_vault,
        "identity": identity_of(body),
    }
    is_by_role = parts["systemDatastoresAuthMode"] == "Identity"
    account.datastore_credentials = "None" if is_by_role else "AccountKey"
    [(_, storage)] = of_kind("Microsoft.Storage/storageAccounts")
    account.takes_keys = storage["properties"]["allowSharedKeyAccess"]
    account.computes = {
        id_.rpartition("/")[2]: _cluster(body["properties"]["properties"], identity_of(body))
        for id_, body in of_kind(f"{WORKSPACES}/computes")
    }

    granted = _granted(resources)
    account.access.roles = granted.roles
    account.access.assignments[:] = granted.assignments
    account.access.is_enforced = True
    account.rights.resources = [one.id for one in resources]
    account.rights.deployments["cloudtrain"] = {
        "provisioningState": "Succeeded",
        "outputs": template.outputs(),
    }
    return object_ids


def _cluster(properties: Mapping[str, Any], identity: str) -> Cluster:
    return Cluster(
        vm_size=properties["vmSize"],
        max_nodes=properties["scaleSettings"]["maxNodeCount"],
        low_priority=properties["vmPriority"] == "LowPriority",
        identity=identity,
    )
