"""Fields that are valid alone but impossible together, and unknown placeholders.

Sweeps and providers have their own checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cloudtrain.issues import Issue, did_you_mean
from cloudtrain.spec.metric_patterns import TRAINER_METRICS
from cloudtrain.spec.yaml_document import mapping_of, quantity_of
from cloudtrain.units import parse_duration

# Compiled at first use, to keep a plan fast.
_PLACE = (
    r"\$\{(?P<doubled>\{\s*)?(?P<kind>inputs|outputs)\.(?P<name>[A-Za-z][\w-]*)(?(doubled)\s*\})\}"
)
"""`${inputs.train}`, `${outputs.model}`; or `${{inputs.train}}` as in Azure ML."""
_AZURES_OWN = r"\$\{\{\s*((search_space|parent)\.[^}]*?)\s*\}\}"
_OUTPUTS = ("model", "output", "checkpoints")


def contradictions(values: Mapping[str, Any]) -> list[Issue]:
    """Return the contradictions in raw values, reported together with other mistakes."""
    issues: list[Issue] = []
    resources = mapping_of(values, "resources")
    limits = mapping_of(values, "limits")
    inputs = mapping_of(values, "inputs")
    env = mapping_of(values, "env")

    if resources.get("gpu") and resources.get("instance"):
        message = "conflicts with gpu: both choose the machine"
        hint = "keep gpu (any cloud picks a machine) or instance (you pick it), not both"
        issues.append(Issue(("resources", "instance"), message, hint))
    if resources.get("gpu") and resources.get("gpus") is None:
        message = "names a GPU model without a count"
        issues.append(Issue(("resources", "gpu"), message, "set gpus: the number per node"))

    runtime = quantity_of(limits.get("max_runtime"), parse_duration)
    wait = quantity_of(limits.get("max_wait"), parse_duration)
    if runtime and wait and wait < runtime and resources.get("spot") is True:
        hint = "max_wait counts from submission to the end and includes the run"
        issues.append(Issue(("limits", "max_wait"), "is shorter than max_runtime", hint))

    for name in mapping_of(values, "metrics"):
        if name in TRAINER_METRICS and values.get("entrypoint") is None:
            message = "is already reported by the shared trainer"
            issues.append(Issue(("metrics", name), message, "choose another name"))

    issues += _unknown_placeholders(values.get("args"), inputs)
    issues += _placeholders_in_env(env, inputs)
    for name in mapping_of(values, "secrets"):
        if name in env:
            issues.append(Issue(("secrets", name), "is also set by env", "keep one of them"))
    return issues


def _unknown_placeholders(args: Any, inputs: Mapping[str, Any]) -> list[Issue]:
    """Return an issue for each unknown placeholder in the arguments."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(args, dict):
        items = args.items()
    elif isinstance(args, list):
        items = enumerate(args)

    names_by_kind = {"inputs": tuple(map(str, inputs)), "outputs": _OUTPUTS}
    issues: list[Issue] = []
    for key, item in items:
        text = str(item)
        if "${" not in text:
            continue
        for place in re.finditer(_PLACE, text):
            kind = place["kind"]
            name = place["name"]
            names = set(names_by_kind[kind])
            spelling = name
            if place["doubled"]:  # Azure ML has no hyphens in names
                names = {known_name.replace("-", "_") for known_name in names}
                spelling = name.replace("-", "_")
            if spelling not in names:
                suggestion = did_you_mean(name, names_by_kind[kind])
                message = f"unknown {kind[:-1]} {name!r}{suggestion}"
                issues.append(Issue(("args", key), message))
        for word, _ in re.findall(_AZURES_OWN, text):
            message = f"${{{{{word}}}}} is only for pipelines and sweeps of Azure ML"
            hint = (
                "use ${inputs.NAME}, ${outputs.model}, ${outputs.output} or ${outputs.checkpoints}"
            )
            issues.append(Issue(("args", key), message, hint))
    return issues


def _placeholders_in_env(env: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[Issue]:
    """Return an issue for each placeholder in `env`, where none are replaced."""
    names = {str(name).replace("_", "-") for name in (*inputs, *_OUTPUTS)}
    issues: list[Issue] = []
    for key, item in env.items():
        place = re.search(_PLACE, str(item))
        if place is None or place["name"].replace("_", "-") not in names:
            continue
        variable = "CLOUDTRAIN_OUTPUT_DIR, …_MODEL_DIR, …"
        if place["kind"] == "inputs":
            variable = f"CLOUDTRAIN_INPUT_{place['name'].upper().replace('-', '_')}"
        hint = f"use it in args, or read the variable {variable} in the program"
        issues.append(Issue(("env", key), f"{place[0]} is replaced in args only", hint))
    return issues
