"""What is right each by itself in a spec, but impossible together; sweeps and sections of providers
have their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.issues import Issue
from cloudtrain.spec.metric_patterns import TRAINER_METRICS
from cloudtrain.spec.placeholders import placeholders_in_env, unknown_placeholders
from cloudtrain.spec.raw_values import mapping_of, quantity_of
from cloudtrain.units import parse_duration


def contradictions(values: Mapping[str, Any]) -> list[Issue]:
    """Of raw values, so that they are told beside other mistakes."""
    found: list[Issue] = []
    resources, limits = (mapping_of(values, key) for key in ("resources", "limits"))
    if resources.get("gpu") and resources.get("instance"):
        hint = "keep gpu (any cloud picks a machine) or instance (you pick it), not both"
        found.append(
            Issue(("resources", "instance"), "stands beside gpu: both choose the machine", hint)
        )
    if resources.get("gpu") and resources.get("gpus") is None:
        found.append(
            Issue(
                ("resources", "gpu"),
                "asks for a GPU model, but not how many",
                "add gpus: how many per node",
            )
        )
    runtime, wait = (
        quantity_of(limits.get(key), parse_duration) for key in ("max_runtime", "max_wait")
    )
    if runtime and wait and wait < runtime and resources.get("spot") is True:
        hint = "max_wait counts from submission to the end, running included"
        found.append(Issue(("limits", "max_wait"), "is shorter than max_runtime", hint))
    if values.get("entrypoint") is None:
        found += [
            Issue(
                ("metrics", name), "is reported by the shared trainer itself", "choose another name"
            )
            for name in mapping_of(values, "metrics")
            if name in TRAINER_METRICS
        ]
    found += unknown_placeholders(values.get("args"), mapping_of(values, "inputs"))
    secrets = mapping_of(values, "secrets")
    env = mapping_of(values, "env")
    found += placeholders_in_env(env, mapping_of(values, "inputs"))
    found += [
        Issue(("secrets", name), "is set by env too", "keep one of them")
        for name in secrets
        if name in env
    ]
    return found
