"""The sections of job.yaml as frozen pydantic models, each field with its meaning and its JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from cloudtrain.spec import fields
from cloudtrain.spec.fields import PROVIDERS, Arguments, Input
from cloudtrain.units import (
    DURATION_FORMS,
    MONEY_FORMS,
    SIZE_FORMS,
    parse_duration,
    parse_money,
    parse_size,
)

_TEXT = {"type": ["string", "number", "boolean"]}
_TEXT_MAP = {"type": "object", "additionalProperties": _TEXT}
_STRINGS = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def _for_providers(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(PROVIDERS, schema), "additionalProperties": False}


_INPUT = {
    "oneOf": [
        {"type": "string"},
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                **{place: {"type": "string"} for place in ("uri", *PROVIDERS)},
                "mode": {"enum": ["copy", "stream"]},
                "type": {"enum": list(fields.INPUT_TYPES)},
            },
        },
    ]
}


def _reader(parse: Callable[[str], Any], what: str, forms: str) -> BeforeValidator:
    return BeforeValidator(lambda value: value if value is None else fields.read_quantity(value, parse, what, forms))


def _examples(forms: str) -> WithJsonSchema:
    return WithJsonSchema({"type": ["string", "null"], "examples": forms.split(", ")})


Duration = Annotated[int | None, _reader(parse_duration, "a duration", DURATION_FORMS), _examples(DURATION_FORMS)]
"""Seconds, or nothing."""
Interval = Annotated[
    int,
    BeforeValidator(lambda v: fields.read_quantity(v, parse_duration, "a duration", DURATION_FORMS)),
    WithJsonSchema({"type": "string", "examples": DURATION_FORMS.split(", ")}),
]
"""Seconds."""
Size = Annotated[int | None, _reader(parse_size, "a size", SIZE_FORMS), _examples(SIZE_FORMS)]
"""Bytes."""
Money = Annotated[float | None, _reader(parse_money, "an amount of money", MONEY_FORMS), _examples(MONEY_FORMS)]
"""US dollars."""
Strings = Annotated[tuple[str, ...], BeforeValidator(fields.read_strings), WithJsonSchema(_STRINGS)]


class Section(BaseModel):
    """What all parts of a spec share: strict, frozen, no unknown keys."""

    # Built when a spec is read, once for all sections, and not one by one before.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, defer_build=True)


class Resources(Section):
    """The machines: how many, with what."""

    nodes: int = Field(1, ge=1, le=1000, description="how many machines")
    gpus: Annotated[int | None, WithJsonSchema({"type": ["integer", "null"], "minimum": 0, "maximum": 64})] = Field(
        None, ge=0, le=64, description="GPUs per node; 0 = CPU; default: all of the instance that is named, else 0"
    )
    gpu: Annotated[tuple[str, ...], BeforeValidator(fields.read_gpus), WithJsonSchema(_STRINGS)] = Field(
        (), description="GPU models in order of preference, resolved through the catalog"
    )
    instance: Annotated[
        Mapping[str, tuple[str, ...]],
        BeforeValidator(fields.read_instances),
        WithJsonSchema(_for_providers(_STRINGS)),
    ] = Field({}, description="instance types per provider, in order of preference, instead of gpu")
    processes: Annotated[
        int | Literal["auto"],
        BeforeValidator(fields.read_processes),
        WithJsonSchema({"oneOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}),
    ] = Field("auto", description="processes per node; auto = one per GPU, else 1")
    spot: bool = Field(False, description="interruptible capacity at a lower price")
    disk: Size = Field(None, description="disk per node, such as 200 GiB")
    shm: Size = Field(None, description="shared memory per node, such as 16 GiB")

    def processes_on(self, gpus: int) -> int:
        """`processes` of a node that uses so many GPUs, with auto resolved."""
        return self.processes if isinstance(self.processes, int) else max(1, gpus)


class Checkpoints(Section):
    """How often checkpoints are asked for, how many are kept, and where."""

    every: Interval = Field(600, description="time between two checkpoints, such as 10 min")
    keep: int = Field(3, ge=1, description="how many are kept")
    uri: str | None = Field(None, description="a durable place of your own; else the provider's, for this run")


class Limits(Section):
    """What ends a job, and what brings it back."""

    max_runtime: Duration = Field(None, description="stop after this long, such as 6 h")
    max_wait: Duration = Field(None, description="give up waiting for capacity after this long")
    max_cost: Money = Field(None, description="stop before more than this is spent, such as 50 USD")
    retries: int = Field(0, ge=0, le=30, description="fresh starts of the whole job after a platform's failure")
    restarts: int = Field(0, ge=0, le=100, description="restarts in place after a process died")


class Launch(Section):
    """What the launcher asks of the processes that it starts."""

    require_group: bool = Field(
        False, description="fail a job whose processes never joined one torch.distributed group; else a warning"
    )


class Aws(Section):
    """Account facts and wishes for SageMaker; the account facts may live in settings instead."""

    region: str | None = Field(None, description="where jobs run, such as us-east-1")
    role: str | None = Field(None, description="ARN of the role that the job runs as")
    bucket: str | None = Field(None, description="bucket for source, checkpoints and models")
    repository: str | None = Field(None, description="ECR repository for images that are built, its name or address")
    subnets: Strings = Field((), description="run inside these subnets of your network")
    security_groups: Strings = Field((), description="with these security groups")
    kms_key: str | None = Field(None, description="key that encrypts the machines' disks and what the job writes")
    keep_alive: Duration = Field(None, description="keep the machines this long for the next job; they are billed")
    network_isolation: bool = Field(False, description="no network for the container but the other nodes")
    encrypt_traffic: bool = Field(False, description="encrypt what the nodes send each other; slower")
    remote_debug: bool = Field(False, description="allow a shell in the container through Systems Manager")
    infra_check: bool = Field(False, description="test hardware and network before the job starts")
    tensorboard: bool = Field(False, description="upload what is written to CLOUDTRAIN_TENSORBOARD_DIR as it comes")


class Azure(Section):
    """Account facts and wishes for Azure ML; the account facts may live in settings instead."""

    subscription: str | None = Field(None, description="id of the subscription")
    resource_group: str | None = Field(None, description="the workspace's resource group")
    workspace: str | None = Field(None, description="the Azure ML workspace that the job runs in")
    location: str | None = Field(None, description="where the workspace is, such as eastus: prices depend on it")
    compute: str | None = Field(None, description="a compute cluster of the workspace; default: serverless machines")
    datastore: str | None = Field(None, description="where checkpoints, model and output are kept")
    repository: str | None = Field(None, description="where built images are pushed: myregistry.azurecr.io/train")
    tier: Literal["basic", "standard", "premium"] | None = Field(None, description="queue of serverless machines")
    identity: Literal["managed", "user"] | None = Field(None, description="whom the job acts as")
    services: Strings = Field((), description="ways into the running job: ssh, jupyter, vscode, tensorboard")
    ssh_key: str | None = Field(None, description="your public key, for the service ssh")


class JobSpec(Section):
    """One job, for any cloud. The file it is read from is job.yaml."""

    name: Annotated[str, BeforeValidator(fields.read_name)] = Field(description="default: the folder's name")
    entrypoint: str | None = Field(
        None,
        description='a torchrun script, "-m package.module" or a notebook.ipynb; default: the shared trainer',
    )
    args: Annotated[
        Arguments,
        BeforeValidator(fields.read_arguments),
        WithJsonSchema({"oneOf": [{"type": "object"}, {"type": "array", "items": _TEXT}]}),
    ] = Field(Arguments(), description="a mapping (--key value; true = bare flag) or a list, verbatim")
    source: str = Field(".", min_length=1, description="the folder shipped with the job")
    image: Annotated[
        str | Mapping[str, str],
        BeforeValidator(fields.read_image),
        WithJsonSchema({"oneOf": [{"type": "string"}, {"type": "object"}]}),
    ] = Field("auto", description="auto, an address, one per provider, {build: Dockerfile} or dlc:…")
    resources: Resources = Resources.model_construct()
    inputs: Annotated[
        Mapping[str, Input],
        BeforeValidator(fields.read_inputs),
        WithJsonSchema({"type": "object", "additionalProperties": _INPUT}),
    ] = Field({}, description="data, each a folder or file that the job finds in CLOUDTRAIN_INPUT_<NAME>")
    checkpoints: Checkpoints = Checkpoints.model_construct()
    limits: Limits = Limits.model_construct()
    launch: Launch = Launch.model_construct()
    env: Annotated[Mapping[str, str], BeforeValidator(fields.read_env), WithJsonSchema(_TEXT_MAP)] = Field(
        {}, description="environment variables of the job"
    )
    secrets: Annotated[
        Mapping[str, Mapping[str, str]],
        BeforeValidator(fields.read_secrets),
        WithJsonSchema({"type": "object", "additionalProperties": _for_providers({"type": "string"})}),
    ] = Field({}, description="environment variables whose values are kept elsewhere, per provider")
    tags: Annotated[Mapping[str, str], BeforeValidator(fields.read_tags), WithJsonSchema(_TEXT_MAP)] = Field(
        {}, description="labels of the job"
    )
    aws: Aws = Aws.model_construct()
    azure: Azure = Azure.model_construct()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of job.yaml, from which editors complete it."""
    schema = JobSpec.model_json_schema()
    del schema["title"], schema["required"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "cloudtrain job", **schema}
