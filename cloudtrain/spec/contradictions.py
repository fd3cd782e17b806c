"""Fields that are valid alone but impossible together, and unknown placeholders.

Sweeps and providers have their own checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cloudtrain.errors import Issue, did_you_mean
from cloudtrain.spec.inputs import TRAINER_METRICS
from cloudtrain.spec.yaml_document import mapping_of, quantity_of
from cloudtrain.units import parse_duration

# Compiled at first use, to keep a plan fast.
_PLACE = (
    r"\$\{(?P<doubled>\{\s*)?(?P<kind>inputs|outputs)\.(?P<name>[A-Za-z][\w-]*)(?(doubled)\s*\})\}"
)
"""`${inputs.train}`, `${outputs.model}`; or `${{inputs.train}}` as in Azure ML."""
OUTPUTS = ("model", "output", "checkpoints")


def contradictions(values: Mapping[str, Any]) -> list[Issue]:
    """Return the contradictions in raw values, reported together with other mistakes."""
    issues: list[Issue] = []
    resources = mapping_of(values, "resources")
    limits = mapping_of(values, "limits")
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

    issues += _unknown_placeholders("args", values.get("args"), values)
    issues += _launcher_issues(values, resources, limits, env)
    for name in mapping_of(values, "secrets"):
        if name in env:
            issues.append(Issue(("secrets", name), "is also set by env", "keep one of them"))

    return issues


def _launcher_issues(
    values: Mapping[str, Any],
    resources: Mapping[str, Any],
    limits: Mapping[str, Any],
    env: Mapping[str, Any],
) -> Iterator[Issue]:
    """Yield fields without effect or sense beside the launcher."""
    launch = mapping_of(values, "launch")
    entrypoint = values.get("entrypoint")
    launcher = values.get("launcher", "torchrun")
    if launcher == "torchrun":
        hint = "set launcher: none to run a command unchanged, once per node"
        if isinstance(entrypoint, list):
            yield Issue(("entrypoint",), "is a list, but torchrun runs one program", hint)
        for name in ("tf_config", "rank_variables"):
            if launch.get(name) is True:
                yield Issue(("launch", name), "has no effect on ranks of torchrun", hint)
    if launcher != "none":
        return

    if entrypoint is None:
        yield Issue(("launcher",), "none needs an entrypoint", "entrypoint: mpirun -np 2 ./train")
    elif isinstance(entrypoint, list):
        yield from _unknown_placeholders("entrypoint", entrypoint, values)
    else:
        for issue in _unknown_placeholders("entrypoint", [entrypoint], values):
            yield replace(issue, path=("entrypoint",))

    beside = "cannot go with launcher: none, which"
    refused = {
        ("resources", "processes"): (resources, "auto 1", f"{beside} starts one process per node"),
        ("limits", "restarts"): (limits, "0", f"{beside} has no restarts in place"),
        ("limits", "hang"): (limits, "0", f"{beside} cannot see that processes wait"),
        ("launch", "require_group"): (launch, "False", f"{beside} knows no torch.distributed"),
        ("launch", "timings"): (launch, "False", f"{beside} measures no steps"),
        ("launch", "warm"): (launch, "", f"{beside} forks no ranks"),
    }
    for keys, (section, allowed, message) in refused.items():
        value = section.get(keys[1])
        if value is not None and str(value) not in allowed.split():
            if keys[1] == "restarts":
                hint = "set limits.retries"
            else:
                hint = f"remove {'.'.join(keys)}"

            yield Issue(keys, message, hint)

    if launch.get("tf_config") is True and "TF_CONFIG" in env:
        yield Issue(("env", "TF_CONFIG"), "is also set by launch.tf_config", "keep one of them")


def _unknown_placeholders(section: str, args: Any, values: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield unknown placeholders in the words of a section; a provider's may add outputs."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(args, dict):
        items = args.items()
    elif isinstance(args, list):
        items = enumerate(args)

    sections = [mapping_of(values, name) for name in values]
    sections += [mapping_of(section, "request") for section in sections]
    outputs = list(OUTPUTS)
    for part in sections:
        outputs += map(str, mapping_of(part, "outputs"))

    names_by_kind = {"inputs": list(map(str, mapping_of(values, "inputs"))), "outputs": outputs}
    for key, item in items:
        text = str(item)
        if "${" not in text:
            continue

        for place in re.finditer(_PLACE, text):
            name = place["name"]
            names = names_by_kind[place["kind"]]
            is_known = name in names
            if place["doubled"]:  # Azure ML has no hyphens in names
                is_known = name.replace("-", "_") in {other.replace("-", "_") for other in names}

            if not is_known:
                message = f"unknown {place['kind'][:-1]} {name!r}{did_you_mean(name, names)}"
                yield Issue((section, key), message)
