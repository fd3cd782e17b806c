"""Allowed fields of a job's PUT body, after Azure ML's REST reference: closed, limited to the
imitated ones.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft6Validator, Draft202012Validator
from jsonschema.exceptions import ValidationError

OFFICIAL_FILES = {
    "Command": "job-subset.2025-01-01-preview.json",
    "Sweep": "job-subset.2024-01-01-preview.json",
}
"""API version that azure-ai-ml uses for each kind of job."""
Schema = dict[str, Any]


def _closed(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _one_of(*names: str) -> Schema:
    return {"type": "string", "enum": list(names)}


_TEXT: Schema = {"type": "string"}
_WORD: Schema = {"type": "string", "pattern": "[a-zA-Z0-9_]"}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_TEXTS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
_NAMED: Schema = {"propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}}
_INPUT_MODES = ("ReadOnlyMount", "Download", "Direct", "EvalMount", "EvalDownload")
_KINDS = ("uri_folder", "uri_file")
_ASSETS = ("mltable", "custom_model", "mlflow_model", "triton_model")
_INPUT = _closed(
    ("jobInputType", "uri"),
    jobInputType=_one_of(*_KINDS, *_ASSETS),
    uri=_WORD,
    mode=_one_of(*_INPUT_MODES),
)
_OUTPUT = _closed(
    ("jobOutputType",),
    jobOutputType=_one_of(*_KINDS, *_ASSETS),
    uri=_TEXT,
    mode=_one_of("ReadWriteMount", "Upload", "Direct"),
    assetName=_TEXT,
)
_SERVICE = _closed(
    ("jobServiceType",),
    jobServiceType=_one_of("SSH", "JupyterLab", "TensorBoard", "VSCode"),
    nodes=_closed(("nodesValueType",), nodesValueType=_one_of("All")),
    properties=_closed(sshPublicKeys=_TEXT, logDir=_TEXT),
)
JOB: Schema = _closed(
    ("jobType", "command", "environmentId"),
    jobType=_one_of("Command"),
    command={"type": "string", "minLength": 1, "pattern": "[a-zA-Z0-9_]"},
    environmentId=_WORD,
    codeId=_TEXT,
    computeId=_TEXT,
    description=_TEXT,
    displayName=_TEXT,
    experimentName=_TEXT,
    isArchived={"type": "boolean"},
    tags=_TEXTS,
    properties=_TEXTS,
    environmentVariables=_TEXTS,
    inputs={"type": "object", "additionalProperties": _INPUT, **_NAMED},
    outputs={"type": "object", "additionalProperties": _OUTPUT, **_NAMED},
    distribution=_closed(
        ("distributionType",),
        distributionType=_one_of("PyTorch", "TensorFlow", "Mpi", "Ray"),
        processCountPerInstance=_COUNT,
    ),
    limits=_closed(("jobLimitsType",), jobLimitsType=_one_of("Command"), timeout=_TEXT),
    queueSettings=_closed(jobTier=_one_of("Spot")),
    resources=_closed(
        instanceCount=_COUNT,
        instanceType=_TEXT,
        dockerArgs=_TEXT,
        shmSize={"type": "string", "pattern": "^\\d+[bBkKmMgG]$"},
        properties={"type": "object"},
    ),
    services={"type": "object", "additionalProperties": _SERVICE, **_NAMED},
    identity=_closed(
        ("identityType",),
        identityType=_one_of("UserIdentity", "Managed", "AMLToken"),
        clientId=_TEXT,
    ),
)
_TRIAL = ("command", "environmentId", "codeId", "environmentVariables", "distribution", "resources")
_SHARED = (
    *(
        "computeId",
        "displayName",
        "experimentName",
        "isArchived",
        "tags",
        "properties",
        "inputs",
    ),
    *("outputs", "queueSettings", "resources", "identity"),
)
SWEEP: Schema = _closed(
    ("jobType", "objective", "samplingAlgorithm", "searchSpace", "trial"),
    jobType=_one_of("Sweep"),
    **{name: JOB["properties"][name] for name in _SHARED},
    objective=_closed(
        ("goal", "primaryMetric"),
        goal=_one_of("minimize", "maximize", "Minimize", "Maximize"),
        primaryMetric=_WORD,
    ),
    samplingAlgorithm=_closed(
        ("samplingAlgorithmType",),
        samplingAlgorithmType=_one_of("Grid", "Random", "Bayesian"),
        seed={"type": "integer"},
        rule=_one_of("random", "sobol", "Random", "Sobol"),
    ),
    searchSpace={"type": "object"},
    earlyTermination={"type": "object", "required": ["policyType"]},
    description=_TEXT,
    trial=_closed(
        ("command", "environmentId"), **{name: JOB["properties"][name] for name in _TRIAL}
    ),
    limits=_closed(
        ("jobLimitsType",),
        jobLimitsType=_one_of("Sweep"),
        maxTotalTrials={"type": "integer"},
        maxConcurrentTrials={"type": "integer"},
        timeout=_TEXT,
        trialTimeout=_TEXT,
    ),
)
BODY: Schema = _closed(("properties",), properties=JOB)
SWEEP_BODY: Schema = _closed(("properties",), properties=SWEEP)
_DURATION = re.compile(
    r"P(?!$)(?:(?P<days>\d+)D)?(?:T(?!$)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:\.\d+)?S)?)?"
)


def violations(body: Schema) -> list[str]:
    """Return the violations of a PUT body with their places."""
    properties = body.get("properties")
    is_sweep = isinstance(properties, dict) and properties.get("jobType") == "Sweep"
    schema = SWEEP_BODY if is_sweep else BODY
    errors = sorted(
        Draft202012Validator(schema).iter_errors(body), key=lambda error: list(map(str, error.path))
    )
    return [reason for error in errors for reason in _reasons(error)]


def _reasons(error: ValidationError) -> Iterator[str]:
    """Yield the service's words for a violation: one for each unknown member."""
    if error.validator != "additionalProperties":
        yield f"{'.'.join(map(str, error.absolute_path)) or 'body'}: {error.message}"
        return
    instance: Any = error.instance
    kind = instance.get("jobOutputType") or instance.get("jobInputType") or "job"
    type_ = "".join(part.capitalize() for part in kind.split("_"))
    suffix = {"jobOutputType": "JobOutput", "jobInputType": "JobInput"}
    for name in suffix:
        type_ += suffix[name] * (name in instance)
    for name in instance.keys() - error.schema["properties"].keys():  # type: ignore[index]
        yield f"Could not find member '{name}' on object of type '{type_}'. Path '{name}', line 1."


def duration_seconds(text: str) -> int | None:
    """An ISO 8601 duration in seconds; None for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (
        int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


_BESIDE = Path(__file__).resolve().parents[4] / "shared" / "azure-schema"
# At import: a test's home has an empty environment.
_OFFICIAL = Path(os.environ.get("CLOUDTRAIN_AZURE_SCHEMA") or _BESIDE)


@cache
def official_schema(kind: str = "Command") -> Schema | None:
    """Microsoft's own schema of the properties of a command or sweep job, if it is in the folder
    for it.

    CLOUDTRAIN_AZURE_SCHEMA names that folder, else it is beside the repository.
    """
    path = _OFFICIAL / OFFICIAL_FILES[kind]
    if not path.is_file():
        return None
    document = json.loads(path.read_text())
    return {**document["jobs"][kind], "definitions": document["definitions"]}


def official_violations(schema: Schema, properties: Schema) -> list[str]:
    """Return the violations of Microsoft's schema in a job's properties."""
    return [
        leaf for error in Draft6Validator(schema).iter_errors(properties) for leaf in _leaves(error)
    ]


def _leaves(error: ValidationError) -> Iterator[str]:
    if not error.context:
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
    for inner in error.context or ():
        yield from _leaves(inner)
