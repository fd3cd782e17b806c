"""Walk over a command job: is each thing there, and who may use it? `doctor` and `check --online`.

Azure Resource Manager and the workspace are asked, by calls that only read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudtrainError, RefusedError, UsageError
from cloudtrain.planning.reference import ACR
from cloudtrain.providers.azure.account import format_issues
from cloudtrain.providers.azure.config import AzureConfig, connect
from cloudtrain.providers.azure.lookups import IN_REGISTRY, asset, data_checks, in_registry
from cloudtrain.providers.azure.rights import rights_of
from cloudtrain.providers.azure.submit import refuse_cluster, refuse_serverless
from cloudtrain.providers.azure.things import (
    ML_VERSION,
    REGISTRY,
    VAULT,
    VERSIONS,
    Identity,
    NotCheckedError,
    Things,
)
from cloudtrain.providers.shared.account import clock_check

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan

MICROSOFTS = "mcr.microsoft.com"
"""Registry that everybody may pull from."""

CURATED = "azureml:AzureML-"
"""Prefix of short names of Microsoft's environments."""

UNKNOWN = (
    (
        "network",
        "do the job's machines reach what they need",
        "private networks and firewalls are not seen from here",
    ),
    (
        "policies",
        "does anything refuse what roles allow",
        "Azure Policy, locks and deny assignments are not asked",
    ),
    ("capacity", "are the machines free", "Azure tells it when they are asked for"),
)
"""Checks that no call answers: name, question, reason."""

_NAME_CLAIMS = ("upn", "unique_name", "preferred_username", "appid")
"""Claims of a token that may name its owner, the best one first."""

_SECRET = re.compile(
    r"(?:keyvault:)?(?:https://)?([a-z][a-z0-9-]+)(?:\.vault\.[a-z.]+/secrets)?/([a-z0-9-]+)\b.*",
    re.IGNORECASE,
)


def account_checks(plan: Plan) -> Iterator[Check]:
    """Yield a check of each thing in a plan's request, as its answer comes.

    Without a login or a workspace, skip those that need it.
    """
    config = plan.target.config_as(AzureConfig)
    try:
        cloud = connect(config.subscription, config.resource_group, config.workspace)
    except UsageError as error:
        yield Question("azure-ai-ml", "is it installed").failed(error)
        return

    from cloudtrain.providers.azure.sdk import ResourceManager

    things = Things(cloud=cloud, arm=ResourceManager(), plan=plan, caller=Identity("you", ""))
    login = things.ask("credentials", "whose are they", (), _credentials)
    yield login
    if login.is_wrong or any(format_issues(config)):
        return

    place = ("azure", "workspace")
    yield things.ask("workspace", f"is {config.workspace} there and ready", place, _workspace)
    if not things.workspace:
        rest = Question("everything else", "is it there, and who may use it")
        yield rest.not_checked("the workspace alone tells of it")
        return

    yield clock_check(things.date, time.time())
    spec = plan.spec
    if name := config.compute:
        question = f"has {name} {spec.resources.nodes} nodes of the planned kind"
        yield things.ask("compute", question, ("azure", "compute"), _cluster)
    else:
        question = f"may {spec.machines} x {' or '.join(plan.target.instances)} run at once"
        yield things.ask("quota", question, spec.machines_at, _quota)

    yield things.ask("identity", "whom does the job act as", ("azure", "identity"), _identity)
    question = "is it there, and may the machines pull it"
    yield things.ask("environment", question, ("image",), _environment)
    yield from data_checks(things)
    for variable, address in (plan.request.job.secrets or {}).items():
        question = f"is {address} there, and may the job read it"
        yield things.ask("secret", question, ("secrets", variable), _secret, address)

    yield things.ask("your rights", "may you submit, follow, stop and fetch", place, _rights)
    for name, question, reason in UNKNOWN:
        yield Question(name, question).not_checked(reason)


def _credentials(things: Things) -> str:
    """Return whose the credentials are."""
    claims = things.arm.claims()
    things.caller = Identity("you", str(claims.get("oid") or ""))
    names = [str(claims[claim]) for claim in _NAME_CLAIMS if claims.get(claim)]
    return (*names, "a token that says no name")[0]


def _workspace(things: Things) -> str:
    """Return where the workspace is. Sets its document."""
    config = things.config
    answer = things.arm.get(things.scope, ML_VERSION)
    things.workspace = answer.document
    things.date = answer.date
    location = str(answer.document.get("location") or "")
    state = things.workspace["properties"].get("provisioningState")
    if config.location and location and location != config.location:
        message = f"it is in {location}, not in {config.location}"
        raise RefusedError(message, hint=f"azure.location: {location}")
    if state not in (None, "Succeeded"):
        fix = "az ml workspace show tells more; wait, or make it again"
        raise RefusedError(f"its state is {state}", hint=fix)

    return f"it is, in {location}"


def _cluster(things: Things) -> str:
    """Return that a cluster can hold the job. Sets its document."""
    name = things.config.compute or ""
    target = things.plan.target
    nodes = things.plan.spec.resources.nodes
    refuse_cluster(things.cloud, name, nodes, target.instances, target.gpus or 0)

    compute = things.arm.get(f"{things.scope}/computes/{name}", ML_VERSION).document
    machines = compute["properties"].get("properties") or {}
    for state in (compute["properties"].get("provisioningState"), machines.get("state")):
        if state in ("Failed", "Deleting", "Stopped", "Stopping"):
            raise RefusedError(f"its state is {state}", hint=f"az ml compute show --name {name}")

    things.compute = compute
    return "it has"


def _quota(things: Things) -> str:
    """Return the sufficient quotas of the first machines that have any: a submit tries them too."""
    if things.plan.request.document["resources"].get("locations"):
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


def _identity(things: Things) -> str:
    """Return whom the job acts as: by default a serverless job acts as its submitter."""
    chosen: Mapping[str, str] = things.plan.request.document.get("identity") or {}
    kind = chosen.get("type")
    if kind == "user_identity" or (kind is None and not things.config.compute):
        things.job = things.caller
        return "you"

    ids = [value for key, value in chosen.items() if key != "type"]
    things.job = things.identity(ids, of_job=kind is not None)
    return things.job.words


def _environment(things: Things) -> str:
    """Return who may pull the image of the environment."""
    environment: Any = things.plan.request.document["environment"]
    if not isinstance(environment, str):
        things.uses.add("image")
        image = environment.get("image")
    elif environment.startswith(IN_REGISTRY):
        return in_registry(things, environment)
    else:
        things.uses.add("environment")
        try:
            image = asset(things, "environments", environment).get("image")
        except CloudtrainError as error:
            if not environment.startswith(CURATED):
                raise
            raise NotCheckedError("Azure ML alone knows all of Microsoft's names") from error

    host = (image or MICROSOFTS).partition("/")[0]
    if host == MICROSOFTS:
        return "it is Microsoft's, or Azure ML builds it"
    if not ACR.fullmatch(host):
        raise NotCheckedError(f"a private image in {host} needs a connection of the workspace")

    known_id = str(things.workspace["properties"].get("containerRegistry"))
    registry = things.resource(REGISTRY, re.split(r"[.-]", host)[0], known_id)
    return f"{things.require(things.identity(), registry['id'], rights_of('job')['registry'])} may"


def _secret(things: Things, place: str) -> str:
    """Return who may read a secret. Its value is not read."""
    match = _SECRET.fullmatch(place)
    if match is None:
        raise NotCheckedError("it is at no address of Azure Key Vault")

    vault = things.resource(VAULT, match[1], str(things.workspace["properties"].get("keyVault")))
    secret = things.arm.get(f"{vault['id']}/secrets/{match[2]}", VERSIONS[VAULT])
    if (secret.document["properties"].get("attributes") or {}).get("enabled") is False:
        raise RefusedError("it is disabled", hint="az keyvault secret set-attributes")
    if vault["properties"].get("enableRbacAuthorization"):
        return f"{things.require(things.job, vault['id'], rights_of('job')['secret'])} may"

    for policy in vault["properties"].get("accessPolicies") or ():
        allowed = {"Get", "get", "All", "all"} & {*(policy["permissions"].get("secrets") or ())}
        if allowed and things.job and policy["objectId"] == things.job.principal:
            return f"{things.job.words} may, by an access policy"

    raise NotCheckedError("no access policy names the job's identity; one of a group may hold")


def _rights(things: Things) -> str:
    """Return that the caller has the rights on the workspace that this job needs."""
    actions = []
    for use in ("always", *sorted(things.uses)):
        actions += rights_of("people")[use]

    return f"{things.require(things.caller, things.scope, actions)} may"
