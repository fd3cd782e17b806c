"""Models of the sections of job.yaml, each field with its meaning and JSON Schema."""

import shlex
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from pydantic import BeforeValidator, Field, WithJsonSchema, create_model

from cloudtrain.catalog import all_gpu_names
from cloudtrain.declaration import declaration_of, declarations, is_provider, provider_names
from cloudtrain.spec import fields
from cloudtrain.spec.fields import Arguments, read_keep
from cloudtrain.spec.inputs import (
    INPUT_TYPES,
    Dependencies,
    Input,
    read_dependencies,
    read_inputs,
    read_metrics,
)
from cloudtrain.spec.section import (
    STRINGS_SCHEMA,
    Duration,
    Interval,
    IntervalOrNever,
    LazySchema,
    Money,
    Section,
    Size,
)

if TYPE_CHECKING:
    from cloudtrain.spec.sweep import Sweep
else:
    Sweep = Any  # few jobs have the section: `spec_model` imports its model for these

SCHEMA_ID = "urn:cloudtrain:job.schema.json"
"""`$id` of the JSON Schema: a name, not an address. A copy is beside each job.yaml."""

SWEEP = "sweep"

_TEXT = {"type": ["string", "number", "boolean"]}
_TEXT_MAP = {"type": "object", "additionalProperties": _TEXT}
_DEPENDENCIES = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "file": {"type": "string"},
        "packages": {"type": "array", "items": {"type": "string"}},
        "replace_torch": {"type": "boolean"},
    },
}

ProviderSection = TypeVar("ProviderSection", bound=Section)


def _for_providers(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict.fromkeys(provider_names(), schema),
        "additionalProperties": False,
    }


def _inputs_schema() -> dict[str, Any]:
    properties = {
        **{place: {"type": "string"} for place in ("uri", *provider_names())},
        "mode": {"enum": ["copy", "stream"]},
        "type": {"enum": list(INPUT_TYPES)},
    }

    item = {
        "oneOf": [
            {"type": "string"},
            {"type": "object", "additionalProperties": False, "properties": properties},
        ]
    }

    return {"type": "object", "additionalProperties": item}


def _gpus_schema() -> dict[str, Any]:
    names = {"enum": list(all_gpu_names())}
    return {
        "oneOf": [
            {"type": "string", **names},
            {"type": "array", "items": names, "minItems": 1},
            {"type": "null"},
        ]
    }


class Resources(Section):
    """Number and type of the machines."""

    nodes: int = Field(1, ge=1, le=1000, description="how many machines")
    gpus: Annotated[
        int | Literal["all"] | None,
        BeforeValidator(fields.reader_of_count("all", 0, 64, None)),
        WithJsonSchema(
            {
                "oneOf": [
                    {"enum": ["all", None]},
                    {"type": "integer", "minimum": 0, "maximum": 64},
                ]
            }
        ),
    ] = Field(
        None,
        description=(
            "GPUs per node; 0 = CPU; all = this machine's, or all of `instance`; default: all"
            " GPUs of `instance`, else 0"
        ),
    )
    gpu: Annotated[tuple[str, ...], BeforeValidator(fields.read_gpus), LazySchema(_gpus_schema)] = (
        Field((), description="GPU models in order of preference, resolved through the catalog")
    )
    instance: Annotated[
        Mapping[str, tuple[str, ...]],
        BeforeValidator(fields.read_instances),
        LazySchema(lambda: _for_providers(STRINGS_SCHEMA)),
    ] = Field({}, description="instance types per provider, in order of preference, instead of gpu")
    processes: Annotated[
        int | Literal["auto"],
        BeforeValidator(fields.reader_of_count("auto", 1, 1024, "auto")),
        WithJsonSchema({"oneOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}),
    ] = Field("auto", description="processes per node; auto = one per GPU, else 1")
    spot: bool = Field(False, description="interruptible capacity at a lower price")
    disk: Size = Field(None, description="disk per node, such as 200 GiB")
    shm: Size = Field(None, description="shared memory per node, such as 16 GiB")

    def processes_on(self, gpus: int) -> int:
        """Return the processes of a node with this number of GPUs."""
        if isinstance(self.processes, int):
            return self.processes

        return max(1, gpus)


class Checkpoints(Section):
    """Interval, number and place of checkpoints."""

    every: Interval = Field(600, description="time between two checkpoints, such as 10 min")
    keep: int = Field(3, ge=1, description="how many are kept")
    uri: str | None = Field(
        None, description="your own durable storage; default: the provider's, for this run"
    )


class Limits(Section):
    """Limits that end a job, and restarts after a failure."""

    max_runtime: Duration = Field(None, description="stop after this long, such as 6 h")
    max_wait: Duration = Field(None, description="give up waiting for capacity after this long")
    max_cost: Money = Field(None, description="stop before the job costs more, such as 50 USD")
    hang: IntervalOrNever = Field(
        1800,
        description=("end ranks that wait for each other for this long; 0: never"),
    )
    retries: int = Field(
        0, ge=0, le=30, description="restarts of the whole job after a platform failure"
    )
    restarts: int = Field(0, ge=0, le=100, description="restarts in place after a process dies")


class Launch(Section):
    """Options of the launcher."""

    tf_config: bool = Field(
        False, description="describe the nodes to TensorFlow in TF_CONFIG; needs launcher: none"
    )
    rank_variables: bool = Field(
        False,
        description=(
            "set RANK, LOCAL_RANK and LOCAL_WORLD_SIZE for a command that is its node's only rank;"
            " needs launcher: none"
        ),
    )
    require_group: bool = Field(
        False,
        description=(
            "fail the job if its processes never join one torch.distributed group; else warn"
        ),
    )
    timings: bool = Field(
        False,
        description="report what the steps of a PyTorch program wait for, without a change of it",
    )
    warm: bool = Field(
        True,
        description=(
            "fork the ranks from one process with torch loaded; else each rank imports torch"
        ),
    )


def _read_entrypoint(value: Any) -> Any:
    """Read a program or command line; turn a list of words into a line for `shlex.split`."""
    if isinstance(value, list):
        return shlex.join(fields.read_list(value, fields.read_text))

    return value


class JobSpec(Section):
    """A job for any cloud, as in job.yaml.

    `spec_model` adds a field for each provider section.
    """

    name: Annotated[str, BeforeValidator(fields.read_name)] = Field(
        description="default: the folder's name"
    )
    entrypoint: Annotated[
        str | None,
        BeforeValidator(_read_entrypoint),
        WithJsonSchema({"oneOf": [{"type": "string"}, {"type": "array", "items": _TEXT}]}),
    ] = Field(
        None,
        description=(
            'a torchrun script, "-m package.module" or a notebook.ipynb; default: the shared'
            " trainer; with launcher: none a command line or a list of words"
        ),
    )
    launcher: Literal["torchrun", "none"] = Field(
        "torchrun",
        description="none: run the entrypoint unchanged, once per node, without torchrun",
    )
    args: Annotated[
        Arguments,
        BeforeValidator(fields.read_arguments),
        WithJsonSchema({"oneOf": [{"type": "object"}, {"type": "array", "items": _TEXT}]}),
    ] = Field(
        Arguments(), description="a mapping (--key value; true = bare flag) or a list, verbatim"
    )
    source: str = Field(".", min_length=1, description="the folder shipped with the job")
    image: Annotated[
        str | Mapping[str, str],
        BeforeValidator(fields.read_image),
        WithJsonSchema({"oneOf": [{"type": "string"}, {"type": "object"}]}),
    ] = Field(
        "auto",
        description=(
            "auto, an address, one per provider, {build: Dockerfile, context: its folder} or dlc:…"
        ),
    )
    dependencies: Annotated[
        Dependencies,
        BeforeValidator(read_dependencies),
        WithJsonSchema(
            {
                "oneOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}},
                    _DEPENDENCIES,
                ]
            }
        ),
    ] = Field(
        Dependencies(),
        description=(
            "packages to install: a file, a list or none; default: requirements.txt, then"
            " pyproject.toml"
        ),
    )
    setup: Annotated[
        tuple[str, ...], BeforeValidator(fields.read_setup), WithJsonSchema(STRINGS_SCHEMA)
    ] = Field(
        (), description="shell lines to run once per node before the program, after the packages"
    )
    resources: Resources = Resources.model_construct()
    inputs: Annotated[
        Mapping[str, Input],
        BeforeValidator(read_inputs),
        LazySchema(_inputs_schema),
    ] = Field(
        {},
        description="input folders and files; the job finds each in CLOUDTRAIN_INPUT_<NAME>. Those of"
        " this machine are read in place, or uploaded once to a cloud",
    )
    checkpoints: Checkpoints = Checkpoints.model_construct()
    limits: Limits = Limits.model_construct()
    launch: Launch = Launch.model_construct()
    metrics: Annotated[
        Mapping[str, str],
        BeforeValidator(read_metrics),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
    ] = Field(
        {},
        description=(
            "numbers in the first rank's output: a name and an expression with a group around it"
        ),
    )
    keep: Annotated[tuple[str, ...], BeforeValidator(read_keep), WithJsonSchema(STRINGS_SCHEMA)] = (
        Field(
            (),
            description=(
                "files of the working folder to keep with the output, such as out-*/, or with the"
                " model: model:config.json"
            ),
        )
    )
    env: Annotated[
        Mapping[str, str], BeforeValidator(fields.read_env), WithJsonSchema(_TEXT_MAP)
    ] = Field({}, description="environment variables of the job")
    secrets: Annotated[
        Mapping[str, Mapping[str, str]],
        BeforeValidator(fields.read_secrets),
        LazySchema(
            lambda: {"type": "object", "additionalProperties": _for_providers({"type": "string"})}
        ),
    ] = Field({}, description="environment variables from secret stores, per provider")
    tags: Annotated[
        Mapping[str, str], BeforeValidator(fields.read_tags), WithJsonSchema(_TEXT_MAP)
    ] = Field({}, description="labels of the job")
    sweep: Sweep | None = Field(
        None, description="a search over settings, which `cloudtrain sweep` runs as trials"
    )

    @property
    def machines(self) -> int:
        """Number of machines in use at once, by the job or by all parallel trials."""
        if self.sweep is None:
            return self.resources.nodes

        return self.resources.nodes * self.sweep.parallel

    @property
    def machines_at(self) -> tuple[str, ...]:
        """Field that sets the number of machines."""
        if self.machines == self.resources.nodes:
            return ("resources",)

        return ("sweep", "parallel")

    @property
    def sections(self) -> tuple[str, ...]:
        """Names of the providers with a section in this spec."""
        return tuple(name for name in type(self).model_fields if name not in JobSpec.model_fields)

    def section(self, kind: type[ProviderSection]) -> ProviderSection:
        """Return a provider's section, or its defaults."""
        for name in self.sections:
            if isinstance(value := getattr(self, name), kind):
                return value

        return cast("ProviderSection", kind.model_construct())


def sweep_model() -> type[Section]:
    """Import the model of the section `sweep`."""
    from cloudtrain.spec.sweep import Sweep

    return Sweep


def section_models() -> dict[str, type[Section]]:
    """Return the models of the sections that only some jobs have, by key."""
    models = {SWEEP: sweep_model()}
    for declared in declarations():
        if declared.section:
            models[declared.name] = declared.section()

    return models


def section_model(key: str) -> type[Section] | None:
    """Return the model of a section that only some jobs have, or None."""
    if key == SWEEP:
        return sweep_model()
    if key in JobSpec.model_fields or not is_provider(key):
        return None

    declared = declaration_of(key)
    if declared.section:
        return declared.section()

    return None


def spec_model(sections: Mapping[str, type[Section]]) -> type[JobSpec]:
    """Return the model of a job.yaml with these sections."""
    if not sections:
        return JobSpec

    return _spec_model(tuple(sections.items()))


@cache
def _spec_model(sections: tuple[tuple[str, type[Section]], ...]) -> type[JobSpec]:
    parts: dict[str, Any] = {}
    for name, model in sections:
        if name == SWEEP:
            parts[name] = (model | None, JobSpec.model_fields[name])
        else:
            parts[name] = (model, model.model_construct())

    return create_model("JobSpec", __base__=JobSpec, __doc__=JobSpec.__doc__, **parts)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of job.yaml for editors."""
    model = spec_model(section_models())
    _build(Section)
    schema = model.model_json_schema()
    del schema["title"], schema["required"]
    meaning = "file that this one builds on, such as ../base.yaml: values here replace those there"
    schema["properties"] = {
        "extends": {"type": "string", "description": meaning},
        **schema["properties"],
    }
    header = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "cloudtrain job",
    }

    return header | schema


def _build(model: type[Section]) -> None:
    """Build all models below this one. Before 2.14, pydantic cannot write the defaults of others."""
    for section in model.__subclasses__():
        section.model_rebuild()
        _build(section)
