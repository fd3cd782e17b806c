"""The job spec: what job.yaml may say, as frozen values, and how it is read with all its mistakes at once."""

from cloudtrain.spec.fields import Arguments, Input
from cloudtrain.spec.load import load_spec, spec_from_document, spec_from_values
from cloudtrain.spec.model import (
    Checkpoints,
    JobSpec,
    Limits,
    Resources,
    json_schema,
)

__all__ = [
    "Arguments",
    "Checkpoints",
    "Input",
    "JobSpec",
    "Limits",
    "Resources",
    "json_schema",
    "load_spec",
    "spec_from_document",
    "spec_from_values",
]
