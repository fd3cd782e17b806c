"""Rules for a plan: what Azure ML enforces, perhaps only once the job is running, and security.

After the command job's YAML schema, the naming rules of Azure resources, and "Manage and increase
quotas and limits" (a job's longest life, sizes of tags) in Microsoft's documentation. The security
review follows PSRule's rules for Azure Machine Learning that depend on a job, not on the workspace
(Azure.ML.ComputeVnet, Azure.ML.UserManagedIdentity), and one of ours: ways into the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cloudtrain.catalog import model
from cloudtrain.catalog.machines import is_azure_size
from cloudtrain.errors import Issue, Keys
from cloudtrain.extras import install_command
from cloudtrain.planning.launch import TAG_PREFIX, JobDocument
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import RequestForm, reserved_issues, without_removed
from cloudtrain.providers.azure.account import format_issues
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.image import ASSET, check_image_name
from cloudtrain.providers.azure.request import (
    EARLY_TERMINATION,
    FORM,
    PYTORCH,
    SERVICES,
    as_variable,
    distribution_type,
    input_name,
    section_of,
)
from cloudtrain.providers.azure.sovereign import cloud_of, missing_variables
from cloudtrain.providers.azure.target import USUAL_NODES
from cloudtrain.providers.shared.plan_notes import (
    cloud_warnings,
    many_nodes,
    unreadable_checkpoints,
    unused_issues,
)
from cloudtrain.providers.shared.shapes import TableShape, violations
from cloudtrain.spec.yaml_document import mapping_of
from cloudtrain.units import exact_duration
from cloudtrain_wire.bounded_files import read_regular_text

SCHEMA = "azure_jobs.json"
COMMAND_JOB = "CommandJob"
SWEEP_JOB = "SweepJob"
"""Shapes of the table for what `azure.request` and `azure.sweep_request` set.

The SDK that sends a job checks it by the same keys and values, after all uploads.
"""

MAX_RUNTIME_SECONDS = 21 * 86_400
MAX_SPOT_SECONDS = 7 * 86_400
TAGS = 50
TAG_NAME_CHARACTERS = 100
TAG_CHARACTERS = 1000
OWN_TAGS = 12
"""Maximum number of tags from `cloudtrain.providers.shared.idempotent_create.tags`."""
JOB_BYTES = 100_000
"""Maximum size of the job document in its variable; Linux allows 128 KiB."""
BUILD_FILES = 100
BUILD_BYTES = 1_000_000
"""Limits of Azure ML for the folder of a Dockerfile."""

# Compiled late: most plans need few of them.
_DATASTORE = r"azureml://datastores/[a-zA-Z0-9_]+/paths/.*"
_LONG_PATH = r"azureml://subscriptions/[^/]+/resource[gG]roups/[^/]+/workspaces/[^/]+/datastores/.+"
_REGISTRY = r"azureml://registries/[^/]+/(data|models)/[^/]+/(versions|labels)/[^/]+/?"
_OUTPUT = r"azureml://jobs/[^/]+/outputs/[^/]+(/paths/.*)?"
_VAULT = r"[a-zA-Z][a-zA-Z0-9-]{2,23}|https://[a-zA-Z0-9.-]+(:\d+)?/secrets"
_KEYVAULT = rf"keyvault:({_VAULT})/[0-9a-zA-Z-]{{1,127}}(/[0-9a-f]{{32}})?(#.+)?"
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

_DISTRIBUTIONS = {
    PYTORCH: ("process_count_per_instance",),
    "mpi": ("process_count_per_instance",),
    "tensorflow": ("worker_count", "parameter_server_count"),
}
"""Types of distributions that a job can have -> their keys ("CLI (v2) command job YAML schema")."""

_NO_RAY = (
    "ray is not supported: the launcher starts the command on every node, and no Ray before it"
)
_RAY_IN_COMMAND = (
    "launcher: none, and a script that runs `ray start --head` where NODE_RANK is 0, and elsewhere"
    " `ray start --address=$MASTER_ADDR:6379`"
)
_OF_TYPE = (
    ("inputs", "mode", "eval_", "mltable"),
    ("services", "log_dir", "", "tensor_board"),
    ("services", "ssh_public_keys", "", "ssh"),
)
"""Section, key and begin of its value -> the only type that has it."""

_INTERACTIVE = ("ssh", "jupyter", "vscode")


def rule_issues(plan: Plan) -> list[Issue]:
    """Return broken rules of Azure ML, and problems with the files to upload. Imports no SDK."""
    broken: list[Issue] = []
    broken += format_issues(plan.target.config_as(AzureConfig))
    broken += check_image_name(plan.spec.image)
    broken += size_issues(plan.request.job)
    broken += _locations(plan)
    broken += _machines(plan)
    broken += _time(plan)
    broken += _services(plan)
    broken += _names(plan)
    broken += _uploads(plan)
    broken += _overrides(plan)
    broken += _distribution(plan)

    issues = [plan.located(issue) for issue in broken]
    issues += cloud_warnings(plan, _notes(plan))
    return issues


def _overrides(plan: Plan) -> Iterator[Issue]:
    """Yield errors for what `azure.request` cannot set."""
    request = section_of(plan).request
    yield from override_issues(request, FORM, COMMAND_JOB)
    for path, message, hint in _contradictions(without_removed(request), plan.request.document):
        yield Issue(("azure", "request", *path), message, hint)

    yield from unused_issues(plan, EARLY_TERMINATION, "sweep_request")


def _contradictions(
    request: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[tuple[Keys, str, str]]:
    """Yield members that do not fit the rest of the job: the path, a message and a hint."""
    if mapping_of(request, "identity") and document["identity"].get("type") != "managed":
        yield ("identity",), "is of a managed identity only", "azure.identity: managed"

    inputs = mapping_of(request, "inputs")
    for name in inputs:
        if mapping_of(inputs, name) and "path" not in document["inputs"][name]:
            yield ("inputs", name), "is no input of the job", "name its place under inputs"

    for section, key, begin, kind in _OF_TYPE:
        items = mapping_of(request, section)
        for name in items:
            value = str(mapping_of(items, name).get(key, ""))
            actual = mapping_of(mapping_of(document, section), name).get("type", "")
            if value and value.lower().startswith(begin) and str(actual).lower() != kind:
                yield (section, name, key), f"is for type: {kind} only", f"type: {kind}"


def _distribution(plan: Plan) -> Iterator[Issue]:
    """Yield issues with the spec's own distribution: each node must start one launcher."""
    azure = section_of(plan)
    if "distribution" not in azure.request:
        return

    at = ("azure", "request", "distribution")
    own_distribution = azure.request["distribution"]
    if not isinstance(own_distribution, Mapping):
        message = "is needed: without it Azure ML does not tell the nodes of each other"
        yield Issue(at, message, "tensorflow or mpi, with launcher: none")
        return

    kind = distribution_type(azure)
    if kind == "ray":
        yield Issue((*at, "type"), _NO_RAY, _RAY_IN_COMMAND)
        return
    if kind not in _DISTRIBUTIONS:  # the schema reports it
        return

    keys = ("type", *_DISTRIBUTIONS[kind])
    for key in own_distribution:
        if key not in keys:
            yield Issue((*at, key), f"is not a key of the distribution {kind}")

    if kind != PYTORCH and plan.spec.launcher != "none":
        message = f"{kind} cannot start the ranks of torchrun"
        yield Issue((*at, "type"), message, "launcher: none, which runs a command once per node")
    if kind == "mpi" and plan.is_rehearsal:
        message = "a rehearsal has no mpirun to start its nodes"
        yield Issue((*at, "type"), message, "submit it to a small cluster")
    if kind == "tensorflow" and plan.spec.launch.tf_config:
        message = "sets TF_CONFIG, and launch.tf_config too"
        yield Issue((*at, "type"), message, "keep one of them")

    yield from _processes(own_distribution, plan.spec.resources.nodes)


def _processes(own_distribution: Mapping[str, Any], nodes: int) -> Iterator[Issue]:
    """Yield issues with counts of processes other than one per node."""
    at = ("azure", "request", "distribution")
    processes = own_distribution.get("process_count_per_instance")
    if processes not in (None, 1):
        message = f"Azure ML would start {processes} launchers on each node"
        hint = "resources.processes; with launcher: none the command starts its own processes"
        yield Issue((*at, "process_count_per_instance"), message, hint)

    workers = own_distribution.get("worker_count")
    if own_distribution.get("parameter_server_count") not in (None, 0):
        message = "parameter servers are not supported: each node runs the command as a worker"
        hint = "0; or without distribution the command chooses a role by NODE_RANK"
        yield Issue((*at, "parameter_server_count"), message, hint)
    elif workers not in (None, nodes):
        message = f"is {workers}, and resources.nodes is {nodes}: each node is one worker"
        yield Issue((*at, "worker_count"), message, f"worker_count: {nodes}, or leave it out")


def override_issues(values: Mapping[str, Any], form: RequestForm, shape: str) -> Iterator[Issue]:
    """Yield errors for reserved keys of a document, and for what its schema refuses.

    `shape`: COMMAND_JOB or SWEEP_JOB.
    """
    reserved = list(reserved_issues(values, form))
    yield from reserved

    schema = TableShape.named(shape, model(SCHEMA)["shapes"])
    for violation in violations(schema, without_removed(values)):
        path: Keys = (form.section, form.field, *violation.path)
        if not any(_are_nested(path, issue.path) for issue in reserved):
            yield replace(violation, path=path, severity="error")


def _are_nested(path: Keys, second: Keys) -> bool:
    return all(key == other_key for key, other_key in zip(path, second, strict=False))


def sdk_issues(plan: Plan) -> list[Issue]:
    """Return errors if the SDK is not installed, or speaks to another cloud; none in a rehearsal."""
    if plan.is_rehearsal:
        return []
    if not _has_sdk():
        return [Issue((), "azure-ai-ml is not installed", install_command("azure"))]

    location = plan.target.config_as(AzureConfig).location or ""
    cloud = cloud_of(location)
    variables = missing_variables(cloud) if cloud else {}
    if cloud is None or not variables:
        return []

    message = f"{location} is in {cloud.name}, and this process would ask the public cloud"
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    return [plan.located(Issue(("azure", "location"), message, f"export {words}"))]


def size_issues(job: JobDocument) -> Iterator[Issue]:
    """Yield an issue if the job document is too large for its variable."""
    size = len(as_variable(job.to_json()).encode("utf-8", "replace"))
    if size > JOB_BYTES:
        message = f"{size} bytes are more than can be sent with a job ({JOB_BYTES})"
        yield Issue(("args",), message, "put long values into a file in the source folder")


def _notes(plan: Plan) -> Iterator[str]:
    """Yield notes on a valid plan: ignored machine types, an unknown price, a missing SDK."""
    types = plan.target.instances
    config = plan.target.config_as(AzureConfig)
    if len(types) > 1 and plan.spec.sweep is not None and plan.spec.sweep.engine == "native":
        yield f"a sweep job takes one machine type: {types[0]}; the others are not tried"
    elif len(types) > 1:
        further_types = ", then ".join(types[1:])
        reason = f"the cluster {config.compute} has other machines than"
        if not config.compute:
            reason = "quota or capacity refuses"
        yield f"if {reason} {types[0]}, submit plans and tries {further_types}"
    if plan.spec.resources.spot and config.compute:
        yield f"resources.spot changes nothing: the cluster {config.compute} has its own priority"

    estimate = plan.target.cost_estimate
    if estimate and estimate.price is None and not config.location:
        yield "azure.location is not set, and prices depend on it"


def _locations(plan: Plan) -> Iterator[Issue]:
    spec = plan.spec
    for name, item in spec.inputs.items():
        problem = _input_problem(item.on(plan.target.provider) or "", item.type or "")
        if problem:
            message, hint = problem
            yield Issue(("inputs", name), message, hint)

    uri = spec.checkpoints.uri
    if uri is not None and (
        not re.fullmatch(_DATASTORE, uri) or not _is_folder(uri.partition("/paths/")[2])
    ):
        hint = "azureml://datastores/NAME/paths/FOLDER/"
        yield Issue(("checkpoints", "uri"), f"{uri!r} is not a datastore path", hint)

    yield from unreadable_checkpoints(plan, "Azure ML", "azureml://")

    for name, stores in spec.secrets.items():
        stored = stores.get(plan.target.provider, "")
        cloud = cloud_of(plan.target.config_as(AzureConfig).location or "")
        if stored and not re.fullmatch(_KEYVAULT, stored):
            yield Issue(("secrets", name), "is not a Key Vault secret", "keyvault:VAULT/NAME")
        elif stored and cloud and "://" not in stored:
            message = f"names a vault of the public cloud, and the job runs in {cloud.name}"
            hint = f"keyvault:https://VAULT.{cloud.vaults}/secrets/NAME"
            yield Issue(("secrets", name), message, hint)


def _input_problem(location: str, kind: str) -> tuple[str, str] | None:
    """Return the problem with the place of an input, and a hint. `kind`: its `type`."""
    if location.startswith("azureml://"):
        if not re.fullmatch(f"{_DATASTORE}|{_LONG_PATH}|{_REGISTRY}|{_OUTPUT}", location):
            return f"{location} is not a datastore path", "azureml://datastores/NAME/paths/FOLDER/"
        if "/models/" in location and re.match(_REGISTRY, location) and "model" not in kind:
            return f"{location} is a model", "type: model, mlflow_model or triton_model"
    elif location.startswith("azureml:") and not re.fullmatch(ASSET, location):
        hint = "azureml:NAME:VERSION or azureml:NAME@latest"
        return f"{location} does not name a data asset", hint

    if "://" in location and ("?" in location or re.match(r"https?://[^/]*@", location, re.I)):
        return (
            "holds a password or a query, such as a signature; a plan holds no secret",
            "a datastore of the workspace keeps the key: azureml://datastores/NAME/paths/…",
        )

    return None


def _is_folder(path: str) -> bool:
    parts = path.strip("/").split("/")
    return {"", ".", ".."}.isdisjoint(parts)


def _machines(plan: Plan) -> Iterator[Issue]:
    yield from many_nodes(plan, USUAL_NODES, "Azure's support raises the limit")
    resources = plan.spec.resources
    named = resources.instance.get(plan.target.provider, ())
    for index, name in enumerate(named):
        path: Keys = ("resources", "instance", plan.target.provider)
        if len(named) > 1:
            path = (*path, index)
        if not is_azure_size(name):
            message = f"{name!r} is not an Azure VM size"
            hint = "such as Standard_NC24ads_A100_v4"
            if plan.target.config_as(AzureConfig).compute:
                hint += "; instance types of Kubernetes clusters are not supported"
            yield Issue(path, message, hint)
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
        machines = "spot machines" if spot else "a job"
        yield Issue(
            tuple(cap.split(".")),
            f"{exact_duration(estimate.max_seconds)} is longer than Azure ML runs {machines}",
            f"{days} at most",
        )


def _services(plan: Plan) -> Iterator[Issue]:
    azure = section_of(plan)
    for name in azure.services:
        if name not in SERVICES:
            message = f"there is no service {name!r}"
            yield Issue(("azure", "services"), message, f"known: {', '.join(SERVICES)}")

    key = azure.ssh_key
    if "ssh" in azure.services and not key:
        yield Issue(
            ("azure", "services"),
            "ssh needs your public key",
            "azure.ssh_key: the content of ~/.ssh/id_ed25519.pub",
        )

    if key and not re.fullmatch(_PUBLIC_KEY, key.strip()):
        hint = "one line that begins with ssh-ed25519 or ssh-rsa"
        yield Issue(("azure", "ssh_key"), "is not a public key", hint)


def _names(plan: Plan) -> Iterator[Issue]:
    spec = plan.spec
    for name in spec.inputs:
        if input_name(name).lower().partition("_")[0] == "cloudtrain":
            message = "names that begin with cloudtrain are reserved"
            yield Issue(("inputs", name), message, "choose another name")

    for name in spec.env:
        yield from _reserved_variable("env", name)
    for name in spec.secrets:
        yield from _reserved_variable("secrets", name)
    if len(spec.tags) > TAGS - OWN_TAGS:
        yield Issue(("tags",), f"{len(spec.tags)} are more than a job can have: {TAGS - OWN_TAGS}")
    for key, value in spec.tags.items():
        path = ("tags", key)
        if key.startswith(TAG_PREFIX):
            message = f"names that begin with {TAG_PREFIX} are reserved"
            yield Issue(path, message, "choose another name")
        if not 1 <= len(key) <= TAG_NAME_CHARACTERS:
            message = f"a tag's name has 1 to {TAG_NAME_CHARACTERS} characters, this one {len(key)}"
            yield Issue(path, message)
        if len(value) > TAG_CHARACTERS:
            message = f"a tag has at most {TAG_CHARACTERS} characters, this one {len(value)}"
            yield Issue(path, message)


def _reserved_variable(section: str, name: str) -> Iterator[Issue]:
    if name in _SET_BY_AZURE or re.fullmatch(_RESERVED, name, re.IGNORECASE):
        yield Issue((section, name), "is reserved by Azure ML", "choose another name")


def _uploads(plan: Plan) -> Iterator[Issue]:
    """Yield problems with the Dockerfile and the conda file: missing, empty or too large."""
    document = plan.request.document
    environment = document.get("environment")
    if isinstance(environment, dict) and "build" in environment:
        build = environment["build"]
        yield from _build_issues(Path(build["path"]), build["dockerfile_path"])
    if section_of(plan).conda is not None:
        yield from _conda_issues(environment)


def _conda_issues(environment: Any) -> Iterator[Issue]:
    path = ("azure", "conda")
    conda = None
    if isinstance(environment, dict):
        conda = environment.get("conda_file")

    if conda is None:
        message = "needs an image by its address, not an environment or a Dockerfile"
        yield Issue(path, message, "image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04")
    elif not Path(conda).is_file():
        yield Issue(path, f"no such file: {conda}")
    else:
        with suppress(OSError, ValueError):
            text = read_regular_text(conda)
            if match := re.search(r"\bpython\s*[=~<]=?\s*(3\.\d)(?!\d)", text):
                yield Issue(path, f"asks for Python {match[1]}; a job needs 3.10 or newer")


def _build_issues(folder: Path, file_path: str) -> Iterator[Issue]:
    """Yield why Azure ML cannot build this Dockerfile, within `BUILD_FILES` and `BUILD_BYTES`."""
    path = ("image", "build")
    dockerfile = Path(folder, file_path)
    if file_path.startswith("../"):
        message = f"{dockerfile.resolve()} is outside image.context, and Azure ML gets only that"
        yield Issue(
            path, message, "move it there; or azure.repository, for a build on this machine"
        )
        return
    if not dockerfile.is_file():
        yield Issue(path, f"no such file: {dockerfile}")
        return

    size = 0
    files = (file for file in folder.rglob("*") if file.is_file())
    for count, file in enumerate(files, 1):
        size += file.stat().st_size
        if count > BUILD_FILES or size > BUILD_BYTES:  # it may be the folder of a large project
            message = (
                f"{folder} holds more than Azure ML builds from: {BUILD_FILES} files of 1 MB in all"
            )
            hint = "a folder of its own for the Dockerfile, or build and push the image yourself"
            yield Issue(path, message, hint)
            return


def _has_sdk() -> bool:
    """Return True if azure-ai-ml is installed, without importing it or its packages."""
    azure = find_spec("azure")
    if azure is None:
        return False

    folders = azure.submodule_search_locations or ()
    return any(Path(folder, "ai", "ml").is_dir() for folder in folders)


def security_findings(plan: Plan) -> Iterator[Issue]:
    """Yield an issue for each rule that the job breaks, with the path of its field."""
    if not plan.target.config_as(AzureConfig).compute:
        message = (
            "is not set: serverless machines run outside your network, unless the workspace has a"
            " managed one"
        )
        yield Issue(("azure", "compute"), message, "a cluster in your network, by its name")

    # a job with secrets has the managed identity
    if not section_of(plan).identity and not plan.spec.secrets:
        message = (
            "is not set: the job reads and writes with the workspace's keys, or with your own"
            " rights"
        )
        yield Issue(
            ("azure", "identity"),
            message,
            "azure.identity: managed, an identity with only the rights that it needs",
        )
    elif section_of(plan).identity != "user" and not plan.target.config_as(AzureConfig).compute:
        message = (
            "is not set: a serverless job acts as the workspace itself, which may read all of its"
            " key vault"
        )
        yield Issue(("azure", "compute"), message, "a cluster, which has its own identity")

    services = [name for name in section_of(plan).services if name in _INTERACTIVE]
    if services:
        message = (
            f"{', '.join(services)} opens a way into the running job, with all that its identity"
            " may do"
        )
        yield Issue(("azure", "services"), message, "leave it out once the job runs")
