"""Selection of instance types for a spec, in order of preference; and facts in their names. Pure.

After "Amazon EC2 instance type naming conventions" and "Naming conventions for Azure virtual
machine sizes". tests/unit/test_machines.py compares the results with EC2's own data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal

from cloudtrain.catalog import Instance, instances, names_of
from cloudtrain.errors import Issue, Keys, did_you_mean
from cloudtrain_wire.gpus import Gpu, gpu_named

# Compiled at first use: most plans do not need them.
_EC2 = r"(?:ml\.)?(?P<series>[a-z]+)(?P<generation>\d+)(?P<options>[a-z]*)(?:-\w+)?\.[\w-]+"
"""`r`, `5` and `d` of `ml.r5d.large`."""
_STORAGE_SERIES = ("i", "im", "is", "d", "h", "f", "x", "trn", "gr")
"""Series that always have local disks, without a letter for it."""
_STORAGE_FROM = {"p": 5, "g": 5}
"""Series with local disks from a generation on."""
_STORAGE_UNTIL = {"c": 3, "m": 3, "r": 3}
"""Series with local disks up to a generation."""
_AZURE_ARM = r"(standard|basic)_[a-z]+\d+(-\d+)?[a-z]*p[a-z]*(_|$)"
"""A small `p` means an ARM processor."""
_GRACE = r"[_-]g[bh]\d00(_|\.|$)"
"""NVIDIA's ARM processor: `p6e-gb200.36xlarge`, `Standard_ND128isr_NDR_GB200_v6`."""
_GPU_SERIES = {
    "aws": {r"ml\.p2\..*": "K80"},
    "azure": {
        r"standard_nc\d+r?": "K80",
        r"standard_nc\d+r?s_v2": "P100",
        r"standard_nc\d+r?s_v3|standard_nd40rs_v2": "V100",
        r"standard_nd\d+r?s": "P40",
        r"standard_nv\d+|standard_nv\d+s_v[23]": "M60",
    },
}
"""Series without a row, whose names do not say their GPU. Azure's newer names do."""
_GPUS = {"aws": r"(ml\.)?(p|g|gr)\d", "azure": r"standard_n"}


def select_instances(
    provider: str,
    *,
    gpus: int | Literal["all"] | None,
    gpu: Sequence[str],
    named: Sequence[str],
    default: str,
) -> tuple[tuple[str, ...], int, list[Issue]]:
    """Return the instance types of a job, the GPUs per node, and mistakes in the spec.

    `named` types are used unchanged, with all their GPUs by default, and if `gpus` is all. Otherwise each GPU model
    gives the cheapest type with exactly `gpus` of it. Models that the provider lacks are skipped if
    another one is left. Without a model: the cheapest type. Without GPUs: `default`.
    """
    if gpus == "all":
        gpus = None
        if not named:
            message = (
                f"all means the GPUs of a machine, and no instance type of {provider} is named"
            )
            hint = "name one in resources.instance, or set a number of GPUs"
            return (), 0, [Issue(("resources", "gpus"), message, hint)]

    if named:
        gpu_count = gpus
        problems: list[Issue] = []
        if gpus is None:
            gpu_count, problems = _all_gpus(provider, named)

        wrong = _wrong_counts(provider, gpu_count, named)
        return tuple(dict.fromkeys(named)), gpu_count or 0, wrong or problems

    if not gpus:
        return (default,), 0, []

    chosen: list[str] = []
    problems = []
    for index, model in enumerate(gpu or ("",)):
        rows = [row for row in instances(provider) if row.gpus]
        if model:
            rows = [row for row in rows if model in names_of(row)]

        fitting = sorted((row for row in rows if row.gpus == gpus), key=_price)
        if fitting:
            chosen.append(fitting[0].instance_type)
            continue

        offered = ", ".join(f"{row.gpus} ({row.instance_type})" for row in _one_per_count(rows))
        if model:
            keys: Keys = ("resources", "gpu", index)
            request = f"{gpus} x {model}"
        else:
            keys = ("resources", "gpus")
            request = f"{gpus} GPUs"

        if rows:
            hint = f"a node can have: {offered}"
        else:
            hint = f"{provider} has: {', '.join(_models(provider))}"

        problems.append(Issue(keys, f"no {provider} instance type has {request}", hint))

    if chosen:
        problems = []

    return tuple(dict.fromkeys(chosen)), gpus, problems


def _all_gpus(provider: str, named: Sequence[str]) -> tuple[int | None, list[Issue]]:
    """Return the GPU count of these types, which must be equal for all."""
    counts = {name: _gpus_of(provider, name) for name in named}
    at: Keys = ("resources", "instance", provider)
    unknown = [name for name, count in counts.items() if count is None]

    if unknown:
        meant = did_you_mean(unknown[0], (row.instance_type for row in instances(provider)))
        message = (
            f"{unknown[0]} is not in the table of machines, so its number of GPUs is unknown{meant}"
        )
        return None, [Issue(at, message, "set resources.gpus: the GPUs per node")]

    if len(set(counts.values())) > 1:
        counted = ", ".join(f"{name}: {count}" for name, count in counts.items())
        hint = "name types with the same number of GPUs, or set resources.gpus"
        return None, [Issue(at, f"these types have different numbers of GPUs ({counted})", hint)]

    return next(iter(counts.values())), []


def _gpus_of(provider: str, name: str) -> int | None:
    """Return the GPU count from the table or the name, or None."""
    row = find_instance(provider, name)
    if row is None:
        return None if has_gpus_by_name(provider, name) else 0

    return row.gpus


def local_disks(instance_type: str) -> bool | None:
    """Return whether an AWS type has local disks, used instead of a volume; None: unknown.

    Local disks encrypt themselves and accept no key.
    """
    row = find_instance("aws", instance_type)
    if row is None or row.nvme is None:
        return _disks_by_name(instance_type)

    return row.nvme


def find_instance(provider: str, instance_type: str) -> Instance | None:
    """Return the row of an instance type, or None."""
    # Azure ignores case, and types of AWS are in lower case.
    return _rows_by_name(provider).get(instance_type.lower())


def gpu_of(provider: str, instance_type: str) -> Gpu | None:
    """Return the GPU of a type by its row, or else by its name; None if unknown."""
    row = find_instance(provider, instance_type)
    if row is not None:
        return gpu_named(row.gpu)

    for pattern, name in _GPU_SERIES.get(provider, {}).items():
        if re.fullmatch(pattern, instance_type, re.IGNORECASE):
            return gpu_named(name)

    return gpu_named(instance_type.upper().replace("_", " ").replace(".", " "))


def architecture_of(provider: str, types: Sequence[str]) -> str:
    """Return the architecture for images, by the first of these types; default amd64."""
    if not types:
        return "amd64"

    return architecture_by_name(provider, types[0])


@cache
def _rows_by_name(provider: str) -> dict[str, Instance]:
    return {row.instance_type.lower(): row for row in instances(provider)}


def _wrong_counts(provider: str, gpus: int | None, named: Sequence[str]) -> list[Issue]:
    """Return issues for GPU counts that leave GPUs idle or can never start."""
    problems: list[Issue] = []
    for index, name in enumerate(named):
        keys: Keys = ("resources", "instance", provider)
        if len(named) > 1:
            keys = (*keys, index)

        row = find_instance(provider, name)
        if row is None and (meant := find_instance(provider, f"ml.{name}")):
            message = f"{name} is the EC2 name (did you mean {meant.instance_type!r}?)"
            problems.append(Issue(keys, message))

        if row is not None and gpus is not None and row.gpus != gpus:
            has = "no GPU"
            if row.gpus:
                has = f"{row.gpus} x {row.gpu}"

            problems.append(
                Issue(
                    keys,
                    f"{name} has {has}, the job uses {gpus} per node",
                    f"resources.gpus: {row.gpus}",
                )
            )

    return problems


def _models(provider: str) -> list[str]:
    """Return the GPU models of a provider."""
    return sorted({row.gpu for row in instances(provider) if row.gpu})


def _price(row: Instance) -> tuple[bool, float, int]:
    return row.usd_per_hour is None, row.usd_per_hour or 0.0, row.vcpus


def _one_per_count(rows: Sequence[Instance]) -> list[Instance]:
    cheapest: dict[int, Instance] = {}
    for row in sorted(rows, key=_price):
        cheapest.setdefault(row.gpus, row)

    return [cheapest[count] for count in sorted(cheapest)]


def _disks_by_name(instance_type: str) -> bool | None:
    """Return whether an EC2 type has local disks; None for an unknown name."""
    name = re.fullmatch(_EC2, instance_type)
    if name is None:
        return None

    series = name["series"]
    generation = int(name["generation"])
    options = name["options"]

    if "d" in options:
        return True
    if series in _STORAGE_SERIES:
        return series != "x" or generation == 1
    if series in _STORAGE_FROM:
        return generation >= _STORAGE_FROM[series] and options != "g"

    return generation <= _STORAGE_UNTIL.get(series, 0)


def architecture_by_name(provider: str, instance_type: str) -> str:
    """Return the architecture as images name it: arm64 or amd64."""
    if re.search(_GRACE, instance_type, re.IGNORECASE):
        return "arm64"
    if provider == "azure" and re.match(_AZURE_ARM, instance_type, re.IGNORECASE):
        return "arm64"

    name = None
    if provider == "aws":
        name = re.fullmatch(_EC2, instance_type)
    if name and ("g" in name["options"] or name["series"] == "a"):  # Graviton
        return "arm64"

    return "amd64"


def is_azure_size(name: str) -> bool:
    """Return whether a name is an Azure machine size: `Standard_D4s_v3`. Case is ignored."""
    return re.fullmatch(r"(standard|basic)_\w+", name, re.IGNORECASE) is not None


def has_gpus_by_name(provider: str, instance_type: str) -> bool:
    """Return whether a type is of a series with GPUs."""
    return re.match(_GPUS.get(provider, "$"), instance_type, re.IGNORECASE) is not None
