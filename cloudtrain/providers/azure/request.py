"""Turn a plan into the command-job document of Azure ML, with the job document. Pure."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError
from cloudtrain.file_names import relative_name
from cloudtrain.planning.launch import TAG_PREFIX, JobDocument, Request, job_document
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import RequestForm, merge_request
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.protocol import Export
from cloudtrain.providers.shared.idempotent_create import tags
from cloudtrain.providers.shared.paths import ARCHIVE, PREFIX, as_folder, input_file
from cloudtrain.providers.shared.uploads import upload_uri
from cloudtrain.runs.files import as_text

if TYPE_CHECKING:  # watching a run does not need pydantic
    from cloudtrain.planning.registry import ResolvedImage
    from cloudtrain.providers.azure.section import AzureSection

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"

RESUME = "cloudtrain_resume"
"""Name of the input with the checkpoints of an earlier run."""

OUTPUTS = {
    "output": "CLOUDTRAIN_OUTPUT_DIR",
    "model": "CLOUDTRAIN_MODEL_DIR",
    "checkpoints": "CLOUDTRAIN_CHECKPOINT_DIR",
}
"""Output -> variable with its path for the launcher."""

STORING_SECONDS = 60
"""Seconds, besides the grace period, between a job's own end and its time limit.

Azure ML ends a job at its time limit without a signal. The job stops earlier by itself, so that its
last checkpoint can be stored.
"""

BOOTSTRAP = (
    "import os,sys,tarfile as"
    f" t;x=t.open('{ARCHIVE}');x.extraction_filter=getattr(t,'data_filter',None);"
    "x.extractall('code');os.chdir('code');os.execl(*[sys.executable]*2,'-u','.cloudtrain')"
)
"""Extracts the source and becomes the launcher."""

_MOUNTS = {"DATASET_MOUNT_ATTRIBUTE_CACHE_TTL": "1000"}
"""Milliseconds until a mount looks at a file again ("Access data in a job").

By default mounts cache a file, or its absence, for ever, and would miss the files of other nodes
and the request to stop.
"""

_MODES = {"copy": "download", "stream": "ro_mount"}
_TYPES = {
    "file": "uri_file",
    "folder": "uri_folder",
    "table": "mltable",
    "model": "custom_model",
    "mlflow_model": "mlflow_model",
    "triton_model": "triton_model",
}
SERVICES: dict[str, dict[str, str]] = {
    "ssh": {"type": "ssh", "nodes": "all"},
    "jupyter": {"type": "jupyter_lab"},
    "vscode": {"type": "vs_code"},
    # The folder that jobs find in CLOUDTRAIN_TENSORBOARD_DIR.
    "tensorboard": {"type": "tensor_board", "log_dir": "kept/output/tensorboard"},
}
_IDENTITIES = {"managed": "managed", "user": "user_identity"}

PYTORCH = "pytorch"
"""Azure's distribution that tells each node its rank, as our launcher needs."""

EARLY_TERMINATION = "early_termination"
"""Key of a sweep job with the rule that ends bad trials."""

VIRTUAL_CLUSTER = (
    "virtual clusters choose machines by tiers and instance types, which no field has",
    "azure.compute: the name of a compute cluster; or serverless machines",
)
_VIRTUAL_CLUSTERS = ("AISuperComputer", "singularity")
"""Properties of resources that send a job to a virtual cluster."""

FORM = RequestForm(
    section="azure",
    list_keys={},
    reserved={
        "$schema": "it describes a command job",
        "type": "it is a command job",
        "name": "use name, or submit --run-id",
        "code": "use the source folder",
        "command": "use entrypoint and args",
        "environment": "use image",
        "compute": "use azure.compute",
        "limits": "use limits.max_runtime, which caps the cost",
        "identity.type": "use azure.identity",
        "queue_settings.job_tier": "use resources.spot; no field has the tiers of virtual clusters",
        "resources.instance_count": "use resources.nodes",
        "resources.instance_type": "use resources.instance",
        "resources.shm_size": "use resources.shm",
        EARLY_TERMINATION: "use azure.early_termination",
        "environment_variables.CLOUDTRAIN_*": "choose another name",
        "inputs.*.path": "use inputs; numbers and texts belong in args",
        "outputs.output.path": "fetch reads it",
        "outputs.model.path": "fetch reads it",
        "outputs.checkpoints.path": "fetch reads it",
        "outputs.output.mode": "fetch reads it",
        "outputs.model.mode": "fetch reads it",
        "outputs.checkpoints.mode": "fetch reads it",
        f"tags.{TAG_PREFIX}*": "choose another name",
        f"properties.{TAG_PREFIX}*": "choose another name",
    },
    unsupported={f"resources.properties.{name}": VIRTUAL_CLUSTER for name in _VIRTUAL_CLUSTERS},
)
"""Keys of the command job that `azure.request` may not set, since a field of job.yaml does."""

_TOPOLOGIES = {r"standard_nd.*_v4": "ndv4", r"standard_nd96is.*_h[12]00_v5": "ndv5"}
"""Sizes -> name of their topology file. Source: Azure/azhpc-images, setup_sku_customizations.sh."""


def run_uri(datastore: str, run_id: str) -> str:
    """Return the datastore URI of all parts of a run, without a slash at the end."""
    return f"azureml://datastores/{datastore}/paths/{PREFIX}/runs/{run_id}"


def code_folder(data_dir: str, digest: str) -> str:
    """Return the folder of the job's code in the request. A submit sends another one."""
    return str(PurePosixPath(data_dir) / "sources" / digest)


def render(plan: Plan, image: ResolvedImage | None = None) -> Request:
    """Return the command-job document as plain JSON, and the job document in it."""
    return request_with(job_of(plan), plan, image)


def request_with(job: JobDocument, plan: Plan, image: ResolvedImage | None = None) -> Request:
    """Return the request for a plan whose nodes read this job document."""
    document = merge_request(document_of(plan, job, image), section_of(plan).request, FORM)
    return Request(provider="azure", document=document, job=job)


def document_of(plan: Plan, job: JobDocument, image: ResolvedImage | None = None) -> dict[str, Any]:
    """Return a command-job document for `az ml job create -f`.

    `image`: the image that was built or looked up; None: the planned address.
    """
    spec = plan.spec
    config = plan.target.config_as(AzureConfig)
    azure = section_of(plan)
    inputs = _inputs(plan)
    address = image.address if image else plan.target.image_address
    conda = None
    if azure.conda:
        conda = _local(plan, azure.conda)

    document: dict[str, Any] = {
        "$schema": SCHEMA,
        "type": "command",
        "name": plan.run_id,
        "display_name": azure.display_name or spec.name,
        "experiment_name": azure.experiment or spec.name,
        "code": code_folder(plan.context.data_dir, plan.context.source.digest),
        "command": command_of(list(inputs), more_outputs(azure)),
        "environment": environment_of(address, _build(plan), conda),
        "resources": _resources(plan),
        **_distribution(azure),
        "inputs": inputs,
        "outputs": _outputs(plan),
        "environment_variables": _environment_variables(plan, job),
        "limits": {"timeout": _max_seconds(plan)},
        "tags": tags(plan, address),
        "properties": _properties(plan),
    }
    if azure.description:
        document["description"] = azure.description
    if config.compute:
        document["compute"] = f"azureml:{config.compute}"
    elif spec.resources.spot:  # a cluster has its own priority
        document["queue_settings"] = {"job_tier": "spot"}
    if azure.identity or spec.secrets:
        document["identity"] = {"type": _IDENTITIES[azure.identity or "managed"]}
    if azure.services:
        document["services"] = {name: _service(name, azure.ssh_key) for name in azure.services}

    return document


def _distribution(azure: AzureSection) -> dict[str, Any]:
    """Return one process per node, our launcher; without it each node would train on its own.

    Another distribution of the spec takes its place as a whole.
    """
    if distribution_type(azure) not in ("", PYTORCH):
        return {}

    return {"distribution": {"type": PYTORCH, "process_count_per_instance": 1}}


def distribution_type(azure: AzureSection) -> str:
    """Return the type of the spec's own distribution in small letters; empty without one."""
    own_distribution = azure.request.get("distribution")
    if not isinstance(own_distribution, Mapping):
        return ""

    return str(own_distribution.get("type", PYTORCH)).lower()


def environment_of(
    image: str, build: tuple[str, str] | None, conda: str | None = None
) -> str | dict[str, object]:
    """Return a command job's `environment`.

    `build`: a Dockerfile's folder, and its path there. `conda`: path of a conda file.
    """
    if build is not None:
        return {"build": {"path": build[0], "dockerfile_path": build[1]}}
    if image.startswith("azureml:"):
        return image

    if conda:
        return {"image": image, "conda_file": conda}

    return {"image": image}


def _environment_variables(plan: Plan, job: JobDocument) -> dict[str, str]:
    variables = {**_MOUNTS}
    variables.update(_topology(plan))
    variables.update(plan.spec.env)
    variables["CLOUDTRAIN_PLATFORM"] = "azureml"
    variables["CLOUDTRAIN_JOB"] = as_variable(job.to_json())
    return variables


def _topology(plan: Plan) -> dict[str, str]:
    """Return the variable of NCCL for our image's topology file of these machines, if any."""
    recipe = plan.target.image.recipe if plan.target.image else None
    if recipe is None or "WITH_TOPOLOGY=1" not in recipe.args:
        return {}

    size = next(iter(plan.target.instances), "")
    for pattern, name in _TOPOLOGIES.items():
        if re.fullmatch(pattern, size.lower()):
            return {"NCCL_TOPO_FILE": f"/opt/microsoft/{name}-topo.xml"}

    return {}


def section_of(plan: Plan) -> AzureSection:
    """Return the spec's section `azure`."""
    from cloudtrain.providers.azure.section import AzureSection

    return plan.spec.section(AzureSection)


def job_of(plan: Plan) -> JobDocument:
    """Return the job document, with the stores of secrets and the time to stop."""
    seconds = _max_seconds(plan)
    margin = plan.target.grace_seconds + STORING_SECONDS
    return replace(
        job_document(plan),
        stop_after_seconds=seconds - min(margin, seconds // 5),
        secrets=plan.secrets,
    )


def _max_seconds(plan: Plan) -> int:
    estimate = plan.target.cost_estimate
    return estimate.max_seconds if estimate else 0


def input_name(name: str) -> str:
    """Return an input's name for Azure ML; a spec cannot have two that differ only in this."""
    return name.replace("-", "_")


def input_uri(plan: Plan, name: str) -> str:
    """Return the URI of an input, or the name of a registered one."""
    if name in plan.context.uploads:
        return upload_uri(plan, plan.context.uploads[name])

    item = plan.spec.inputs[name]
    location = plan.inputs[name]
    if "://" in location and not location.startswith("azureml://registries/"):
        if input_file(item, location) or item.type in ("model", "triton_model"):
            return location
        return as_folder(location)

    return location


def more_outputs(azure: AzureSection) -> dict[str, str]:
    """Return the outputs that the section adds, with the variable for the path of each."""
    added: dict[str, Any] = dict(azure.outputs)
    outputs = azure.request.get("outputs")
    if isinstance(outputs, Mapping):
        added.update(outputs)

    variables = {}
    for name, item in added.items():
        if name not in OUTPUTS and item is not None:
            variables[name] = f"AZURE_ML_OUTPUT_{name}"

    return variables


def command_of(inputs: list[str], outputs: Mapping[str, str], more: str = "") -> str:
    """Return a shell command that exports paths and replaces itself by the launcher.

    Only a node knows the paths. `outputs`: besides ours. `more`: assignments of further variables,
    with a space before each.
    """
    paths = OUTPUTS | dict(outputs)
    variables = {name: f"${{{{outputs.{output}}}}}" for output, name in paths.items()}
    for name in inputs:
        variable = f"CLOUDTRAIN_INPUT_{name.upper()}"
        if name == RESUME:
            variable = "CLOUDTRAIN_RESUME_DIR"
        variables[variable] = f"${{{{inputs.{name}}}}}"

    # Double quotes suit both a path and, in rehearsals, a variable of the shell.
    exports = " ".join(f'{name}="{value}"' for name, value in variables.items())
    return f'export {exports}{more} && exec python3 -u -c "{BOOTSTRAP}"'


def _inputs(plan: Plan) -> dict[str, Any]:
    inputs = {}
    for name, item in plan.spec.inputs.items():
        uri = input_uri(plan, name)
        is_file = bool(input_file(item, uri))
        if name in plan.context.uploads:
            is_file = bool(plan.context.uploads[name].file)

        kind = item.type or ("file" if is_file else "folder")
        inputs[input_name(name)] = {"type": _TYPES[kind], "path": uri, "mode": _MODES[item.mode]}

    earlier = plan.context.resume_from
    if earlier and plan.is_rehearsal:  # in a datastore it would be beside this run's own
        datastore = plan.target.config_as(AzureConfig).datastore
        earlier = f"{run_uri(datastore, plan.context.resume_run)}/checkpoints"
    if earlier and as_folder(earlier) != _checkpoints(plan):
        inputs[RESUME] = {"type": "uri_folder", "path": as_folder(earlier), "mode": "ro_mount"}

    return inputs


def _outputs(plan: Plan) -> dict[str, Any]:
    uri = run_uri(plan.target.config_as(AzureConfig).datastore, plan.run_id)
    outputs: dict[str, Any] = {}
    for name in OUTPUTS:
        path = f"{uri}/{name}/"
        if name == "checkpoints":
            path = _checkpoints(plan)
        outputs[name] = {"type": "uri_folder", "path": path, "mode": "rw_mount"}

    for name, output in section_of(plan).outputs.items():
        outputs[name] = outputs.get(name, {}) | output.model_dump(exclude_none=True)

    return outputs


def _checkpoints(plan: Plan) -> str:
    uri = run_uri(plan.target.config_as(AzureConfig).datastore, plan.run_id)
    return as_folder(plan.spec.checkpoints.uri or f"{uri}/checkpoints")


def _properties(plan: Plan) -> dict[str, str]:
    """Return properties, which are immutable, unlike tags: the submission and the commit.

    Without a commit the SDK would add git facts of the current folder, among them the URL of its
    remote.
    """
    commit = plan.context.git_commit or "unknown"
    return {"cloudtrain-planned": f"{plan.context.time:.3f}", "mlflow.source.git.commit": commit}


def _resources(plan: Plan) -> dict[str, Any]:
    resources = plan.spec.resources
    document: dict[str, Any] = {"instance_count": resources.nodes}
    if not plan.target.config_as(AzureConfig).compute:
        document["instance_type"] = plan.target.instances[0]
    if resources.shm:
        document["shm_size"] = f"{max(1, -(-resources.shm // 2**20))}m"
    if arguments := section_of(plan).docker_args:
        document["docker_args"] = arguments
    return document


def _build(plan: Plan) -> tuple[str, str] | None:
    """Return the folder of Azure ML's build and the Dockerfile's path in it, or None."""
    image = plan.spec.image
    recipe = plan.target.image and plan.target.image.recipe
    if isinstance(image, str) or "build" not in image or recipe:
        return None

    path = PurePath(_local(plan, image["build"]))
    folder = path.parent
    if context := image.get("context"):
        folder = PurePath(_local(plan, context))

    return str(folder), relative_name(path, folder)


def _local(plan: Plan, path: str) -> str:
    """Return the absolute path of a file that the spec names."""
    return os.path.normpath(PurePath(plan.context.folder) / path)


def _service(name: str, ssh_key: str | None) -> dict[str, str]:
    service = dict(SERVICES.get(name, {}))
    if name == "ssh":
        service["ssh_public_keys"] = (ssh_key or "").strip()

    return service


def as_variable(document: dict[str, Any]) -> str:
    """Return JSON in one line, without text that looks like Azure ML's placeholder `${{…}}`."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.replace("${{", "$\\u007b{")


def export(plan: Plan) -> Export:
    """Return the request with the Azure CLI's command for it, which uploads source and inputs.

    Raise UsageError for an input that only the service and the SDK's own objects know.
    """
    for name, item in plan.request.document["inputs"].items():
        if item.get("mode") == "rw_mount":
            message = f"the Azure CLI refuses the input {name}, whose mode is rw_mount"
            raise UsageError(message, hint="start it by cloudtrain submit")

    config = plan.target.config_as(AzureConfig)
    inputs = dict(plan.request.document["inputs"])
    for name, item in plan.context.uploads.items():
        inputs[input_name(name)] = {**inputs[input_name(name)], "path": item.path}

    document = {**plan.request.document, "inputs": inputs, "code": "code"}
    command = ["az", "ml", "job", "create", "--file", "request.json"]
    command += ["--subscription", config.subscription]
    command += ["--resource-group", config.resource_group]
    command += ["--workspace-name", config.workspace]
    return Export(
        files={"request.json": as_text(document)},
        archive=f"code/{ARCHIVE}",
        commands=[command],
    )
