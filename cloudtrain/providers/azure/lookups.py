"""The data of a command job: is each input there, and who may use the datastores?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from cloudtrain.checkup import Check
from cloudtrain.errors import CloudError, CloudtrainError, Keys, RefusedError
from cloudtrain.providers.azure.request import input_name
from cloudtrain.providers.azure.rights import rights_of
from cloudtrain.providers.azure.things import (
    ML_VERSION,
    NOT_FOUND,
    STORAGE,
    NotCheckedError,
    Things,
)
from cloudtrain.providers.shared.paths import as_folder

IN_REGISTRY = "azureml://registries/"
IN_JOB = "azureml://jobs/"
_DATASTORE = re.compile(r"azureml:/(/subscriptions/.+?)?/datastores/([^/]+)/paths/(.*)")
_OWN_DATASTORE = re.compile("azureml://datastores/([^/]+)/paths/")
_STORAGE = re.compile(
    r"(?:https?://|(?:wasbs?|abfss?)://[^@/]+@)([a-z0-9]{3,24})\.(?:blob|dfs)\.core\..+", re.I
)
"""Address in a storage account, without a datastore."""


def data_checks(things: Things) -> Iterator[Check]:
    """Yield checks of the inputs, then of the datastores that the job writes and reads."""
    request = things.plan.request.document
    spec = things.plan.spec
    fields = {input_name(name): name for name in spec.inputs}
    for name, item in (request.get("inputs") or {}).items():
        is_upload = fields.get(name) in things.plan.context.uploads
        if "path" in item and not is_upload:
            place: Keys = ("inputs", fields[name]) if name in fields else ()
            yield things.ask("input", f"is there {item['path']}", place, _input, item)

    found = _OWN_DATASTORE.findall(json.dumps(request.get("outputs")))
    written = dict.fromkeys([things.config.datastore, *found])
    for name in [*written, *sorted(things.read - written.keys())]:
        setting: Keys = ("azure", "datastore") if name in written else ("inputs",)
        if f"/datastores/{name}/" in (spec.checkpoints.uri or ""):
            setting = ("checkpoints", "uri")
        question = f"is {name} there, and open to who uses it"
        yield things.ask("datastore", question, setting, _datastore, name, name in written)


def _input(things: Things, item: Mapping[str, Any]) -> str:
    """Return the content of an input, or of the place behind its asset."""
    uri = item["path"]
    kind = item.get("type", "uri_folder")
    if not re.match("[a-z]+:/", uri):
        is_model = kind.endswith("_model")
        things.uses.add("model" if is_model else "data asset")
        stored = asset(things, "models" if is_model else "data", uri)
        stored_kind = stored.get("dataType") or kind
        if stored_kind != kind:
            raise RefusedError(
                f"it is a {stored_kind}, not a {kind}", hint="look at the type of the input"
            )
        uri = stored.get("dataUri") or stored.get("modelUri") or ""

    if match := _DATASTORE.fullmatch(uri):
        return _blobs(things, match, kind)
    if uri.startswith(IN_REGISTRY):
        return in_registry(things, uri)
    if uri.startswith(IN_JOB):
        name = uri.split("/")[3]
        job = things.arm.get(f"{things.scope}/jobs/{name}", ML_VERSION).document
        status = job["properties"]["status"]
        raise NotCheckedError(f"the job is {status}, and what it left is not looked at")

    return _address(things, uri)


def asset(things: Things, kind: str, uri: str) -> Mapping[str, Any]:
    """Return the properties of a data asset, model or environment: `azureml:NAME:VERSION`."""
    name, _, version = uri.removeprefix("azureml:").partition(":")
    path = f"{things.scope}/{kind}/{name.partition('@')[0]}/versions"
    if version:
        newest = things.arm.get(f"{path}/{version}", ML_VERSION).document
    else:
        newest = next(things.arm.listed(path, ML_VERSION), {})
    if not newest:
        raise RefusedError(f"there is no {uri}", hint=f"az ml {kind.removesuffix('s')} list")

    properties: Mapping[str, Any] = newest["properties"]
    return properties


def in_registry(things: Things, uri: str) -> str:
    """Return the registry of an asset, such as Microsoft's own."""
    registry, kind, name, by, value = uri.removeprefix(IN_REGISTRY).strip("/").split("/")
    try:
        things.cloud.registry_asset(registry, kind, name, **{by.removesuffix("s"): value})
    except CloudtrainError as error:
        if isinstance(error, CloudError) and error.code in NOT_FOUND:
            raise
        raise NotCheckedError(f"{registry} does not answer: {error.what}") from error

    return f"it is, in the registry {registry}"


def _address(things: Things, uri: str) -> str:
    """Return that an address answers without credentials, or look who may read its account."""
    storage = _STORAGE.fullmatch(uri)
    if uri.startswith("http"):
        try:
            with urlopen(Request(uri, method="HEAD"), timeout=10) as answer:
                status = answer.status
        except HTTPError as error:
            status = error.code
        except OSError as error:
            raise NotCheckedError(f"it cannot be reached from here: {error}") from error
        if status < 300:
            return "there is, for everybody"
        if status in (404, 410) and storage is None:
            raise RefusedError(f"its server answers {status}", hint="look at the address")
    if storage is None:
        raise NotCheckedError("the job alone opens it")

    account = things.resource(STORAGE, storage[1])
    who = things.require(things.job, account["id"], rights_of("job")["input"])
    raise NotCheckedError(f"{who} may read {storage[1]}, and alone opens it")


def _blobs(things: Things, match: re.Match[str], kind: str) -> str:
    """Return that a path of a datastore holds what an input of this type needs."""
    workspace, name, path = match.groups()
    own = things.scope.replace("/providers/Microsoft.MachineLearningServices", "")
    if workspace and workspace.lower() != own.lower():
        raise NotCheckedError(f"it is in another workspace: {workspace}")
    try:
        container = things.cloud.container(name)
    except CloudError as error:
        if error.code != "NoContainer":
            raise
        raise NotCheckedError(f"{name} is not a blob container") from error

    things.read.add(name)
    if kind == "mltable":
        path = f"{path.rstrip('/')}/MLTable".lstrip("/")
    for blob, _ in container.blobs(path):
        is_exact = blob == path or kind not in ("uri_file", "mltable")
        if is_exact and (not path or f"{blob}/".startswith(as_folder(path))):
            return "there is"

    hint = "look at the datastore in the studio"
    raise RefusedError(f"there is nothing at azureml://datastores/{name}/paths/{path}", hint=hint)


def _datastore(things: Things, name: str, writes: bool) -> str:
    """Return who may use a datastore: by its key, or by roles on its storage account."""
    path = f"{things.scope}/datastores/{name}"
    facts = things.arm.get(path, ML_VERSION).document["properties"]
    kind = facts["datastoreType"]
    if kind != "AzureBlob":
        raise RefusedError(f"it is of type {kind}", hint="name one of type azure_blob")

    key = (facts.get("credentials") or {}).get("credentialsType") or "None"
    if key in ("AccountKey", "Sas"):
        if writes:
            things.uses.add("keys")
        if things.cloud.container(name).takes_secret():
            return "the workspace has its key"
        raise RefusedError(
            "the storage account takes no keys, but the datastore has one: jobs fail",
            hint="az ml workspace update --system-datastores-auth-mode identity; register your own"
            " datastores again without credentials",
        )
    if key != "None":
        raise NotCheckedError(f"the roles of its {key}")

    known_id = str(things.workspace["properties"].get("storageAccount"))
    scope = things.resource(STORAGE, facts["accountName"], known_id)["id"]
    if not writes:
        return things.require(things.job, scope, rights_of("job")["input"])

    caller = things.require(things.caller, scope, rights_of("people")["blobs"])
    return f"{caller} and {things.require(things.job, scope, rights_of('job')['output'])}"
