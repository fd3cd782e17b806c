"""SageMaker's rules that involve several fields, or are missing in its service model. Pure.

After the API reference of CreateTrainingJob and the developer guide (managed spot training, warm
pools, instance preferences). `service_model` checks the model itself. The security
review follows rules of Prowler for training jobs of live accounts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import PurePosixPath

from cloudtrain.catalog import partition_of
from cloudtrain.catalog.machines import find_instance
from cloudtrain.errors import Issue, Keys
from cloudtrain.extras import install_command
from cloudtrain.planning.launch import TAG_PREFIX, dependencies_document
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.reference import ECR
from cloudtrain.planning.request_overrides import reserved_issues, spec_overrides
from cloudtrain.planning.sagemaker import (
    MIN_KEPT_CHECKPOINTS,
    ROOT,
    is_file_system,
    training_request,
)
from cloudtrain.providers.aws.account import format_issues
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.queue_request import queue_issues
from cloudtrain.providers.aws.request import (
    FORM,
    checkpoint_folder,
    has_own_disk,
    needs_volume,
    section_of,
    single_file,
    uri_parts,
)
from cloudtrain.providers.aws.request_fields import spec_issues, spec_path
from cloudtrain.providers.aws.service_model import request_violations
from cloudtrain.providers.aws.target import USUAL_NODES
from cloudtrain.providers.shared.plan_notes import (
    cloud_warnings,
    many_nodes,
    unreadable_checkpoints,
    unused_issues,
)
from cloudtrain.units import exact_duration

MAX_RUNTIME_SECONDS = 28 * 86_400
USUAL_RUNTIME_SECONDS = 5 * 86_400
"""Default of the quota L-33A961FD."""

_KEY_ID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}"
_KEY = rf"arn:aws[a-z-]*:kms:[a-z0-9-]*:\d{{12}}:(key|alias)/[\w/-]+|alias/[\w/-]+|{_KEY_ID}"
_EXPRESS = "--x-s3"
"""End of the name of each directory bucket."""

_TAKEN_FOLDERS = ("code", "input", "model", "output")
"""Folders below /opt/ml with another purpose."""

_TAG_PUNCTUATION = "_.:/=+-@"
"""Punctuation allowed in a tag besides letters, numbers and spaces of all languages.

After SageMaker's API reference (Tag), as of 2026-11-22. The service model has the same rule as a
pattern that only Java understands.
"""


def rule_issues(plan: Plan) -> list[Issue]:
    """Return broken rules and violations of SageMaker's service model. Imports no SDK.

    A violation of an enum, a pattern or a maximum is a warning: the service may be newer than the
    model.
    """
    issues = [plan.located(issue) for issue in broken_rules(plan)]
    body = training_request(plan.request.document)
    spec = plan.spec
    from_spec = {"Tags": spec.tags, "Environment": spec.env, "InputDataConfig": spec.inputs}
    own_counts: dict[Keys, int] = {}
    for name, fields in from_spec.items():
        if isinstance(body.get(name), (list, dict)):
            own_counts[(name,)] = len(body[name]) - len(fields)

    violations = []
    for violation in request_violations(body):
        count = own_counts.get(violation.path)
        if count:
            message = f"{violation.message}, {count} of them set by cloudtrain"
            violations.append(replace(violation, message=message))
        else:
            violations.append(violation)

    reported = {issue.path for issue in issues if issue.path and issue.is_error}
    of_model = spec_issues("CreateTrainingJob", violations, partial(spec_path, plan), reported)
    issues += [plan.located(issue) for issue in of_model]
    issues += cloud_warnings(plan, notes(plan))
    return issues


def sdk_issues(plan: Plan) -> list[Issue]:
    """Return an issue if the job needs boto3, and it is not installed."""
    if plan.is_rehearsal or find_spec("boto3") is not None:
        return []
    return [Issue((), "boto3 is not installed", install_command("aws"))]


def broken_rules(plan: Plan) -> list[Issue]:
    """Return an error for each rule that the plan breaks, with the path of its field."""
    issues: list[Issue] = []
    issues += _account(plan)
    issues += _storage(plan)
    issues += _file_systems(plan)
    issues += _capacity(plan)
    issues += _time(plan)
    issues += _network(plan)
    issues += _image(plan)
    issues += _names(plan)
    issues += queue_issues(plan, section_of(plan))
    issues += reserved_issues(section_of(plan).request, FORM)
    issues += unused_issues(plan, "sweep_request")
    return issues


def notes(plan: Plan) -> list[str]:
    """Return notes on what a valid plan does otherwise than requested."""
    messages: list[str] = []
    types = plan.target.instances
    if types and plan.spec.resources.disk and not needs_volume(types):
        messages.append(f"resources.disk has no effect: {types[0]} has local disks of a fixed size")

    if "CheckpointConfig" not in training_request(plan.request.document):
        messages.append(
            "aws.request removes CheckpointConfig: what a job saves in CLOUDTRAIN_CHECKPOINT_DIR is"
            " gone with its machine, and a restart has no checkpoint"
        )

    keep = plan.spec.checkpoints.keep
    if keep < MIN_KEPT_CHECKPOINTS:
        messages.append(
            f"{MIN_KEPT_CHECKPOINTS} checkpoints are kept, not {keep}: SageMaker deletes in S3 what"
            " a job deletes, perhaps before the newest one is stored there"
        )

    return messages


def _account(plan: Plan) -> Iterator[Issue]:
    config = plan.target.config_as(AwsConfig)
    yield from format_issues("role", config.role)
    yield from format_issues("bucket", config.bucket)
    yield from _partition(("aws", "role"), config.role, config.region)
    yield from _keys(plan, config)


def _partition(path: Keys, arn: str, region: str) -> Iterator[Issue]:
    """Yield an issue if an ARN is of another partition than the region: no job there may use it."""
    partition = partition_of(region)
    if arn.startswith("arn:") and arn.split(":")[1] != partition:
        message = f"{arn} is of the partition {arn.split(':')[1]}, and {region} is in {partition}"
        yield Issue(path, message, f"one of an account of {partition}")


def _storage(plan: Plan) -> Iterator[Issue]:
    spec = plan.spec
    uri = spec.checkpoints.uri
    if uri is not None and not re.fullmatch(r"s3://[^/]+(/.*)?", uri):
        yield Issue(("checkpoints", "uri"), f"{uri!r} is not an S3 URI", "s3://bucket/folder/")

    yield from _checkpoint_config(plan)
    output = section_of(plan).output
    if output is not None and not re.fullmatch(r"s3://[^/]+(/.*)?", output):
        yield Issue(("aws", "output"), f"{output!r} is not an S3 URI", "s3://bucket/folder")

    config = plan.target.config_as(AwsConfig)
    yield from _express(plan, config)

    yield from unreadable_checkpoints(plan, "SageMaker", "s3://")

    for name, item in spec.inputs.items():
        location = item.on(plan.target.provider) or ""
        if item.mode == "stream" and single_file(plan, name):
            hint = "mode: copy; or a slash at the end, if it is a folder"
            yield Issue(
                ("inputs", name),
                f"{location} is one object; only a folder can be streamed",
                hint,
            )


def _express(plan: Plan, config: AwsConfig) -> Iterator[Issue]:
    """Yield issues with directory buckets of S3 Express, after OutputDataConfig in the reference.

    Inputs and output may be there; of checkpoints and of ours nothing is documented.
    """
    output = section_of(plan).output or ""
    if _is_express(output) and config.kms_key:
        message = "S3 Express encrypts with its own keys alone, and aws.kms_key names another"
        yield Issue(("aws", "output"), message, "another bucket, or leave aws.kms_key out")

    uri = plan.spec.checkpoints.uri or ""
    hint = "a general purpose bucket; aws.output and inputs may be in S3 Express"
    if _is_express(uri):
        message = f"{uri} is in S3 Express, where SageMaker documents no checkpoints"
        yield Issue(("checkpoints", "uri"), message, hint)
    if config.bucket.endswith(_EXPRESS):
        message = f"{config.bucket} is in S3 Express, which cannot hold sources and checkpoints"
        yield Issue(("aws", "bucket"), message, hint)


def _is_express(uri: str) -> bool:
    """Return whether an S3 URI leads into a directory bucket."""
    return uri_parts(uri)[0].endswith(_EXPRESS)


def _checkpoint_config(plan: Plan) -> Iterator[Issue]:
    """Yield issues with a request without checkpoints, and with its own folder for them."""
    path = ("aws", "request", "CheckpointConfig")
    if "CheckpointConfig" not in training_request(plan.request.document):
        if plan.spec.checkpoints.uri:
            message = "removes the place of checkpoints.uri"
            yield Issue(path, message, "leave one of them out")
        return

    folder = PurePosixPath(checkpoint_folder(plan))
    is_below = folder.is_relative_to(ROOT)
    if not folder.is_absolute() or ".." in folder.parts or _is_taken(folder):
        message = f"{folder} cannot hold checkpoints: SageMaker uses it for something else"
        yield Issue((*path, "LocalPath"), message, f"a folder of its own, such as {ROOT}/kept")
    elif plan.is_rehearsal and not is_below:
        message = f"a rehearsal has only folders below {ROOT}, not {folder}"
        yield Issue((*path, "LocalPath"), message, f"such as {ROOT}/kept")


def _is_taken(folder: PurePosixPath) -> bool:
    """Return whether SageMaker or the launcher keeps other files in a folder, or around it."""
    if PurePosixPath(ROOT).is_relative_to(folder):
        return True

    return any(folder.is_relative_to(f"{ROOT}/{name}") for name in _TAKEN_FOLDERS)


def _file_systems(plan: Plan) -> Iterator[Issue]:
    """Yield issues with inputs of FSx for Lustre and EFS.

    After FileSystemDataSource in the API reference: the job is in the network of the file system.
    A path on FSx begins with the mount name.
    """
    for name, item in plan.spec.inputs.items():
        uri = item.on(plan.target.provider) or ""
        if not is_file_system(uri):
            continue

        path = ("inputs", name)
        if not re.fullmatch(r"fsx://fs-[0-9a-f]{8,}/[^/].*|efs://fs-[0-9a-f]{8,}(/.*)?", uri):
            hint = (
                "fsx://fs-0123456789abcdef0/MOUNT_NAME/folder or efs://fs-0123456789abcdef0/folder"
            )
            yield Issue(path, f"{uri} is not a folder of a file system", hint)
        if item.type == "file":
            yield Issue(path, "a file system is mounted as a folder", "leave out type: file")
        if not plan.target.config_as(AwsConfig).subnets:
            hint = "aws.subnets and aws.security_groups, of the network of the file system"
            yield Issue(path, "is reached in your own network only", hint)

    if plan.is_rehearsal:
        yield from _rehearsed_file_systems(plan)


def _rehearsed_file_systems(plan: Plan) -> Iterator[Issue]:
    """Yield issues with file systems that the spec does not replace by a local folder."""
    for channel in training_request(plan.request.document)["InputDataConfig"]:
        name = channel["ChannelName"]
        field = ("aws", "request")
        place = "://"
        spec_input = plan.spec.inputs.get(name)
        if spec_input:
            field = ("inputs", name)
            place = plan.host.location_for(spec_input.uri) or "://"
        if "FileSystemDataSource" in channel.get("DataSource", {}) and "://" in place:
            hint = f"inputs: {{{name}: {{local: ./folder, aws: fsx://… or efs://…}}}}"
            yield Issue(field, f"the file system of {name} cannot be mounted in a rehearsal", hint)


def _keys(plan: Plan, config: AwsConfig) -> Iterator[Issue]:
    """Yield issues with the key of `aws.kms_key`, and with another key of the disks."""
    types = plan.target.instances
    key = config.kms_key or ""
    yield from _key(("aws", "kms_key"), key, config.region)

    resources = section_of(plan).request.get("ResourceConfig")
    if not isinstance(resources, Mapping) or "VolumeKmsKeyId" not in resources:
        if re.fullmatch(_KEY, key) and needs_volume(types):
            yield from _disk_key(("aws", "kms_key"), key, types)
        return

    path = ("aws", "request", "ResourceConfig", "VolumeKmsKeyId")
    volume_key = resources["VolumeKmsKeyId"]
    if isinstance(volume_key, str):
        yield from _key(path, volume_key, config.region)
        yield from _disk_key(path, volume_key, types)


def _key(path: Keys, key: str, region: str) -> Iterator[Issue]:
    """Yield issues with a key's form and region."""
    if key and not re.fullmatch(_KEY, key):
        hint = "its id, its ARN (arn:aws:kms:REGION:ACCOUNT:key/ID) or alias/NAME"
        yield Issue(path, f"{key!r} is not a KMS key", hint)
        return

    yield from _partition(path, key, region)
    if key.startswith("arn:"):
        key_region = key.split(":")[3]
    else:
        key_region = region

    if key_region != region:
        yield Issue(
            path,
            f"is in {key_region or repr(key)}, the job runs in {region}",
            "a key of that region",
        )


def _disk_key(path: Keys, key: str, types: Sequence[str]) -> Iterator[Issue]:
    """Yield issues with a key for disks: they take its id or ARN, S3 an alias too (API reference)."""
    if types and not needs_volume(types):
        message = f"{types[0]} has local disks, which are always encrypted and take no key"
        yield Issue(path, message, "leave it out")
    elif has_own_disk(types):
        message = "cannot be used for types with and without local disks in one list"
        yield Issue(path, message, "name types of one kind")
    elif "alias/" in key:
        message = f"{key!r} is an alias, and disks can only be encrypted with a key's id or ARN"
        yield Issue(path, message, f"aws kms describe-key --key-id {key} tells both")


def _capacity(plan: Plan) -> Iterator[Issue]:
    yield from many_nodes(plan, USUAL_NODES, "the quota of the instance type, in Service Quotas")
    resources = plan.spec.resources
    types = plan.target.instances
    field: Keys = ("resources", "gpu")
    if resources.instance:
        field = ("resources", "instance", plan.target.provider)

    choice = f"a choice of {len(types)} instance types cannot be combined with"
    if resources.spot and len(types) > 1:
        hint = "name one instance type for spot, or leave spot out: the first available is taken"
        yield Issue(field, f"{choice} spot", hint)
    if section_of(plan).keep_alive and len(types) > 1:
        hint = "machines that are kept are all of one instance type"
        yield Issue(field, f"{choice} aws.keep_alive", hint)
    yield from _training_plan(plan)
    if section_of(plan).request.get("ServerlessJobConfig") is not None:
        yield Issue(
            ("aws", "request", "ServerlessJobConfig"),
            "customizes a model of AWS: such a job has no program, image and machines, as this has",
            "start it by the AWS CLI or SDK; cloudtrain runs a program on machines",
        )
    for name in types:
        if re.match(r"ml\.(trn|inf)", name) and plan.spec.launcher != "none":
            yield Issue(
                field,
                f"{name} has AWS's own accelerators, which need another build of PyTorch",
                "a type with GPUs or none; or an image with Neuron, and launcher: none",
            )


def _training_plan(plan: Plan) -> Iterator[Issue]:
    """Yield issues with reserved machines, after ResourceConfig in the API reference."""
    path: Keys = ("aws", "training_plan")
    types = plan.target.instances
    plans = section_of(plan).training_plan or {}
    if isinstance(plans, str):
        arns = {path: plans}
        if len(types) > 1:
            hint = f"name the type that it reserves: {{{types[0]}: ARN}}"
            yield Issue(path, "reserves one instance type, and the job has a choice of them", hint)
    else:
        arns = {(*path, name): arn for name, arn in plans.items()}

    region = plan.target.config_as(AwsConfig).region
    for at, arn in arns.items():
        if not re.fullmatch(rf"arn:aws[a-z-]*:sagemaker:{region}:\d{{12}}:training-plan/.+", arn):
            hint = f"aws sagemaker list-training-plans --region {region}"
            yield Issue(at, f"{arn!r} is not the ARN of a training plan in {region}", hint)
        if at != path and at[-1] not in types:
            yield Issue(at, "is none of the job's instance types", f"one of {', '.join(types)}")

    named = plan.spec.resources.instance.get(plan.target.provider, ())
    if plans and len(set(named)) < len(named):
        message = "lists a type twice, and SageMaker takes each type once"
        hint = "another type for machines on demand"
        yield Issue(("resources", "instance", plan.target.provider), message, hint)


def _time(plan: Plan) -> Iterator[Issue]:
    limits = plan.spec.limits
    estimate = plan.target.cost_estimate

    runtime = estimate.max_seconds if estimate else 0
    if runtime > MAX_RUNTIME_SECONDS:
        cap = "limits.max_runtime"
        if estimate and estimate.cap:
            cap = estimate.cap

        message = f"{exact_duration(runtime)} is longer than SageMaker runs a job: 28 d"
        yield Issue(tuple(cap.split(".")), message, "28 d at most")
    elif runtime > USUAL_RUNTIME_SECONDS:
        message = f"{exact_duration(runtime)} is longer than AWS's default quota: 5 d"
        hint = "'Longest run time for a training job' in Service Quotas, if it was not raised"
        yield Issue(("limits", "max_runtime"), message, hint, severity="warning")
    if limits.max_wait is None:
        return

    path = ("limits", "max_wait")
    if plan.spec.resources.spot:
        if limits.max_wait < runtime:
            message = (
                f"{exact_duration(limits.max_wait)} is shorter than the job may run:"
                f" {exact_duration(runtime)}"
            )
            yield Issue(
                path,
                message,
                "for spot it counts from the submission to the end, running included",
            )
        return

    rows = [find_instance("aws", name) for name in plan.target.instances]
    if any(row is not None and not row.gpus for row in rows) and not plan.is_rehearsal:
        yield Issue(
            path,
            "SageMaker limits the waiting time of GPU machines and of spot jobs only",
            "leave it out",
        )


def _network(plan: Plan) -> Iterator[Issue]:
    config = plan.target.config_as(AwsConfig)
    hint = "both, or neither"
    if config.subnets and not config.security_groups:
        yield Issue(("aws", "subnets"), "needs aws.security_groups beside it", hint)
    if config.security_groups and not config.subnets:
        yield Issue(("aws", "security_groups"), "needs aws.subnets beside it", hint)
    if section_of(plan).network_isolation:
        yield from _isolation(plan)


def _isolation(plan: Plan) -> Iterator[Issue]:
    spec = plan.spec
    path = ("aws", "network_isolation")
    if _needs_index(plan):
        hint = (
            "use an image that has them, or send wheels: --no-index and --find-links in"
            " requirements.txt; dependencies: none installs nothing"
        )
        yield Issue(path, "keeps the nodes from the index that packages come from", hint)
    if spec.secrets:
        yield Issue(path, "prevents the job from reading its secrets", "leave one of them out")
    if section_of(plan).remote_debug:
        yield Issue(path, "rules out aws.remote_debug", "leave one of them out")
    if plan.context.trial:
        message = "keeps trials from reading the values of the others, which early stopping needs"
        yield Issue(path, message, "leave it out, or sweep.early_stopping")


def _needs_index(plan: Plan) -> bool:
    """Return whether nodes install packages from an index."""
    return bool(dependencies_document(plan)) and not plan.context.source.offline


def _image(plan: Plan) -> Iterator[Issue]:
    image = plan.target.image_address
    region = plan.target.config_as(AwsConfig).region
    match = ECR.fullmatch(image)

    hint = (
        "push it to a repository of Elastic Container Registry in that region, and give that"
        " address"
    )
    if match is None:
        yield from _private_registry(plan, image, hint)
    elif match[2] != region:
        yield Issue(("image",), f"{image} is in {match[2]}, the job runs in {region}", hint)


def _private_registry(plan: Plan, image: str, hint: str) -> Iterator[Issue]:
    """Check an image outside of ECR: SageMaker pulls it through the job's own network.

    After TrainingImageConfig in the API reference.
    """
    member = ("AlgorithmSpecification", "TrainingImageConfig", "TrainingRepositoryAccessMode")
    overrides = spec_overrides(plan.spec, "aws")

    if not any(item.names == member and item.value == "Vpc" for item in overrides):
        way = (
            "or, for a private registry, aws.request: {AlgorithmSpecification: {TrainingImageConfig:"
            " {TrainingRepositoryAccessMode: Vpc}}}"
        )
        yield Issue(("image",), f"SageMaker cannot pull {image!r}", f"{hint}; {way}")
    elif not plan.target.config_as(AwsConfig).subnets:
        message = f"{image!r} is pulled through the job's own network, and there is none"
        yield Issue(("image",), message, "set aws.subnets and aws.security_groups")


def _names(plan: Plan) -> Iterator[Issue]:
    spec = plan.spec
    if "_" in plan.run_id:
        shown = spec.name if "_" in spec.name else plan.run_id
        message = f"{shown!r} has underscores, which SageMaker takes in no name of a job"
        yield Issue(("name",), message, f"such as {shown.replace('_', '-')}")
    for name in spec.inputs:
        yield from _reserved_name("inputs", name, TAG_PREFIX)
    for key in spec.tags:
        yield from _reserved_name("tags", key, TAG_PREFIX)
        yield from _reserved_name("tags", key, "aws:")
    for key, value in spec.tags.items():
        forbidden = [char for char in key + value if not _is_allowed_in_tag(char)]
        if forbidden:
            allowed = f"letters, numbers, spaces and {' '.join(_TAG_PUNCTUATION)}"
            yield Issue(("tags", key), f"{forbidden[0]!r} is not allowed in a tag: only {allowed}")
    for name in spec.env:
        if name.startswith("TRAINING_JOB_") or name in ("AWS_REGION", "SAGEMAKER_BASE_DIR"):
            yield Issue(("env", name), "is reserved by SageMaker", "choose another name")


def _reserved_name(field: str, name: str, prefix: str) -> Iterator[Issue]:
    if name.lower().startswith(prefix):
        message = f"names that begin with {prefix} are reserved"
        yield Issue((field, name), message, "choose another name")


def _is_allowed_in_tag(char: str) -> bool:
    return char in _TAG_PUNCTUATION or unicodedata.category(char)[0] in "LNZ"


def security_findings(plan: Plan) -> Iterator[Issue]:
    """Yield an issue for each rule that the job breaks, with the path of its field."""
    section = section_of(plan)
    needs_network = _needs_index(plan) or bool(plan.spec.secrets) or section.remote_debug

    if not plan.target.config_as(AwsConfig).subnets:
        message = (
            "is not set: the job runs outside your VPC, where your rules do not limit its network"
            " access"
        )
        yield Issue(("aws", "subnets"), message, "aws.subnets and aws.security_groups of your VPC")

    if not section.network_isolation and not needs_network:
        message = "is off: the containers may reach any network, and nothing in the job needs one"
        yield Issue(
            ("aws", "network_isolation"),
            message,
            "aws.network_isolation: true, unless your program does",
        )

    nodes = plan.spec.resources.nodes
    types = plan.target.instances
    if nodes > 1 and not section.encrypt_traffic:
        message = f"is off: what the {nodes} nodes send each other is not encrypted"
        yield Issue(
            ("aws", "encrypt_traffic"),
            message,
            "aws.encrypt_traffic: true; training takes longer",
        )

    if not plan.target.config_as(AwsConfig).kms_key:
        what_lacks = "what the job writes has no"
        if needs_volume(types) and not has_own_disk(types):
            what_lacks = "neither the machines' volumes nor what the job writes has a"
        yield Issue(
            ("aws", "kms_key"),
            f"is not set: {what_lacks} key of yours",
            "aws.kms_key: its ARN",
        )
    if section.remote_debug:
        message = "opens a shell in the running container to those who may use Systems Manager"
        yield Issue(("aws", "remote_debug"), message, "leave it out once the job runs")
