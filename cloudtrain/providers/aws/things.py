"""Things of a SageMaker request: places in S3, keys, secrets, file systems, network, machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Thing
from cloudtrain.planning.reference import ECR, parse_address
from cloudtrain.planning.sagemaker import training_request
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.request import JOB, SOURCE, section_of, uri_parts

if TYPE_CHECKING:
    from cloudtrain.errors import Keys
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.aws.client import AwsClient

_OF_THE_PROGRAM = ("AlgorithmSpecification", "Environment", "HyperParameters", "Tags")
"""Members whose texts SageMaker hands on: it reads no URI there."""

_FIELDS: Mapping[str, Keys] = {
    "CheckpointConfig": ("checkpoints", "uri"),
    "OutputDataConfig": ("aws", "output"),
}
"""Member with a URI -> field of the job."""

_PLACES = {"CheckpointConfig": "checkpoints", SOURCE: "source", JOB: "document"}
"""Channel or member -> kind of its objects."""


class Things:
    """The things in the request of a plan, and the account to ask for them."""

    def __init__(self, cloud: AwsClient, plan: Plan) -> None:
        body = training_request(plan.request.document)
        self.cloud = cloud
        self.plan = plan
        self.body = body
        """Body of CreateTrainingJob."""
        self.role = str(body["RoleArn"])
        self.account = self.role.split(":")[4]
        """Number of the role's account."""
        self.resources: Mapping[str, Any] = body["ResourceConfig"]
        choices = self.resources.get("InstancePreferences") or [self.resources]
        self.types: list[str] = [choice["InstanceType"] for choice in choices]
        """Instance types, in order of preference."""
        self.nodes = plan.spec.resources.nodes
        self.machines = plan.spec.machines
        """Machines at once, of all parallel trials of a sweep together."""
        self.demand = f"the job has {self.nodes}"
        if self.machines != self.nodes:
            self.demand = f"{self.machines // self.nodes} trials at once have {self.machines}"

        self.network = ""
        """VPC of the subnets, once these were found."""
        image = plan.target.image
        self.is_built = image is not None and image.recipe is not None
        """True if a submit builds and pushes the image."""
        parts = (self._job(), self._stored(), self._keys(), self._nodes(), self._inputs())
        self.all = list(chain.from_iterable(parts))
        """Each thing, by the kinds of infra/aws/rights.yaml and of lookups.py; some have several."""

    def of(self, kind: str) -> list[Thing]:
        """Return the things of a kind, each name once."""
        things: dict[tuple[str, str], Thing] = {}
        for thing in self.all:
            if thing.kind == kind:
                things.setdefault((thing.label, thing.name), thing)

        return list(things.values())

    def _arn(self, service: str, resource: str) -> str:
        where = f"{self.cloud.region}:{self.account}"
        return f"arn:{self.role.split(':')[1]}:{service}:{where}:{resource}"

    def _job(self) -> Iterator[Thing]:
        name = self.body["TrainingJobName"]
        job = self._arn("sagemaker", f"training-job/{name}")
        group = self._arn("logs", "log-group:/aws/sagemaker/TrainingJobs")
        role = self.role.rpartition("/")[2]
        yield Thing("anything", arn="*")
        yield Thing("role", role, ("aws", "role"), "execution role", arn=self.role)
        queue = self.plan.request.document.get("jobQueue")
        if queue:
            # Batch creates the training job by its own role, and appends 32 digits to this name
            name = f"AWSBatch{name}"
            yield Thing("queued job", arn=self._arn("sagemaker", f"training-job/{name}"))
            yield Thing(
                "queue",
                queue,
                ("aws", "queue"),
                f"queue {queue}",
                self.plan.request.document,
                self._arn("batch", f"job-queue/{queue}"),
            )
            yield Thing("service job", arn=self._arn("batch", "service-job/*"))
            yield Thing("queues", arn="*")
        else:
            yield Thing("job", arn=job)
        yield Thing("log group", arn=f"{group}:*")
        yield Thing("log", arn=f"{group}:log-stream:{name}/algo-1-1")

        sweep = self.plan.spec.sweep
        if sweep and sweep.engine == "native":
            tuning_job = self._arn("sagemaker", f"hyper-parameter-tuning-job/{name}")
            yield Thing("tuning job", arn=tuning_job)
        if "KeepAlivePeriodInSeconds" in self.resources:
            yield Thing("warm pool", arn=job)
        if "RemoteDebugConfig" in self.body:
            yield Thing("shell", arn="*")

    def _stored(self) -> Iterator[Thing]:
        """Yield the buckets, and the objects that SageMaker reads or writes there for the job."""
        for member, uri, setting in chain(self._read(), self._written()):
            bucket, key = uri_parts(uri)
            partition = self.role.split(":")[1]
            arn = f"arn:{partition}:s3:::{bucket}"
            objects = f"{arn}/{key}*"
            if member == "OutputDataConfig":
                name = self.body["TrainingJobName"]
                folder = "/".join(part for part in (arn, key.rstrip("/")) if part)
                objects = f"{folder}/{name}/output/model.tar.gz"

            yield Thing("bucket", bucket, setting, f"bucket {bucket}", arn=arn)
            if member in self.body:
                yield Thing("written", arn=objects)
                yield Thing("written bucket", bucket, arn=arn)
            else:
                yield Thing("read", arn=objects)
            if member in _PLACES:
                yield Thing(_PLACES[member], arn=objects)
            if member in self.plan.context.uploads:
                yield Thing("upload", arn=objects)
                yield Thing("upload bucket", arn=arn)
            elif member in self.plan.spec.inputs:
                yield Thing("input", uri, setting, f"input {member}")

    def _read(self) -> Iterator[tuple[str, str, Keys]]:
        """Yield channel, URI and setting."""
        for channel in self.body["InputDataConfig"]:
            name = channel["ChannelName"]
            setting = ("inputs", name) if name in self.plan.spec.inputs else ("aws", "bucket")
            if "S3DataSource" in channel["DataSource"]:
                yield name, channel["DataSource"]["S3DataSource"]["S3Uri"], setting

    def _written(self) -> Iterator[tuple[str, str, Keys]]:
        """Yield member, URI and setting."""
        own_bucket = self.plan.target.config_as(AwsConfig).bucket
        for member, value in self.body.items():
            if member in ("InputDataConfig", *_OF_THE_PROGRAM):
                continue
            for _, uri in _texts(value, ""):
                if uri.startswith("s3://"):
                    setting = _FIELDS.get(member, ("aws", "request", member))
                    yield (
                        member,
                        uri,
                        ("aws", "bucket") if uri_parts(uri)[0] == own_bucket else setting,
                    )

    def _keys(self) -> Iterator[Thing]:
        """Yield keys and secrets, which the request may name by their ARNs."""
        for member, key in _texts(self.body, ""):
            if member.endswith("KmsKeyId"):
                resource = key if key.startswith("alias/") else f"key/{key}"
                arn = key if key.startswith("arn:") else self._arn("kms", resource)
                yield Thing("key", key, ("aws", "kms_key"), arn=arn)

        for variable, reference in (self.plan.request.job.secrets or {}).items():
            store, _, text = reference.partition(":")
            name = text.partition("#")[0]
            resource = f"secret:{name}-??????"  # as IAM's own pages write it
            if store == "ssm":
                resource = f"parameter/{name.removeprefix('/')}"
            arn = name if name.startswith("arn:") else self._arn(store, resource)
            yield Thing(store, name, ("secrets", variable), f"secret {variable}", arn=arn)

    def _nodes(self) -> Iterator[Thing]:
        """Yield the network, the image and the machines of the nodes."""
        network: Mapping[str, list[str]] = self.body.get("VpcConfig", {})
        if network:
            subnets = network["Subnets"]
            groups = network["SecurityGroupIds"]
            yield Thing("subnets", ", ".join(subnets), ("aws", "subnets"), source=network)
            setting = ("aws", "security_groups")
            yield Thing("security groups", ", ".join(groups), setting, source=network)
            yield Thing("network", arn="*")
            yield Thing("interface", arn=self._arn("ec2", "network-interface/*"))
            for subnet in subnets:
                yield Thing("interface", arn=self._arn("ec2", f"subnet/{subnet}"))
            for group in groups:
                yield Thing("interface", arn=self._arn("ec2", f"security-group/{group}"))

        address = ECR.fullmatch(str(self.body["AlgorithmSpecification"].get("TrainingImage", "")))
        if address:
            name = parse_address(address[0]).repository
            partition = self.role.split(":")[1]
            arn = f"arn:{partition}:ecr:{address[2]}:{address[1]}:repository/{name}"
            yield Thing("image", arn=arn)
            if self.is_built:
                yield Thing("repository", name, ("aws", "repository"), arn=arn)

        plans = section_of(self.plan).training_plans(self.types)
        for kind, arn in plans.items():
            name = arn.rpartition("/")[2]
            label = f"training plan for {kind}"
            source = {"InstanceType": kind}
            yield Thing("training plan", name, ("aws", "training_plan"), label, source, arn)

    def _inputs(self) -> Iterator[Thing]:
        """Yield the file systems."""
        for channel in self.body["InputDataConfig"]:
            if source := channel["DataSource"].get("FileSystemDataSource"):
                kind = "efs" if source["FileSystemType"] == "EFS" else "fsx"
                name = channel["ChannelName"]
                system = source["FileSystemId"]
                yield Thing(kind, system, ("inputs", name), f"input {name}", source)


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield each text in a JSON value with the name of its member."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, name)
