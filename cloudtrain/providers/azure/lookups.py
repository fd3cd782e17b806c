"""Lookups of the things in a request: is each there, and who may use it?

The calls go to Azure Resource Manager, the workspace and its containers, and only read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from cloudtrain.checkup import Lookup, NotCheckedError, Thing, expect
from cloudtrain.errors import CloudError, CloudtrainError, RefusedError
from cloudtrain.planning.reference import ACR
from cloudtrain.providers.azure.identities import machines_identity, require
from cloudtrain.providers.azure.rights import rights_of
from cloudtrain.providers.azure.submit import refuse_cluster, refuse_serverless
from cloudtrain.providers.azure.things import (
    ML_VERSION,
    REGISTRY,
    STORAGE,
    VAULT,
    VERSIONS,
    Identity,
    Resource,
    Things,
)
from cloudtrain.providers.shared.paths import as_folder

MICROSOFTS = "mcr.microsoft.com"
"""Registry that everybody may pull from."""

CURATED = "azureml:AzureML-"
"""Prefix of short names of Microsoft's environments."""

IN_REGISTRY = "azureml://registries/"
IN_JOB = "azureml://jobs/"
_DATASTORE = re.compile(r"azureml:/(/subscriptions/.+?)?/datastores/([^/]+)/paths/(.*)")
_STORAGE = re.compile(
    r"(?:https?://|(?:wasbs?|abfss?)://[^@/]+@)([a-z0-9]{3,24})\.(?:blob|dfs)\.core\..+", re.I
)
"""Address in a storage account, without a datastore."""

_SECRET = re.compile(
    r"(?:keyvault:)?(?:https://)?([a-z][a-z0-9-]+)(?:\.vault\.[a-z.]+/secrets)?/([a-z0-9-]+)\b.*",
    re.IGNORECASE,
)

_NAME_CLAIMS = ("upn", "unique_name", "preferred_username", "appid")
"""Claims of a token that may name its owner, the best one first."""


def _credentials(things: Things, _: Thing) -> str:
    """Return whose the credentials are. Sets the caller."""
    claims = things.arm.claims()
    things.caller = Identity("you", str(claims.get("oid") or ""))
    names = [str(claims[claim]) for claim in _NAME_CLAIMS if claims.get(claim)]
    return (*names, "a token that says no name")[0]


def _workspace(things: Things, _: Thing) -> str:
    """Return where the workspace is. Sets its document."""
    answer = things.arm.get(things.scope, ML_VERSION)
    things.workspace = answer.document
    things.date = answer.date
    location = str(answer.document.get("location") or "")
    planned = things.config.location
    if planned and location and location != planned:
        message = f"it is in {location}, not in {planned}"
        raise RefusedError(message, hint=f"azure.location: {location}")

    state = things.workspace["properties"].get("provisioningState")
    if state not in (None, "Succeeded"):
        fix = "az ml workspace show tells more; wait, or make it again"
        raise RefusedError(f"its state is {state}", hint=fix)

    return f"it is, in {location}"


def _cluster(things: Things, thing: Thing) -> None:
    """Ask for a cluster that can hold the job. Sets its document."""
    target = things.plan.target
    nodes = things.plan.spec.resources.nodes
    refuse_cluster(things.cloud, thing.name, nodes, target.instances, target.gpus or 0)

    compute = things.part(f"computes/{thing.name}")
    machines = compute["properties"].get("properties") or {}
    for state in (compute["properties"].get("provisioningState"), machines.get("state")):
        if state in ("Failed", "Deleting", "Stopped", "Stopping"):
            raise RefusedError(f"its state is {state}")

    things.compute = compute


def _quota(things: Things, _: Thing) -> str:
    """Return the sufficient quotas of the first machines that have any: a submit tries them too."""
    if things.document["resources"].get("locations"):
        raise NotCheckedError("the job names locations, and quotas are of the workspace's own")

    refusals = []
    spec = things.plan.spec
    for size in things.plan.target.instances:
        try:
            spot = spec.resources.spot
            quotas = refuse_serverless(things.cloud, size, spec.machines, spot=spot)
        except RefusedError as error:
            refusals.append(error)
            continue
        if not quotas:
            raise NotCheckedError(f"no quota of the region names the family of {size}")
        return f"{size} may, by {', '.join(quotas)}"

    raise RefusedError("; ".join(error.what for error in refusals), hint=refusals[0].hint)


def _identity(things: Things, _: Thing) -> str:
    """Return whom the job acts as: by default a serverless job acts as its submitter."""
    chosen = dict(things.document.get("identity") or {})
    kind = chosen.pop("type", None)
    if kind == "user_identity" or (kind is None and not things.config.compute):
        things.job = things.caller
    else:
        things.job = machines_identity(things, chosen.values(), of_job=kind is not None)

    return things.job.words


def _environment(things: Things, _: Thing) -> str:
    """Return who may pull the image of the environment."""
    environment: Any = things.document["environment"]
    if not isinstance(environment, str):
        things.uses.add("image")
        image = environment.get("image")
    elif environment.startswith(IN_REGISTRY):
        return _in_registry(things, environment)
    else:
        things.uses.add("environment")
        try:
            image = _asset(things, "environments", environment).get("image")
        except CloudtrainError as error:
            if not environment.startswith(CURATED):
                raise
            raise NotCheckedError("Azure ML alone knows all of Microsoft's names") from error

    host = (image or MICROSOFTS).partition("/")[0]
    if host == MICROSOFTS:
        return "it is Microsoft's, or Azure ML builds it"
    if not ACR.fullmatch(host):
        raise NotCheckedError(f"a private image in {host} needs a connection of the workspace")

    known_id = things.workspace["properties"].get("containerRegistry")
    registry = things.resource(REGISTRY, re.split(r"[.-]", host)[0], known_id)
    machines = machines_identity(things)
    return f"{require(things, machines, registry['id'], rights_of('job')['registry'])} may"


def _input(things: Things, thing: Thing) -> str:
    """Return the content of an input, or of the place behind its asset."""
    uri = thing.name
    kind = thing.source.get("type", "uri_folder")
    if not re.match("[a-z]+:/", uri):
        is_model = kind.endswith("_model")
        things.uses.add("model" if is_model else "data asset")
        stored = _asset(things, "models" if is_model else "data", uri)
        expect("type", stored.get("dataType") or kind, kind)
        uri = stored.get("dataUri") or stored.get("modelUri") or ""

    if match := _DATASTORE.fullmatch(uri):
        return _blobs(things, match, kind)
    if uri.startswith(IN_REGISTRY):
        return _in_registry(things, uri)
    if uri.startswith(IN_JOB):
        status = things.part(f"jobs/{uri.split('/')[3]}")["properties"]["status"]
        raise NotCheckedError(f"the job is {status}, and what it left is not looked at")

    return _address(things, uri)


def _asset(things: Things, kind: str, uri: str) -> Resource:
    """Return the properties of a data asset, model or environment: `azureml:NAME:VERSION`."""
    name, _, version = uri.removeprefix("azureml:").partition(":")
    path = f"{kind}/{name.partition('@')[0]}/versions"
    if version:
        newest = things.part(f"{path}/{version}")
    else:
        newest = next(things.arm.listed(f"{things.scope}/{path}", ML_VERSION), {})
    if not newest:
        raise RefusedError(f"there is no {uri}", hint=f"az ml {kind.removesuffix('s')} list")

    properties: Resource = newest["properties"]
    return properties


def _in_registry(things: Things, uri: str) -> str:
    """Return the registry of an asset, such as Microsoft's own."""
    registry, kind, name, by, value = uri.removeprefix(IN_REGISTRY).strip("/").split("/")
    try:
        things.cloud.registry_asset(registry, kind, name, **{by.removesuffix("s"): value})
    except CloudtrainError as error:
        if isinstance(error, CloudError) and error.is_absent:
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
            raise RefusedError(f"its server answers {status}")
    if storage is None:
        raise NotCheckedError("the job alone opens it")

    account = things.resource(STORAGE, storage[1])
    who = require(things, things.job, account["id"], rights_of("job")["input"])
    raise NotCheckedError(f"{who} may read {storage[1]}, and alone opens it")


def _blobs(things: Things, match: re.Match[str], kind: str) -> str:
    """Return that a path of a datastore holds what an input of this type needs."""
    workspace, name, path = match.groups()
    own_scope = things.scope.replace("/providers/Microsoft.MachineLearningServices", "")
    if workspace and workspace.lower() != own_scope.lower():
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
    for blob in container.blobs(path):
        is_exact = blob.name == path or kind not in ("uri_file", "mltable")
        if is_exact and (not path or f"{blob.name}/".startswith(as_folder(path))):
            return "there is"

    raise RefusedError(f"there is nothing at azureml://datastores/{name}/paths/{path}")


def _read_datastore(things: Things, thing: Thing) -> str:
    """Return who may read a datastore: by its key, or by roles on its storage account."""
    scope = _keyless_account(things, thing.name)
    if scope:
        return f"{require(things, things.job, scope, rights_of('job')['input'])} may"

    return "the workspace has its key"


def _written_datastore(things: Things, thing: Thing) -> str:
    """Return who may write a datastore, which submit and fetch use too."""
    scope = _keyless_account(things, thing.name)
    if scope:
        caller = require(things, things.caller, scope, rights_of("people")["blobs"])
        return f"{caller} and {require(things, things.job, scope, rights_of('job')['output'])}"

    things.uses.add("keys")
    return "the workspace has its key"


def _keyless_account(things: Things, name: str) -> str:
    """Return the id of the storage account of a datastore that is opened by roles; else empty."""
    facts = things.part(f"datastores/{name}")["properties"]
    expect("type", facts["datastoreType"], "AzureBlob")
    key = (facts.get("credentials") or {}).get("credentialsType") or "None"
    if key == "None":
        known_id = things.workspace["properties"].get("storageAccount")
        return str(things.resource(STORAGE, facts["accountName"], known_id)["id"])
    if key not in ("AccountKey", "Sas"):
        raise NotCheckedError(f"the roles of its {key}")
    if not things.cloud.container(name).takes_secret():
        raise RefusedError(
            "the storage account takes no keys, but the datastore has one: jobs fail",
            hint="az ml workspace update --system-datastores-auth-mode identity; register your own"
            " datastores again without credentials",
        )

    return ""


def _secret(things: Things, thing: Thing) -> str:
    """Return who may read a secret. Its value is not read."""
    match = _SECRET.fullmatch(thing.name)
    if match is None:
        raise NotCheckedError("it is at no address of Azure Key Vault")

    vault = things.resource(VAULT, match[1], things.workspace["properties"].get("keyVault"))
    secret = things.arm.get(f"{vault['id']}/secrets/{match[2]}", VERSIONS[VAULT]).document
    if (secret["properties"].get("attributes") or {}).get("enabled") is False:
        raise RefusedError("it is disabled", hint="az keyvault secret set-attributes")
    if not vault["properties"].get("enableRbacAuthorization"):
        raise NotCheckedError("its vault has access policies, whose groups no call tells")

    return f"{require(things, things.job, vault['id'], rights_of('job')['secret'])} may"


def _rights(things: Things, _: Thing) -> str:
    """Return that the caller has the rights on the workspace that this job needs."""
    actions: list[str] = []
    for use in sorted(things.uses):
        actions += rights_of("people")[use]

    return f"{require(things, things.caller, things.scope, actions)} may"


LOOKUPS: Mapping[str, Lookup] = {
    "credentials": Lookup(_credentials, "whose are they"),
    "workspace": Lookup(
        _workspace,
        "is {name} there and ready",
        "check azure.workspace: az ml workspace list shows yours",
    ),
    "compute": Lookup(
        _cluster, "has {name} the nodes of the job", "az ml compute show --name {name} tells more"
    ),
    "quota": Lookup(_quota, "may {name} run at once"),
    "identity": Lookup(_identity, "whom does the job act as"),
    "environment": Lookup(_environment, "is it there, and may the machines pull it"),
    "input": Lookup(_input, "is there {name}", "look at it in the studio, and at the input's type"),
    "written datastore": Lookup(
        _written_datastore, "is {name} there, and open to who uses it", "one of type azure_blob"
    ),
    "datastore": Lookup(
        _read_datastore, "is {name} there, and open to who uses it", "one of type azure_blob"
    ),
    "secret": Lookup(_secret, "is {name} there, and may the job read it"),
    "your rights": Lookup(_rights, "may you submit, follow, stop and fetch"),
}
"""Kind of a thing -> how it is looked up."""
