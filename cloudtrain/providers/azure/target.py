"""Workspace and image of a job, from the spec, the settings or the Azure CLI, and its target. No network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cloudtrain.catalog.machines import architecture_of, is_azure_size, select_instances
from cloudtrain.catalog.pricing import (
    CostEstimate,
    RegionalPrices,
    estimate_cost,
    known_prices,
)
from cloudtrain.errors import Issue, UsageError
from cloudtrain.planning.recipe import usual_contents
from cloudtrain.planning.selection import (
    PlannedImage,
    fabric_args,
    planned_build,
    recipe_for,
    select_image,
)
from cloudtrain.planning.target import Target
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.section import AzureSection
from cloudtrain.providers.shared.account import (
    CliDefault,
    RequiredSetting,
    SettingsReader,
    configured_repository,
    display_path,
    environment_value,
    ini_value,
)
from cloudtrain.providers.shared.machine_choice import machine_choice, regional_prices
from cloudtrain.settings import Settings
from cloudtrain.spec.model import JobSpec, Resources
from cloudtrain_launcher.packages.bounded_files import read_regular_text

_SUBSCRIPTION = RequiredSetting(
    "00000000-0000-…",
    "the subscription's id (az account show)",
    placeholder="00000000-0000-0000-0000-000000000000",
)
_RESOURCE_GROUP = RequiredSetting(
    "my-group",
    "the resource group of the workspace",
    placeholder="not-set-yet",
)
_WORKSPACE = RequiredSetting(
    "my-workspace",
    "the Azure ML workspace to run in",
    placeholder="not-set-yet",
)

_FORMS = {
    "subscription": (
        r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        "its id: az account show",
    ),
    "resource_group": (r"[\w.()-]{0,89}[\w()-]", "up to 90 letters, digits, and -_.()"),
    "workspace": (r"[a-zA-Z0-9][\w-]{2,32}", "3 to 33 letters, digits, hyphens and underscores"),
    "location": (r"[a-z]+[a-z0-9]*", "such as eastus, westeurope (az account list-locations)"),
    "compute": (
        r"[a-zA-Z][a-zA-Z0-9-]{1,31}",
        "the cluster's name alone: letters, digits and hyphens",
    ),
    "datastore": (r"[a-zA-Z0-9_]{1,255}", "its name alone, such as workspaceblobstore"),
    "repository": (
        r"[a-z0-9][\w.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)+",
        "myregistry.azurecr.io/train, without a tag",
    ),
}

_DEFAULTS = {"resource_group": "group", "workspace": "workspace", "location": "location"}
"""Our settings -> their names in `az configure --defaults`."""


def account(
    azure: AzureSection,
    settings: Settings,
    *,
    rehearsal: bool,
) -> tuple[AzureConfig, SettingsReader]:
    """Return the workspace's settings, and the reader with origins and missing settings."""
    reader = SettingsReader("azure", azure, settings, cli_default_account, rehearsal=rehearsal)
    subscription = reader.required("subscription", _SUBSCRIPTION)
    group = reader.required("resource_group", _RESOURCE_GROUP)
    workspace = reader.required("workspace", _WORKSPACE)
    location = reader.optional("location")
    compute = reader.optional("compute")
    config = AzureConfig(
        subscription=subscription,
        resource_group=group,
        workspace=workspace,
        location=re.sub(r"[\s-]", "", location or "").lower() or None,  # `East US` is `eastus`
        compute=(compute or "").removeprefix("azureml:") or compute,
        datastore=reader.optional("datastore") or "",
        repository=reader.optional("repository"),
        placeholders=tuple(reader.placeholders),
    )
    return config, reader


def image_repository(settings: Settings) -> str:
    """Return `azure.repository`, in any registry that the workspace may pull from."""
    return configured_repository(settings, "azure")


def format_issues(config: AzureConfig) -> Iterator[Issue]:
    """Yield issues with the format of the workspace's settings."""
    for name, (form, hint) in _FORMS.items():
        value = getattr(config, name)
        if value and not re.fullmatch(form, value):
            yield Issue(("azure", name), f"{value!r} is not a {name.replace('_', ' ')}", hint)


def workspace_of(settings: Settings) -> tuple[str, str, str]:
    """Return subscription, resource group and workspace, for commands that read no spec.

    Raise UsageError if one is missing or malformed.
    """
    config, reader = account(AzureSection(), settings, rehearsal=False)
    for issue in [*reader.problems, *format_issues(config)]:
        line = issue.at(reader.origins.get(issue.field, "")).line()
        raise UsageError(line, hint=issue.hint)

    return config.subscription, config.resource_group, config.workspace


def cli_default_account(environ: Mapping[str, str] = os.environ) -> dict[str, CliDefault]:
    """Return the settings of the Azure CLI with origins: variables first, then its files.

    As in "Azure CLI configuration" of Microsoft's documentation: defaults are in `~/.azure/config`,
    and `az account set` stores the subscription in `~/.azure/azureProfile.json`.
    """
    folder = Path(environ.get("AZURE_CONFIG_DIR") or "~/.azure").expanduser()
    defaults: dict[str, CliDefault] = {}
    for setting, name in _DEFAULTS.items():
        value = environment_value(environ, f"AZURE_DEFAULTS_{name.upper()}") or ini_value(
            folder / "config",
            "defaults",
            name,
        )
        defaults |= {setting: value} if value else {}

    subscription = _subscription(folder / "azureProfile.json")
    return defaults | ({"subscription": subscription} if subscription else {})


def _subscription(path: Path) -> CliDefault | None:
    try:
        document = json.loads(read_regular_text(path))
        chosen = next(item for item in document["subscriptions"] if item.get("isDefault"))
        return str(chosen["id"]), display_path(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None  # not logged in, or by other means: the setting is required


MAX_NODES = 100
"""Maximum nodes of a distributed job, by the limits in Microsoft's documentation."""

DEFAULT_INSTANCE = "Standard_DS3_v2"
"""Size for a job without GPUs whose spec names no machine size."""

PRICED_LOCATION = "eastus"
"""Location for prices if no workspace is configured."""

DEFAULT_MAX_RUNTIME_SECONDS = 86_400
"""Default limit; Azure ML itself would let a job run for weeks."""

UNUSED = ("resources.disk", "limits.max_wait", "limits.retries")


def target(settings: Settings, spec: JobSpec, *, rehearsal: bool = False) -> Target:
    """Return the target for `render`; missing or impossible settings are in its `problems`.

    Only the workspace knows which machines a cluster has, so that their price is unknown unless the
    spec names their size.
    """
    resources = spec.resources
    config, reader = account(spec.section(AzureSection), settings, rehearsal=rehearsal)
    problems = list(reader.problems)
    named = resources.instance.get("azure", ())
    of_cluster = config.compute and not named
    types, gpus, wrong = ((), resources.gpus or 0, []) if of_cluster else _select(resources, named)
    is_unknown = "azure.workspace" in config.placeholders
    location = config.location or (PRICED_LOCATION if is_unknown else "")
    image, wrong_image = image_of(
        spec.image, config, settings, gpu=gpus > 0, types=types,
        machine_args=fabric_args("azure", types, resources.nodes, gpus),
    )  # fmt: skip
    prices = regional_prices("azure", location, settings)

    estimate, wrong_limits = _estimate(prices, types, spec)
    if not location:
        wrong_limits = [
            replace(issue, hint=f"{issue.hint}; prices are known once azure.location is set")
            for issue in wrong_limits
        ]

    # A misspelt size also lacks a price, but the rules report that it is misspelt.
    skips_limits = rehearsal or wrong or any(not is_azure_size(name) for name in types)
    problems += wrong + wrong_image + [*prices.problems] + ([] if skips_limits else wrong_limits)
    return Target(
        provider="azure",
        contract="azureml",
        where=location or (f"the workspace {config.workspace}" if config.workspace else ""),
        max_nodes=MAX_NODES,
        grace_seconds=settings["azure.stop_grace"],
        unused=UNUSED,
        config=replace(
            config,
            prices=known_prices(prices, types[:1]),
            poll=settings["azure.poll"],
            unpaid=tuple(f"{issue.line()} ({issue.hint})" for issue in wrong_limits)
            if rehearsal
            else (),
        ),
        image=image,
        instances=types,
        tries_all_instances=False,
        cluster=config.compute or "",
        borrowed=reader.borrowed,
        origins={**reader.origins, "prices": settings.origins.get("prices", "")},
        gpus=gpus,
        cost_estimate=estimate,
        choice=None if wrong else machine_choice(settings, spec, types[:1], gpus, prices),
        problems=tuple(problems),
    )


def _estimate(
    prices: RegionalPrices, types: tuple[str, ...], spec: JobSpec
) -> tuple[CostEstimate, list[Issue]]:
    """Return the limits on the first machine, and the mistakes on each that a submit may try.

    One unknown price leaves the cost unknown.
    """
    estimates = []
    issues: list[Issue] = []
    unpriced = prices.unpriced(*types)
    for machine in (types[:1], *((name,) for name in types[1:])):
        estimate, wrong = estimate_cost(
            prices.price_of(*machine),
            spec.resources.nodes,
            spec.limits,
            default_seconds=DEFAULT_MAX_RUNTIME_SECONDS,
            grace_seconds=0,  # Azure ML ends a job at its time limit, and not later
            price_hint=prices.hint(*machine),
            unpriced=tuple(name for name in machine if name in unpriced),
        )
        estimates.append(estimate)
        issues += [issue for issue in wrong if issue not in issues]

    costs = [estimate.worst_usd for estimate in estimates[1:]]
    if None in costs:
        return replace(estimates[0], price=None, unpriced=unpriced), issues

    return replace(estimates[0], dearest_usd=max(filter(None, costs), default=0.0)), issues


def _select(
    resources: Resources, named: tuple[str, ...]
) -> tuple[tuple[str, ...], int, list[Issue]]:
    gpus = resources.gpus
    gpu = resources.gpu
    return select_instances(
        "azure",
        gpus=gpus,
        gpu=gpu,
        named=named,
        default=DEFAULT_INSTANCE,
    )


CURATED = "azureml:AzureML-acpt-pytorch-2.8-cuda12.6@latest"
"""Microsoft's own PyTorch environment, the meaning of `auto`.

The official cifar-distributed example runs in it.
"""
CURATED_TORCH = "2.8.0"
CURATED_PYTHON = "3.10"
CURATED_MORE = (
    "azureml-core azureml-mlflow mlflow mlflow-skinny tensorboard deepspeed onnx onnxruntime"
    " azure-identity"
)
"""Its packages besides the usual ones, by its documentation."""

# Compiled late: most plans need few of them.
_ASSET = r"azureml:[\w.-]+(:[\w.-]+|@[\w.-]+)"
_REGISTRY = r"azureml://registries/[\w.-]+/environments/[\w.-]+/(versions|labels)/[\w.-]+"
_DOCKER = r"[a-z0-9][\w.-]*(:\d+)?(/[a-z0-9][\w.-]*)*(:[\w.-]{1,128})?(@sha256:[0-9a-f]{64})?"


def image_of(
    image: str | Mapping[str, str], config: AzureConfig, settings: Settings, *, gpu: bool,
    types: Sequence[str] = (), machine_args: Sequence[str] = (),
) -> tuple[PlannedImage, list[Issue]]:  # fmt: skip
    """Return the image or environment as one text, and its problems.

    If `azure.repository` is set, `auto` is our own image, and a Dockerfile is built on this
    machine. Otherwise `auto` is Microsoft's own environment, and Azure ML itself builds `{build:
    Dockerfile}`, whose path is the address. `types`: the instance types it is for. `machine_args`: see `recipe_for`.
    """
    selected = select_image(image, "azure")
    platform = f"linux/{architecture_of('azure', types)}"
    if config.repository and (selected.is_build or selected.text == "auto"):
        recipe, wrong = recipe_for(
            selected,
            settings,
            gpu=gpu,
            platform=platform,
            machine_args=machine_args,
        )
        return planned_build(recipe, config.repository), wrong
    if selected.text != "auto":
        return PlannedImage(selected.text), []

    problems: list[Issue] = []
    arm = [name for name in types if architecture_of("azure", [name]) != "amd64"]
    if arm:
        hint = "azure.repository, for our image built for them; or your own image"
        message = f"Microsoft's environment is built for amd64, and {arm[0]} has ARM processors"
        problems.append(Issue(selected.path, message, hint))

    return (
        PlannedImage(CURATED, contents=usual_contents(CURATED_TORCH, CURATED_PYTHON, CURATED_MORE)),
        problems,
    )


def check_image_name(image: str | Mapping[str, str]) -> list[Issue]:
    """Return issues with the address or the name of an environment; empty for `auto` and builds."""
    selected = select_image(image, "azure")
    path, text = selected
    if selected.is_build or text == "auto":
        return []
    problem = _wrong(text)
    return [Issue(path, *problem)] if problem else []


def _wrong(image: str) -> tuple[str, str] | None:
    if image.startswith("dlc:"):
        hint = "one per provider: {aws: dlc:…, azure: auto}"
        return f"{image} is a container of AWS, which Azure ML cannot pull", hint
    if ".dkr.ecr." in image:
        hint = "one per provider: {aws: …, azure: myregistry.azurecr.io/train:1}"
        return f"{image} is in AWS's registry, where Azure ML cannot log in", hint
    if image.startswith("azureml:"):
        if re.fullmatch(f"{_ASSET}|{_REGISTRY}", image):
            return None
        hint = (
            "azureml:NAME:VERSION, azureml:NAME@latest or"
            " azureml://registries/…/environments/NAME/versions/VERSION"
        )
        return f"{image!r} does not name an environment", hint
    if not re.fullmatch(_DOCKER, image):
        return f"{image!r} is not an image address", "registry/name:tag, or azureml:NAME@latest"

    return None
