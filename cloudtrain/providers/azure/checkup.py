"""Read-only checks of an Azure ML workspace for `cloudtrain doctor azure`, in order of repairs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError, RefusedError, UsageError
from cloudtrain.providers.azure.account import format_issues
from cloudtrain.providers.azure.config import AzureConfig, connect
from cloudtrain.providers.azure.results import datastore_path
from cloudtrain.providers.azure.rights import ML_VERSION, Account, rights_checks, workspace_id
from cloudtrain.providers.azure.submit import refuse_cluster, refuse_serverless
from cloudtrain.providers.shared.account import clock_check

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.azure.sdk import ResourceManager

_ASSET = re.compile(r"azureml:([^:@/]+)(?::([^:@/]+)|@latest)")

_NAME_CLAIMS = ("upn", "unique_name", "preferred_username", "appid")
"""Claims of a token that may name its owner, the best one first."""


def account_checks(plan: Plan) -> Iterator[Check]:
    """Yield each check of a job's workspace as its answer comes.

    Without a login or a workspace, skip the checks that need it.
    """
    target = plan.target
    config = target.config_as(AzureConfig)
    try:
        cloud = connect(config.subscription, config.resource_group, config.workspace)
    except UsageError as error:
        yield Question("azure-ai-ml", "is it installed").failed(error)
        return

    from cloudtrain.providers.azure.sdk import ResourceManager

    arm = ResourceManager()
    malformed = list(format_issues(config))
    yield from map(Question.of_setting, malformed)
    if malformed:
        return

    claims: dict[str, Any] = {}
    document: dict[str, Any] = {}
    login = _credentials_check(arm, claims)
    yield login
    if login.is_wrong:
        return

    yield from _workspace_checks(arm, config, document)
    if not document:
        return

    account = Account(
        cloud=cloud,
        arm=arm,
        config=config,
        target=target,
        spec=plan.spec,
        user=str(claims.get("oid") or ""),
        workspace=document,
    )
    yield from rights_checks(account)
    yield from _input_checks(account)
    yield from _environment_checks(account)
    yield _machines_check(account)


def _credentials_check(arm: ResourceManager, claims: dict[str, Any]) -> Check:
    """Check whose the credentials are. `claims`: filled with the token's claims."""
    question = Question("credentials", "whose are they")

    def ask() -> Check:
        claims.update(arm.claims())
        for claim in _NAME_CLAIMS:
            if claims.get(claim):
                return question.found(str(claims[claim]))

        return question.found("a token that says no name")

    return question.answered_by(ask)


def _workspace_checks(
    arm: ResourceManager,
    config: AzureConfig,
    document: dict[str, Any],
) -> Iterator[Check]:
    """Check existence and location of the workspace, and the clock. Fills `document`."""
    question = Question(
        "workspace",
        f"is {config.workspace} there and ready",
        ("azure", "workspace"),
    )
    try:
        answer = arm.get(workspace_id(config), ML_VERSION)
    except CloudError as error:
        if error.code in ("NoWorkspace", "NotFound"):
            yield question.wrong(error.what, error.hint or "az ml workspace list")
        else:
            yield question.failed(error)
        return

    yield clock_check(answer.date, time.time())
    document.update(answer.document)
    location = str(document.get("location") or "")

    state = (document.get("properties") or {}).get("provisioningState")
    if config.location and location and location != config.location:
        yield question.wrong(
            f"it is in {location}, not in {config.location}", f"azure.location: {location}"
        )
    elif state not in (None, "Succeeded"):
        yield question.wrong(
            f"its state is {state}",
            "az ml workspace show tells more; wait, or make it again",
        )
    else:
        yield question.found(f"it is, in {location}")


def _input_checks(account: Account) -> Iterator[Check]:
    """Yield a check that each input exists that is a path of a datastore or a data asset."""
    provider = account.target.provider
    for name, item in account.spec.inputs.items():
        uri = item.on(provider) or ""
        question = Question("input", f"is there anything at {uri}", ("inputs", name))
        asset = _ASSET.fullmatch(uri)
        if uri.startswith("azureml://datastores/"):
            yield question.answered_by(partial(_stored_input, account, question, uri))
        elif asset:
            kind = "models" if "model" in (item.type or "") else "data"
            yield question.answered_by(partial(_asset, account, question, kind, asset))


def _environment_checks(account: Account) -> Iterator[Check]:
    """Yield a check that the job's environment exists; Microsoft's own are in every workspace."""
    asset = _ASSET.fullmatch(account.target.image_address)
    if asset and not asset[1].startswith("AzureML-"):
        question = Question("environment", f"is {asset[0]} there", ("image",))
        yield question.answered_by(partial(_asset, account, question, "environments", asset))


def _stored_input(account: Account, question: Question, uri: str) -> Check:
    datastore, path = datastore_path(uri)
    try:
        container = account.cloud.container(datastore)
    except CloudError as error:
        if error.code == "NotFound":
            return question.wrong(
                f"there is no datastore {datastore}", "az ml datastore list shows those there are"
            )
        if error.code != "NoContainer":
            raise
        return question.not_checked(f"{datastore} is not a blob container")

    if next(container.blobs(path), None) is not None:
        return question.found("there is")

    return question.wrong(
        f"there is nothing at {uri}",
        f"look at the datastore in the studio; inputs.{question.setting[1]} names another path",
    )


def _asset(account: Account, question: Question, kind: str, asset: re.Match[str]) -> Check:
    """Check that an asset has the version, or any for `@latest`."""
    versions = f"{account.scope}/{kind}/{asset[1]}/versions"
    try:
        if asset[2]:
            account.arm.get(f"{versions}/{asset[2]}", ML_VERSION)
            return question.found("there is")
        if next(account.arm.listed(versions, ML_VERSION), None) is not None:
            return question.found("there is")
    except CloudError as error:
        if error.code not in ("NotFound", "NoWorkspace"):
            raise

    name = kind.removesuffix("s")
    noun = "data asset" if name == "data" else name
    return question.wrong(f"there is no {noun} {asset[0]}", f"az ml {name} list shows the others")


def _machines_check(account: Account) -> Check:
    """Check that the cluster can run the job, or the quota allows its machines."""
    config = account.config
    spec = account.spec
    types = account.target.instances
    gpus = account.target.gpus or 0
    nodes = spec.resources.nodes
    compute = config.compute or ""
    if compute:
        question = Question(
            "compute",
            f"has the cluster {compute} {nodes} nodes of the planned kind",
            ("azure", "compute"),
        )
    else:
        question = Question(
            "quota", f"may {spec.machines} x {' or '.join(types)} run at once", spec.machines_at
        )

    def ask() -> Check:
        try:
            if compute:
                refuse_cluster(account.cloud, compute, nodes, types, gpus)
                return _state(account, question)
        except RefusedError as error:
            return question.wrong(error.what, error.hint or "")
        return _serverless(account, question)

    return question.answered_by(ask)


def _serverless(account: Account, question: Question) -> Check:
    """Check the quotas of the machines in their order: a submit tries the next one too."""
    spec = account.spec
    refusals = []
    for size in account.target.instances:
        try:
            quotas = refuse_serverless(account.cloud, size, spec.machines, spot=spec.resources.spot)
        except RefusedError as error:
            refusals.append(error)
            continue
        if not quotas:
            return question.not_checked(f"no quota of the region names the family of {size}")
        return question.found(f"{size} may, by {', '.join(quotas)}")

    reasons = "; ".join(error.what for error in refusals)
    return question.wrong(reasons, refusals[0].hint or "")


def _state(account: Account, question: Question) -> Check:
    """Check that the cluster was created without an error: others take no jobs."""
    resource = account.arm.get(f"{account.scope}/computes/{account.config.compute}", ML_VERSION)
    state = resource.document["properties"].get("provisioningState")
    if state not in (None, "Succeeded"):
        return question.wrong(
            f"its state is {state}", f"az ml compute show --name {account.config.compute} tells why"
        )

    return question.found("it has")
