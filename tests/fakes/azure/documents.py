"""From the PUT body of a command job back to the document that it was written from."""

from __future__ import annotations

import re
from collections.abc import ItemsView, Mapping
from typing import Any, NamedTuple

from tests.fakes.azure.account import Account
from tests.fakes.azure.jobs import Job
from tests.fakes.azure.schema import duration_seconds

_MODES = {"ReadOnlyMount": "ro_mount", "Download": "download", "ReadWriteMount": "rw_mount"}
_SHORT = r"azureml://datastores/(?P<datastore>[^/]+)/paths/(?P<path>.*)"
_LONG = (
    r"azureml://subscriptions/(?P<subscription>[^/]+)/resourcegroups/(?P<group>[^/]+)(?:/providers/[^/]+)?"
    r"/workspaces/(?P<workspace>[^/]+)/datastores/(?P<datastore>[^/]+)/paths/(?P<path>.*)"
)
_ASSET = (
    r"(?:azureml:|/subscriptions/.*/data/)(?P<name>[^/:@]+)(?::|/versions/)(?P<version>[^/:@]+)"
)


class BlobPath(NamedTuple):
    """A place in a container."""

    container: str
    path: str


def blob_path_of(uri: str, account: Account) -> BlobPath | str:
    """Return the place of an address or a data asset, or the reason why it has none."""
    asset = re.fullmatch(_ASSET, uri)
    if asset:
        uri = account.data.get((asset["name"], asset["version"]), uri)
    match = re.fullmatch(_SHORT, uri, re.IGNORECASE) or re.fullmatch(_LONG, uri, re.IGNORECASE)
    if match:
        named = match.groupdict()
        parts = {
            "subscription": account.subscription,
            "group": account.resource_group,
            "workspace": account.workspace,
        }
        for key, name in parts.items():
            if named.get(key, name).lower() != name.lower():
                return f"The {key} {named[key]} of {uri} does not belong to this workspace."
        datastore = account.datastore(match["datastore"])
        if datastore is None:
            return f"Could not find datastore: {match['datastore']}."
        return BlobPath(datastore.name, match["path"].strip("/"))
    if uri.startswith(f"{account.blob_url}/"):
        container, _, path = (
            uri.removeprefix(f"{account.blob_url}/").partition("?")[0].partition("/")
        )
        if account.storage.container(container) is None:
            return f"The container {container} of {uri} does not exist."
        return BlobPath(container, path.strip("/"))
    return f"{uri} leads out of this imitation, or nowhere."


def document(job: Job) -> dict[str, Any]:
    """The command-job document of a request."""
    body = job.properties
    resources, distribution, limits = (
        body.get(key) or {} for key in ("resources", "distribution", "limits")
    )
    answer: dict[str, Any] = {
        "name": job.name,
        "code": body.get("codeId", ""),
        "command": body["command"],
        "environment_variables": dict(body.get("environmentVariables") or {}),
        "resources": {"instance_count": job.nodes},
        "inputs": {name: _mount(item, "ro_mount") for name, item in _items(body, "inputs")},
        "outputs": {name: _mount(item, "rw_mount") for name, item in _items(body, "outputs")},
    }
    if "instanceType" in resources:
        answer["resources"]["instance_type"] = resources["instanceType"]
    if distribution:
        count = distribution.get("processCountPerInstance", 1)
        answer["distribution"] = {"type": "pytorch", "process_count_per_instance": count}
    if "timeout" in limits:
        answer["limits"] = {"timeout": duration_seconds(limits["timeout"])}
    for name, output in answer["outputs"].items():
        output["path"] = (
            output["path"]
            or f"azureml://datastores/workspaceblobstore/paths/azureml/{job.name}/{name}/"
        )
    return answer


def _items(body: Mapping[str, Any], kind: str) -> ItemsView[str, Any]:
    return (body.get(kind) or {}).items()


def _mount(item: Mapping[str, Any], mode: str) -> dict[str, str]:
    kind = item.get("jobInputType") or item["jobOutputType"]
    return {
        "type": kind,
        "path": item.get("uri") or "",
        "mode": _MODES.get(item.get("mode", ""), mode),
    }
