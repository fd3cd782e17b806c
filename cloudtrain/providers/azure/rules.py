"""Rules for a plan that Azure ML enforces, perhaps only once the job is running. Pure.

After the command job's YAML schema, the naming rules of Azure resources, and "Manage and increase
quotas and limits" (a job's longest life, sizes of tags) in Microsoft's documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.catalog.type_names import is_azure_size
from cloudtrain.issues import Issue
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.azure.account import format_issues
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.image import check_image_name
from cloudtrain.providers.azure.request import SERVICES, as_variable, input_name, is_address
from cloudtrain.providers.azure.section import AzureSection
from cloudtrain.providers.shared.tags import TAG_PREFIX
from cloudtrain.units import exact_duration

MAX_RUNTIME_SECONDS = 21 * 86_400
MAX_SPOT_SECONDS = 7 * 86_400
TAGS = 50
TAG_NAME_CHARACTERS = 100
TAG_CHARACTERS = 1000
OWN_TAGS = 11
"""Maximum number of tags from `cloudtrain.providers.shared.tags.tags`."""
JOB_BYTES = 100_000
"""Maximum size of the job document in its variable; Linux allows 128 KiB."""

# Compiled late: most plans need few of them.
_DATASTORE = r"azureml://datastores/[a-zA-Z0-9_]+/paths/.*"
_LONG_PATH = r"azureml://subscriptions/[^/]+/resource[gG]roups/[^/]+/workspaces/[^/]+/datastores/.+"
_REGISTRY = r"azureml://registries/[^/]+/data/[^/]+/(versions|labels)/[^/]+/?"
_ASSET = r"azureml:[\w.-]+(:[\w.-]+|@[\w.-]+)"
_VAULT = r"[a-zA-Z][a-zA-Z0-9-]{2,23}|https://[a-zA-Z0-9.-]+(:\d+)?/secrets"
_KEYVAULT = rf"keyvault:({_VAULT})/[0-9a-zA-Z-]{{1,127}}(/[0-9a-f]{{32}})?(#.+)?"
_INSTANCE_TYPE = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
"""Name of an instance type of Kubernetes compute, by the naming rules of Kubernetes."""
_PUBLIC_KEY = r"(ssh-(rsa|ed25519)|ecdsa-sha2-\S+) \S+( .*)?"
_RESERVED = (
    r"AZUREML_((ROOT_)?RUN_\w+|ARM_\w+|EXPERIMENT_\w+|WORKSPACE_\w+|(\w+_)?(SERVICE_)?ENDPOINT|PARAMETER_\w+"
    r"|SWEEP_\w+|DATAREFERENCE_\w+|NODE_COUNT|PROCESS_NAME|CR_NODE_RANK)|AZURE_ML_(INPUT|OUTPUT)_\w+"
)
"""Variables that the service sets: the run, the workspace and the inputs.

Other AZUREML_ variables are options of Microsoft's runtime and libraries, and may be set: the
example deepspeed-training of azureml-examples sets three.
"""
_SET_BY_AZURE = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "NODE_RANK",
    "RANK",
    "LOCAL_RANK",
    "MSI_ENDPOINT",
    "MSI_SECRET",
}


def broken_rules(plan: Plan) -> list[Issue]:
    """Return an error for each rule that the plan breaks, with the path of its field."""
    issues = [
        *format_issues(plan.target.config_as(AzureConfig)),
        *check_image_name(plan.spec.image),
        *_size(plan),
    ]
    return [
        *issues,
        *_locations(plan),
        *_machines(plan),
        *_time(plan),
        *_services(plan),
        *_names(plan),
    ]


def notes(plan: Plan) -> list[str]:
    """Return notes on a valid plan: ignored machine types, low priority, an unknown price."""
    resources = plan.spec.resources
    types = plan.target.instances
    messages = []
    config = plan.target.config_as(AzureConfig)
    if len(types) > 1 and not config.compute:
        messages.append(f"Azure ML takes one machine type: {types[0]}; the others are not tried")
    if resources.spot and config.compute:
        messages.append(
            f"whether the machines of {config.compute} are low-priority is a setting of the cluster"
        )
    if (
        plan.target.cost_estimate
        and plan.target.cost_estimate.price is None
        and not config.location
    ):
        messages.append("azure.location is not set, and prices depend on it")
    elif not plan.is_rehearsal and "azure.workspace" in config.placeholders and not config.location:
        messages.append(f"azure.location is not set: the price is that of {plan.target.where}")
    return messages


def _locations(plan: Plan) -> Iterator[Issue]:
    spec = plan.spec
    for name, item in spec.inputs.items():
        location = item.on(plan.target.provider) or ""
        path = ("inputs", name)
        if location.startswith("azureml://") and not re.fullmatch(
            f"{_DATASTORE}|{_LONG_PATH}|{_REGISTRY}", location
        ):
            yield Issue(
                path,
                f"{location} is not a datastore path",
                "azureml://datastores/NAME/paths/FOLDER/",
            )
        elif (
            location.startswith("azureml:")
            and "://" not in location
            and not re.fullmatch(_ASSET, location)
        ):
            yield Issue(
                path,
                f"{location} does not name a data asset",
                "azureml:NAME:VERSION or azureml:NAME@latest",
            )
        elif "://" in location and (
            "?" in location or re.match(r"https://[^/]*@", location, re.IGNORECASE)
        ):
            hint = "a datastore of the workspace keeps the key: azureml://datastores/NAME/paths/…"
            yield Issue(
                path,
                "holds a password or a query, such as a signature; a plan holds no secret",
                hint,
            )
        elif item.mode == "stream" and not is_address(location):
            yield Issue(
                path,
                f"{location} is uploaded first, and cannot be streamed from this machine",
                "mode: copy",
            )
    uri = spec.checkpoints.uri
    if uri is not None and (
        not re.fullmatch(_DATASTORE, uri) or not _is_folder(uri.partition("/paths/")[2])
    ):
        hint = "azureml://datastores/NAME/paths/FOLDER/"
        yield Issue(("checkpoints", "uri"), f"{uri!r} is not a datastore path", hint)
    resume = plan.context.resume_from
    if resume and not resume.startswith("azureml://") and not plan.is_rehearsal:
        hint = f"start without them: cloudtrain rerun {plan.context.resume_run} --fresh"
        yield Issue(
            (), f"the earlier run's checkpoints are where Azure ML cannot read them: {resume}", hint
        )
    for name, stores in spec.secrets.items():
        stored = stores.get(plan.target.provider, "")
        if stored and not re.fullmatch(_KEYVAULT, stored):
            yield Issue(("secrets", name), "is not a Key Vault secret", "keyvault:VAULT/NAME")


def _is_folder(path: str) -> bool:
    parts = path.strip("/").split("/")
    return {"", ".", ".."}.isdisjoint(parts)


def _machines(plan: Plan) -> Iterator[Issue]:
    resources = plan.spec.resources
    azure = plan.spec.section(AzureSection)
    compute = plan.target.config_as(AzureConfig).compute
    named = resources.instance.get(plan.target.provider, ())
    for index, name in enumerate(named):
        path = (
            "resources",
            "instance",
            plan.target.provider,
            *((index,) if len(named) > 1 else ()),
        )
        if compute and not is_azure_size(name):
            if not re.fullmatch(_INSTANCE_TYPE, name):
                hint = (
                    "such as Standard_NC24ads_A100_v4; on Kubernetes one of kubectl get"
                    " instancetypes"
                )
                yield Issue(
                    path,
                    f"{name!r} is neither a machine size of Azure nor an instance type of"
                    " Kubernetes",
                    hint,
                )
        elif not is_azure_size(name):
            hint = (
                "such as Standard_NC24ads_A100_v4; an instance type of Kubernetes goes with"
                " azure.compute"
            )
            yield Issue(path, f"{name!r} is not an Azure VM size", hint)
    if azure.tier and compute:
        yield Issue(
            ("azure", "tier"),
            "is a queue of serverless machines, but azure.compute names a cluster",
            "leave one out",
        )
    if azure.tier and resources.spot:
        yield Issue(
            ("azure", "tier"),
            "cannot be combined with resources.spot, which is a tier of its own",
            "leave one of them out",
        )
    if resources.shm and resources.shm < 2**20:
        yield Issue(("resources", "shm"), "is less than a MiB", "such as 16 GiB")


def _time(plan: Plan) -> Iterator[Issue]:
    estimate = plan.target.cost_estimate
    if estimate is None:
        return
    spot = plan.spec.resources.spot
    longest = MAX_SPOT_SECONDS if spot else MAX_RUNTIME_SECONDS
    if estimate.max_seconds > longest:
        cap = estimate.cap or "limits.max_runtime"
        days = f"{longest // 86_400} d"
        machines = "low-priority machines" if spot else "a job"
        yield Issue(
            tuple(cap.split(".")),
            f"{exact_duration(estimate.max_seconds)} is longer than Azure ML runs {machines}",
            f"{days} at most",
        )


def _services(plan: Plan) -> Iterator[Issue]:
    azure = plan.spec.section(AzureSection)
    unknown = [name for name in azure.services if name not in SERVICES]
    if unknown:
        yield Issue(
            ("azure", "services"),
            f"there is no service {unknown[0]!r}",
            f"known: {', '.join(SERVICES)}",
        )
    key = azure.ssh_key
    if "ssh" in azure.services and not key:
        yield Issue(
            ("azure", "services"),
            "ssh needs your public key",
            "azure.ssh_key: the content of ~/.ssh/id_ed25519.pub",
        )
    if key and "ssh" not in azure.services:
        yield Issue(
            ("azure", "ssh_key"), "has no effect without the service ssh", "azure.services: [ssh]"
        )
    if key and not re.fullmatch(_PUBLIC_KEY, key.strip()):
        yield Issue(
            ("azure", "ssh_key"),
            "is not a public key",
            "one line that begins with ssh-ed25519 or ssh-rsa",
        )


def _names(plan: Plan) -> Iterator[Issue]:
    spec = plan.spec
    for name in spec.inputs:
        if input_name(name).lower().partition("_")[0] == "cloudtrain":
            yield Issue(
                ("inputs", name),
                "names that begin with cloudtrain are reserved",
                "choose another name",
            )
    for section, name in [
        *(("env", name) for name in spec.env),
        *(("secrets", name) for name in spec.secrets),
    ]:
        if name in _SET_BY_AZURE or re.fullmatch(_RESERVED, name, re.IGNORECASE):
            yield Issue((section, name), "is reserved by Azure ML", "choose another name")
    if len(spec.tags) > TAGS - OWN_TAGS:
        message = (
            f"{len(spec.tags)} tags and up to {OWN_TAGS} set by cloudtrain are more than a job can"
            f" have: {TAGS}"
        )
        yield Issue(("tags",), message)
    for key, value in spec.tags.items():
        if key.startswith(TAG_PREFIX):
            yield Issue(
                ("tags", key),
                f"names that begin with {TAG_PREFIX} are reserved",
                "choose another name",
            )
        if len(key) > TAG_NAME_CHARACTERS or not key:
            yield Issue(
                ("tags", key),
                f"a tag's name has 1 to {TAG_NAME_CHARACTERS} characters, this one {len(key)}",
            )
        if len(value) > TAG_CHARACTERS:
            yield Issue(
                ("tags", key),
                f"a tag has at most {TAG_CHARACTERS} characters, this one {len(value)}",
            )


def _size(plan: Plan) -> Iterator[Issue]:
    size = len(as_variable(plan.request.job.to_json()).encode("utf-8", "replace"))
    if size > JOB_BYTES:
        hint = "put long values into a file in the source folder"
        yield Issue(
            ("args",), f"{size} bytes are more than can be sent with a job ({JOB_BYTES})", hint
        )
