"""Base of all sections of job.yaml, and types of fields."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from cloudtrain.errors import Issue
from cloudtrain.spec import fields
from cloudtrain.units import (
    DURATION_FORMS,
    DURATION_PATTERN,
    MONEY_FORMS,
    MONEY_PATTERN,
    SIZE_FORMS,
    SIZE_PATTERN,
    parse_duration,
    parse_money,
    parse_size,
)

STRINGS_SCHEMA = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


NAMES_OF_CLOUDS = {
    "TrainingJobName": "name",
    "accelerators": "resources.gpu and resources.gpus",
    "base_job_name": "name",
    "checkpoint_s3_uri": "checkpoints.uri",
    "code": "source",
    "command": "entrypoint and args",
    "disk_size": "resources.disk",
    "distribution": "resources.processes, or launcher: none",
    "enable_network_isolation": "aws.network_isolation",
    "encrypt_inter_container_traffic": "aws.encrypt_traffic",
    "entry_point": "entrypoint",
    "environment": "image, or env for variables",
    "environment_variables": "env",
    "envs": "env",
    "file_mounts": "inputs",
    "hyperparameters": "args",
    "image_uri": "image",
    "instance_count": "resources.nodes",
    "instance_type": "resources.instance",
    "keep_alive_period_in_seconds": "aws.keep_alive",
    "max_retry_attempts": "limits.retries",
    "max_run": "limits.max_runtime",
    "metric_definitions": "metrics",
    "num_nodes": "resources.nodes",
    "output_path": "aws.output",
    "outputs": "azure.outputs, or ${outputs.model} and the like in args",
    "queue_settings": "resources.spot",
    "requirements": "dependencies",
    "run": "entrypoint and args",
    "script": "entrypoint",
    "security_group_ids": "aws.security_groups",
    "shm_size": "resources.shm",
    "source_dir": "source",
    "timeout": "limits.max_runtime",
    "use_spot": "resources.spot",
    "use_spot_instances": "resources.spot",
    "volume_size": "resources.disk",
    "workdir": "source",
}
"""Names in job files and SDKs of clouds and other programs -> field of job.yaml."""


class Section(BaseModel):
    """Base of all parts of a spec: strict, frozen, without unknown keys."""

    # Built once, when a spec is read.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, defer_build=True
    )

    @classmethod
    def contradictions(cls, section: Mapping[str, Any], spec: Mapping[str, Any]) -> list[Issue]:  # noqa: ARG003
        """Return fields of a section that are impossible together.

        Values are raw, and any of them may have a wrong type: all mistakes are reported together.
        """
        return []


@dataclass(frozen=True)
class LazySchema:
    """JSON Schema of a field, made on demand because it names the installed providers."""

    make: Callable[[], dict[str, Any]]

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema to pydantic."""
        return self.make()


def _reader(parse: Callable[[str], Any], label: str, forms: str) -> BeforeValidator:
    return BeforeValidator(
        lambda value: value if value is None else fields.read_quantity(value, parse, label, forms)
    )


def _written(forms: str, pattern: str) -> WithJsonSchema:
    return WithJsonSchema(
        {"type": ["string", "null"], "pattern": pattern, "examples": forms.split(", ")}
    )


Duration = Annotated[
    int | None,
    _reader(parse_duration, "a duration", DURATION_FORMS),
    _written(DURATION_FORMS, DURATION_PATTERN),
]
"""Seconds, or None."""
Interval = Annotated[
    int,
    BeforeValidator(
        lambda v: fields.read_quantity(v, parse_duration, "a duration", DURATION_FORMS)
    ),
    WithJsonSchema(
        {"type": "string", "pattern": DURATION_PATTERN, "examples": DURATION_FORMS.split(", ")}
    ),
]
"""Seconds."""
_NEVER_OR_DURATION = {
    "type": "string",
    "pattern": f"{DURATION_PATTERN}|^0$",
    "examples": DURATION_FORMS.split(", "),
}
IntervalOrNever = Annotated[
    int,
    BeforeValidator(
        lambda v: (
            0
            if v in (0, "0")
            else fields.read_quantity(v, parse_duration, "a duration", DURATION_FORMS)
        )
    ),
    WithJsonSchema({"anyOf": [_NEVER_OR_DURATION, {"const": 0}]}),
]
"""Seconds; 0 means never."""
Size = Annotated[
    int | None, _reader(parse_size, "a size", SIZE_FORMS), _written(SIZE_FORMS, SIZE_PATTERN)
]
"""Bytes."""
Money = Annotated[
    float | None,
    _reader(parse_money, "an amount of money", MONEY_FORMS),
    _written(MONEY_FORMS, MONEY_PATTERN),
]
"""US dollars."""
Members = Annotated[
    Mapping[str, Any],
    BeforeValidator(fields.read_request),
    WithJsonSchema({"type": "object", "additionalProperties": True}),
]
"""Members of a platform's request, as plain JSON."""
Strings = Annotated[
    tuple[str, ...], BeforeValidator(fields.read_strings), WithJsonSchema(STRINGS_SCHEMA)
]
