"""Turn a plan into the body of CreateTrainingJob and the job document. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.machines import local_disks
from cloudtrain.planning.launch import PUBLISHED, TAG_PREFIX, JobDocument, Request, job_document
from cloudtrain.planning.plan import Plan, json_digest
from cloudtrain.planning.request_overrides import RequestForm, merge_request
from cloudtrain.planning.sagemaker import (
    MIN_KEPT_CHECKPOINTS,
    ROOT,
    file_system_source,
    is_file_system,
    training_request,
)
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.queue_request import in_queue
from cloudtrain.providers.protocol import Export
from cloudtrain.providers.shared.idempotent_create import tags
from cloudtrain.providers.shared.paths import ARCHIVE, PREFIX, as_folder, input_file
from cloudtrain.providers.shared.uploads import upload_uri
from cloudtrain.runs.files import as_text
from cloudtrain_wire.tuned_values import text_of

if TYPE_CHECKING:  # watching a run does not need pydantic
    from cloudtrain.planning.registry import ResolvedImage
    from cloudtrain.providers.aws.section import AwsSection

SOURCE = f"{TAG_PREFIX}source"
JOB = f"{TAG_PREFIX}job"
RESUME = f"{TAG_PREFIX}resume"
JOB_FILE = "job.json"
CHECKPOINTS = f"{ROOT}/checkpoints"
"""Folder in the container that SageMaker copies to S3, unless the spec names another."""

DEFAULT_VOLUME_GIB = 30
"""Volume of types without NVMe if the spec lacks a disk size: SageMaker's own default."""

WAIT_SECONDS = 86_400
"""Maximum wait of a spot job for capacity, besides its runtime, by default."""

MAX_HYPERPARAMETERS = 100
_HYPERPARAMETER = r"[^=]{1,256}=.{0,2500}"
"""Name and value of an argument as they fit into CreateTrainingJob."""

BOOTSTRAP = (
    "import os,sys,tarfile as t;m=os.environ.get('SAGEMAKER_BASE_DIR','/opt/ml')+'/';"
    "a,d=(m+p for p in sys.argv[1:]);x=t.open(a);x.extraction_filter=getattr(t,'data_filter',None);"
    "x.extractall(d);os.chdir(d);os.execl(*[sys.executable]*2,'-u','.cloudtrain')"
)
"""Extracts the source and becomes the launcher; ContainerEntrypoint allows 256 characters."""

FORM = RequestForm(
    section="aws",
    list_keys={
        "Tags": "Key",
        "InputDataConfig": "ChannelName",
        "AlgorithmSpecification.MetricDefinitions": "Name",
    },
    reserved={
        "TrainingJobName": "use name, or submit --run-id",
        "RoleArn": "use aws.role",
        "AlgorithmSpecification.TrainingImage": "use image",
        "AlgorithmSpecification.AlgorithmName": "use image",
        "AlgorithmSpecification.ContainerEntrypoint": "use entrypoint",
        "AlgorithmSpecification.ContainerArguments": "use args",
        f"InputDataConfig.{TAG_PREFIX}*": "choose another name for the channel",
        "OutputDataConfig.S3OutputPath": "use aws.output",
        "OutputDataConfig.KmsKeyId": "use aws.kms_key",
        "OutputDataConfig.CompressionType": "use aws.compress_output",
        "CheckpointConfig.S3Uri": "use checkpoints.uri",
        "ResourceConfig.InstanceType": "use resources.instance",
        "ResourceConfig.InstanceCount": "use resources.nodes",
        "ResourceConfig.InstancePreferences": "use resources.instance",
        "ResourceConfig.VolumeSizeInGB": "use resources.disk",
        "ResourceConfig.KeepAlivePeriodInSeconds": "use aws.keep_alive, which counts its cost",
        "ResourceConfig.TrainingPlanArn": "use aws.training_plan, which counts as paid",
        "StoppingCondition": "use limits, which cap the cost",
        "EnableManagedSpotTraining": "use resources.spot",
        "RetryStrategy": "use limits.retries",
        "VpcConfig": "use aws.subnets and aws.security_groups",
        "EnableNetworkIsolation": "use aws.network_isolation",
        "EnableInterContainerTrafficEncryption": "use aws.encrypt_traffic",
        "RemoteDebugConfig": "use aws.remote_debug",
        "InfraCheckConfig": "use aws.infra_check",
        "Environment.CLOUDTRAIN_*": "choose another name",
        f"Tags.{TAG_PREFIX}*": "choose another key",
    },
    removable=frozenset({"CheckpointConfig"}),
    unsupported={
        "ResourceConfig.InstanceGroups": (
            "all nodes of a job have one instance type",
            "for groups of several, edit request.json of cloudtrain plan --export",
        ),
    },
)
"""Members of CreateTrainingJob that `aws.request` may not set, since a field of job.yaml does."""

_TAB = r"\\t|\t"
_TAB_IN_CLASS = r"\[[^\]]*(\\t|\t)"


def run_uri(bucket: str, run_id: str) -> str:
    """Return the S3 URI of all parts of a run, without a slash at the end."""
    return f"s3://{bucket}/{PREFIX}/runs/{run_id}"


def source_uri(bucket: str, digest: str) -> str:
    """Return the S3 URI of a source archive's folder; runs with the same source share it."""
    return f"s3://{bucket}/{PREFIX}/sources/{digest}/"


def output_uri(plan: Plan) -> str:
    """Return the S3 URI below which SageMaker stores model and output of each job.

    Jobs of a queue have other names than their run: its folder holds theirs.
    """
    config = plan.target.config_as(AwsConfig)
    uri = section_of(plan).output or f"s3://{config.bucket}/{PREFIX}/runs"
    if config.queue:
        uri = f"{uri.rstrip('/')}/{plan.run_id}"

    return uri


def published_uri(output: str, run_id: str) -> str:
    """Return the URI of a job's published files. `output`: S3OutputPath of its request."""
    return f"{output.rstrip('/')}/{run_id}/published"


def render(plan: Plan, image: ResolvedImage | None = None) -> Request:
    """Return the request as plain JSON, and the job document.

    The request is the body of CreateTrainingJob or, for a queue, of SubmitServiceJob with it.
    """
    request = request_with(job_of(plan), plan, image)
    if not plan.target.config_as(AwsConfig).queue:
        return request

    return in_queue(request, plan, section_of(plan))


def request_with(job: JobDocument, plan: Plan, image: ResolvedImage | None = None) -> Request:
    """Return the request for a plan whose nodes read this job document."""
    body = body_of(plan, job, image)
    document = merge_request(body, section_of(plan).request, FORM)
    return Request(provider="aws", document=document, job=job)


def body_of(plan: Plan, job: JobDocument, image: ResolvedImage | None = None) -> dict[str, Any]:
    """Return the body of CreateTrainingJob, as for the AWS CLI's `--cli-input-json`.

    `job`: the job document, whose channel has its digest. `image`: the image that was built or
    looked up; None: the planned address.
    """
    spec = plan.spec
    config = plan.target.config_as(AwsConfig)
    aws = section_of(plan)
    limits = spec.limits
    base = run_uri(config.bucket, plan.run_id)
    address = image.address if image else plan.target.image_address
    output = {"S3OutputPath": output_uri(plan)}
    if config.kms_key:
        output["KmsKeyId"] = config.kms_key
    if not aws.compress_output:
        output["CompressionType"] = "NONE"

    body: dict[str, Any] = {
        "TrainingJobName": plan.run_id,
        "RoleArn": config.role,
        "AlgorithmSpecification": {
            "TrainingImage": address,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "-u", "-c", BOOTSTRAP],
            "ContainerArguments": [f"input/data/{SOURCE}/{ARCHIVE}", "code"],
            **_metrics(plan),
        },
        **_hyperparameters(plan),
        "InputDataConfig": _channels(plan, base, job.to_json()),
        "OutputDataConfig": output,
        "ResourceConfig": _resources(plan),
        "StoppingCondition": _stopping(plan),
        "CheckpointConfig": {"S3Uri": _checkpoints(plan, base), "LocalPath": CHECKPOINTS},
        "Environment": _environment(plan),
        "Tags": [{"Key": key, "Value": value} for key, value in tags(plan, address).items()],
    }
    if spec.resources.spot:
        body["EnableManagedSpotTraining"] = True
    if limits.retries:
        body["RetryStrategy"] = {"MaximumRetryAttempts": limits.retries}
    if config.subnets or config.security_groups:
        body["VpcConfig"] = {
            "SecurityGroupIds": list(config.security_groups),
            "Subnets": list(config.subnets),
        }
    if aws.network_isolation:
        body["EnableNetworkIsolation"] = True
    if aws.encrypt_traffic:
        body["EnableInterContainerTrafficEncryption"] = True
    if aws.tensorboard:
        body["TensorBoardOutputConfig"] = {
            "LocalPath": f"{ROOT}/output/data/tensorboard",  # CLOUDTRAIN_TENSORBOARD_DIR in the job
            "S3OutputPath": f"{base}/tensorboard",
        }
    if aws.remote_debug:
        body["RemoteDebugConfig"] = {"EnableRemoteDebug": True}
    if aws.infra_check:
        body["InfraCheckConfig"] = {"EnableInfraCheck": True}

    return body


def section_of(plan: Plan) -> AwsSection:
    """Return the spec's section `aws`."""
    from cloudtrain.providers.aws.section import AwsSection

    return plan.spec.section(AwsSection)


def job_of(plan: Plan) -> JobDocument:
    """Return the job document, with the channels of the inputs and the stores of the secrets."""
    job = job_document(plan)
    inputs = {}
    for name in plan.spec.inputs:
        inputs[name] = {"channel": name, **single_file(plan, name)}

    return replace(
        job,
        checkpoint_keep=max(MIN_KEPT_CHECKPOINTS, plan.spec.checkpoints.keep),
        inputs=inputs,
        secrets=plan.secrets,
    )


def _environment(plan: Plan) -> dict[str, str]:
    """Return the variables of the containers; a trial also gets the URI of published files."""
    variables = {**plan.spec.env, "CLOUDTRAIN_PLATFORM": "sagemaker"}
    own_folder = checkpoint_folder(plan)
    if own_folder != CHECKPOINTS:
        variables["CLOUDTRAIN_CHECKPOINT_DIR"] = own_folder
    if plan.context.trial:
        variables[PUBLISHED] = published_uri(output_uri(plan), plan.run_id)

    return variables


def _hyperparameters(plan: Plan) -> dict[str, Any]:
    """Return the arguments for the console and Search. The job reads those in its document.

    Leave out probable secrets, and arguments that do not fit into the service model.
    """
    from cloudtrain_wire.secret_values import is_secret_argument

    values = plan.spec.args.values
    if not isinstance(values, Mapping):
        return {}

    fitting = []
    for name, value in values.items():
        text = text_of(value)
        if re.fullmatch(_HYPERPARAMETER, f"{name}={text}") and not is_secret_argument(name, text):
            fitting.append((name, text))

    if not fitting:
        return {}

    return {"HyperParameters": dict(fitting[:MAX_HYPERPARAMETERS])}


def _metrics(plan: Plan) -> dict[str, Any]:
    """Return metrics for the console's charts: the trainer's, and the spec's `metrics`."""
    from cloudtrain.spec.inputs import TRAINER_METRICS

    definitions = []
    if plan.spec.entrypoint is None:
        definitions += [{"Name": name, "Regex": event_pattern(name)} for name in TRAINER_METRICS]
    for name, pattern in plan.spec.metrics.items():
        definitions.append({"Name": name, "Regex": _of_first_rank(pattern)})

    if not definitions:
        return {}

    return {"MetricDefinitions": definitions}


def event_pattern(name: str) -> str:
    """Return the expression for a metric in the lines of `log_metrics` by the first rank."""
    return rf'"{re.escape(name)}": ?(-?[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?)'


def _of_first_rank(pattern: str) -> str:
    """Return the expression for the first rank in the log, where each line begins with its rank.

    SageMaker would count a value once for each rank that prints it.
    """
    if "|" in pattern:
        pattern = f"(?:{pattern})"
    if not re.search(_TAB_IN_CLASS, pattern):
        pattern = re.sub(_TAB, "#011", pattern)  # as a tab arrives in CloudWatch

    if pattern.startswith("^"):
        return r"\[rank 0\] " + pattern[1:]

    return rf"\[rank 0\] .*?{pattern}"


def _channels(plan: Plan, base: str, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    bucket = plan.target.config_as(AwsConfig).bucket
    own_channels = {
        SOURCE: source_uri(bucket, plan.context.source.digest),
        JOB: f"{base}/job/{json_digest(document)[:16]}/",
    }

    channels = [_channel(name, uri) for name, uri in own_channels.items()]
    for name, item in plan.spec.inputs.items():
        uri = input_uri(plan, name)
        channels.append(_channel(name, uri, stream=item.mode == "stream"))

    earlier = plan.context.resume_from
    if earlier and plan.is_rehearsal:  # in S3 it would be beside this run's own
        earlier = f"{run_uri(bucket, plan.context.resume_run)}/checkpoints"
    if earlier and as_folder(earlier) != _checkpoints(plan, base):
        channels.append(_channel(RESUME, as_folder(earlier)))

    return channels


def _checkpoints(plan: Plan, base: str) -> str:
    # The slash at the end keeps run-1 from restoring what run-10 has saved.
    return as_folder(plan.spec.checkpoints.uri or f"{base}/checkpoints")


def checkpoint_folder(plan: Plan) -> str:
    """Return the checkpoint folder in the container, by the spec's own `LocalPath` if it has one."""
    config = section_of(plan).request.get("CheckpointConfig")
    own_folder = config.get("LocalPath") if isinstance(config, Mapping) else None
    return own_folder if isinstance(own_folder, str) else CHECKPOINTS


def _channel(name: str, uri: str, *, stream: bool = False) -> dict[str, Any]:
    if is_file_system(uri):
        return {"ChannelName": name, "DataSource": file_system_source(uri)}

    return {
        "ChannelName": name,
        "InputMode": "FastFile" if stream else "File",
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                "S3Uri": uri,
                "S3DataDistributionType": "FullyReplicated",
            }
        },
    }


def input_uri(plan: Plan, name: str) -> str:
    """Return the URI of an input; a folder's ends in a slash, to match whole names."""
    if name in plan.context.uploads:
        return upload_uri(plan, plan.context.uploads[name])

    uri = plan.inputs[name]
    if single_file(plan, name):
        return uri

    return as_folder(uri)


def single_file(plan: Plan, name: str) -> dict[str, str]:
    """Return `{"file": NAME}` if an input is a single object, empty if it is a folder."""
    uri = plan.inputs[name]
    if name in plan.context.uploads:
        file = plan.context.uploads[name].file
    elif is_file_system(uri):
        file = ""
    else:
        file = input_file(plan.spec.inputs[name], uri_parts(uri)[1])

    if not file:
        return {}

    return {"file": file}


def _resources(plan: Plan) -> dict[str, Any]:
    spec = plan.spec
    key = plan.target.config_as(AwsConfig).kms_key
    types = plan.target.instances
    nodes = spec.resources.nodes

    plans = section_of(plan).training_plans(types)

    choices: list[dict[str, Any]] = [
        {"InstanceType": name, "InstanceCount": nodes} for name in types
    ]
    resources: dict[str, Any] = {"InstancePreferences": choices}
    if len(types) == 1:
        resources = choices[0]
        if plans:
            resources["TrainingPlanArn"] = plans[types[0]]
    else:
        for choice in choices:
            if choice["InstanceType"] in plans:
                choice["TrainingPlanArns"] = [plans[choice["InstanceType"]]]

    disk = spec.resources.disk
    if disk:
        resources["VolumeSizeInGB"] = max(1, -(-disk // 2**30))
    elif needs_volume(types):
        resources["VolumeSizeInGB"] = DEFAULT_VOLUME_GIB

    if key and needs_volume(types) and not has_own_disk(types):
        resources["VolumeKmsKeyId"] = key
    if section_of(plan).keep_alive:
        resources["KeepAlivePeriodInSeconds"] = section_of(plan).keep_alive

    return resources


def has_own_disk(types: Sequence[str]) -> bool:
    """Return True if any type has local NVMe disks, which are always encrypted without a key."""
    return any(map(local_disks, types))


def needs_volume(types: Sequence[str]) -> bool:
    """Return True if any type lacks a local disk; otherwise SageMaker ignores a volume size."""
    return not all(map(local_disks, types))


def _stopping(plan: Plan) -> dict[str, int]:
    limits = plan.spec.limits
    estimate = plan.target.cost_estimate
    if estimate is None:
        raise ValueError("a target that bills has a cost estimate")

    stopping = {"MaxRuntimeInSeconds": estimate.max_seconds}
    if plan.spec.resources.spot:
        # From the submission to the end, running included.
        stopping["MaxWaitTimeInSeconds"] = limits.max_wait or estimate.max_seconds + WAIT_SECONDS
    elif limits.max_wait:
        stopping["MaxPendingTimeInSeconds"] = limits.max_wait

    return stopping


def uri_parts(uri: str) -> tuple[str, str]:
    """Return bucket and key of an `s3://` URI; the key is empty if there is none."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def export(plan: Plan) -> Export:
    """Return the request and the job document with the AWS CLI's commands for them."""
    config = plan.target.config_as(AwsConfig)
    document = plan.request.document
    body = training_request(document)
    place = ["--region", config.region]
    if config.profile:
        place += ["--profile", config.profile]

    copy_options = place
    if config.kms_key:
        copy_options = ["--sse", "aws:kms", "--sse-kms-key-id", config.kms_key, *place]

    copies = []
    for item in plan.context.uploads.values():
        command = ["aws", "s3", "cp", item.path, upload_uri(plan, item)]
        if not item.file:
            command.append("--recursive")
        copies.append(command + copy_options)

    def copy(name: str, channel: str) -> list[str]:
        return ["aws", "s3", "cp", name, channel_uri(body, channel) + name, *copy_options]

    create = ["aws", "sagemaker", "create-training-job"]
    if document is not body:
        create = ["aws", "batch", "submit-service-job"]
    create += place
    create += ["--cli-input-json", "file://request.json"]
    return Export(
        files={"request.json": as_text(document), JOB_FILE: as_text(plan.request.job.to_json())},
        archive=ARCHIVE,
        commands=[*copies, copy(ARCHIVE, SOURCE), copy(JOB_FILE, JOB), create],
    )


def channel_uri(body: Mapping[str, Any], name: str) -> str:
    """Return the S3 URI of one of a request's channels. Raise KeyError without it."""
    channels = {item["ChannelName"]: item for item in body["InputDataConfig"]}
    return str(channels[name]["DataSource"]["S3DataSource"]["S3Uri"])
