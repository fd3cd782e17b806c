"""Things of a SageMaker request: places in S3, keys, secrets, file systems, network, machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.planning.reference import ECR, parse_address
from cloudtrain.planning.selection import select_image
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.request import uri_parts

if TYPE_CHECKING:
    from cloudtrain.errors import Keys
    from cloudtrain.planning.plan import Plan

_OF_THE_PROGRAM = ("AlgorithmSpecification", "Environment", "HyperParameters", "Tags")
"""Members whose texts SageMaker hands on: it reads no URI there."""

_FIELDS: Mapping[str, Keys] = {
    "CheckpointConfig": ("checkpoints", "uri"),
    "OutputDataConfig": ("aws", "output"),
}
"""Member with a URI -> field of the job."""


class Place(NamedTuple):
    """A URI in S3 that SageMaker reads or writes for the job."""

    member: str
    """Name of a channel, or a member of the request that SageMaker writes to."""
    bucket: str
    key: str
    """Key of an object, or beginning of keys."""
    is_written: bool
    setting: Keys


@dataclass(frozen=True)
class Things:
    """The things in the request of a plan."""

    plan: Plan

    @property
    def body(self) -> Mapping[str, Any]:
        """Body of CreateTrainingJob."""
        return self.plan.request.document

    @property
    def resources(self) -> Mapping[str, Any]:
        """Member ResourceConfig."""
        resources: Mapping[str, Any] = self.body["ResourceConfig"]
        return resources

    @property
    def region(self) -> str:
        """Region of the job."""
        return self.plan.target.config_as(AwsConfig).region

    @property
    def role(self) -> str:
        """ARN of the job's role."""
        return str(self.body["RoleArn"])

    @property
    def account(self) -> str:
        """Number of the role's account."""
        return self.role.split(":")[4]

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource in the job's account and region; of S3 without these."""
        where = f"{self.region}:{self.account}"
        if service == "s3":
            where = ":"

        return f"arn:{self.role.split(':')[1]}:{service}:{where}:{resource}"

    @property
    def places(self) -> list[Place]:
        """Each URI in S3, the channels first."""
        places = []
        for name, source in self._sources("S3DataSource"):
            setting: Keys = ("aws", "bucket")
            if name in self.plan.spec.inputs:
                setting = ("inputs", name)

            places.append(Place(name, *uri_parts(source["S3Uri"]), False, setting))

        own = self.plan.target.config_as(AwsConfig).bucket
        for member, value in self.body.items():
            if member in ("InputDataConfig", *_OF_THE_PROGRAM):
                continue
            for _, text in _texts(value, ""):
                if text.startswith("s3://"):
                    bucket, key = uri_parts(text)
                    setting = _FIELDS.get(member, ("aws", "request", member))
                    if bucket == own:
                        setting = ("aws", "bucket")
                    places.append(Place(member, bucket, key, True, setting))

        return places

    @property
    def file_systems(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Name of each input in a file system, and its FileSystemDataSource."""
        return list(self._sources("FileSystemDataSource"))

    def _sources(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for channel in self.body["InputDataConfig"]:
            if kind in channel["DataSource"]:
                yield channel["ChannelName"], channel["DataSource"][kind]

    @property
    def keys(self) -> list[str]:
        """Each KMS key, as the request names it."""
        keys = [text for name, text in _texts(self.body, "") if name.endswith("KmsKeyId")]
        return list(dict.fromkeys(keys))

    @property
    def secrets(self) -> Iterator[tuple[str, str, str]]:
        """Variable, store and name, or ARN, of each secret that the job looks up."""
        for variable, reference in (self.plan.request.job.secrets or {}).items():
            store, _, name = reference.partition(":")
            yield variable, store, name.partition("#")[0]

    @property
    def subnets(self) -> list[str]:
        """Subnets of the nodes; empty for SageMaker's own network."""
        return list(self.body.get("VpcConfig", {}).get("Subnets", ()))

    @property
    def groups(self) -> list[str]:
        """Security groups of the nodes."""
        return list(self.body.get("VpcConfig", {}).get("SecurityGroupIds", ()))

    @property
    def types(self) -> list[str]:
        """Instance types, in order of preference."""
        choices = self.resources.get("InstancePreferences") or [self.resources]
        return [choice["InstanceType"] for choice in choices]

    @property
    def nodes(self) -> int:
        """Machines of the job."""
        return self.plan.spec.resources.nodes

    @property
    def machines(self) -> int:
        """Machines at once, of all parallel trials of a sweep together."""
        return self.plan.spec.machines

    @property
    def demand(self) -> str:
        """Number of machines at once: `the job has 2`, `4 trials at once have 8`."""
        if self.machines == self.nodes:
            return f"the job has {self.nodes}"

        return f"{self.machines // self.nodes} trials at once have {self.machines}"

    @property
    def repository(self) -> tuple[str, str, str] | None:
        """Account, region and name of the image's repository; None outside ECR."""
        image = str(self.body["AlgorithmSpecification"].get("TrainingImage", ""))
        address = ECR.fullmatch(image)
        if address is None:
            return None

        return address[1], address[2], parse_address(image).repository

    @property
    def is_image_named(self) -> bool:
        """True if the job names the image by its address."""
        plan = self.plan
        return select_image(plan.spec.image, "aws").text == plan.target.image_address

    @property
    def is_built(self) -> bool:
        """True if a submit builds and pushes the image."""
        image = self.plan.target.image
        return image is not None and image.recipe is not None


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
