"""From what a spec asks for to the instance types that have it, in order of preference. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from cloudtrain.catalog import Instance, instances, type_names
from cloudtrain.issues import Issue, Keys, did_you_mean


def select_instances(
    provider: str, *, gpus: int | None, gpu: Sequence[str], named: Sequence[str], default: str
) -> tuple[tuple[str, ...], int, list[Issue]]:
    """The instance types for a job, the GPUs that it uses of each, and what is wrong with what the
    spec says.

    `named` types are taken as they are, with all their GPUs where no number is given. Otherwise
    each GPU model of the list, in its order, gives the cheapest type that has exactly `gpus` of it;
    models that this provider does not have in that number are passed over, unless none is left. No
    model: the cheapest of all; no GPUs: `default`.
    """
    if named:
        found, problems = (gpus, []) if gpus is not None else _all_gpus(provider, named)
        wrong = _wrong_counts(provider, found, named)
        return tuple(dict.fromkeys(named)), found or 0, wrong or problems
    if not gpus:
        return (default,), 0, []
    chosen: list[str] = []
    problems = []
    for index, model in enumerate(gpu or ("",)):
        rows = [
            row for row in instances(provider) if row.gpus and (not model or model in names_of(row))
        ]
        fitting = sorted((row for row in rows if row.gpus == gpus), key=_price)
        if fitting:
            chosen.append(fitting[0].instance_type)
            continue
        keys: Keys = ("resources", "gpu", index) if model else ("resources", "gpus")
        offered = ", ".join(f"{row.gpus} ({row.instance_type})" for row in _one_per_count(rows))
        what = f"{gpus} x {model}" if model else f"{gpus} GPUs"
        hint = (
            f"a node can have: {offered}"
            if rows
            else f"{provider} has: {', '.join(_models(provider))}"
        )
        problems.append(Issue(keys, f"no {provider} instance type has {what}", hint))
    return tuple(dict.fromkeys(chosen)), gpus, [] if chosen else problems


def _all_gpus(provider: str, named: Sequence[str]) -> tuple[int | None, list[Issue]]:
    """How many GPUs these types have, which must be one number: processes per node are the same
    wherever it runs.
    """
    counts = {name: _gpus_of(provider, name) for name in named}
    at: Keys = ("resources", "instance", provider)
    unknown = [name for name, count in counts.items() if count is None]
    if unknown:
        meant = did_you_mean(unknown[0], (row.instance_type for row in instances(provider)))
        message = (
            f"{unknown[0]} is not in our table of machines, so how many GPUs it has is not"
            f" known{meant}"
        )
        return None, [Issue(at, message, "say resources.gpus: how many the job uses per node")]
    if len(set(counts.values())) > 1:
        counted = ", ".join(f"{name}: {count}" for name, count in counts.items())
        hint = "name types with as many GPUs as each other, of which a job uses all"
        return None, [Issue(at, f"these types have different numbers of GPUs ({counted})", hint)]
    return next(iter(counts.values())), []


def _gpus_of(provider: str, name: str) -> int | None:
    """From the table, or else from its name; None where neither has it."""
    row = find_instance(provider, name)
    if row is None:
        return None if type_names.has_gpus(provider, name) else 0
    return row.gpus


def local_disks(instance_type: str) -> bool | None:
    """Whether an instance type of AWS's has disks of its own, which SageMaker uses in place of a
    volume; None: unknown.

    They are encrypted by themselves, and take no key of ours.
    """
    row = find_instance("aws", instance_type)
    return type_names.local_disks(instance_type) if row is None or row.nvme is None else row.nvme


def find_instance(provider: str, instance_type: str) -> Instance | None:
    """The row of an instance type, None when the table does not know it."""
    return _rows_by_name(provider).get(
        instance_type.lower()
    )  # Azure ignores case, and AWS has no capitals


def architecture_of(provider: str, types: Sequence[str]) -> str:
    """What images must be built for, by the first of these types; amd64 by default."""
    return type_names.architecture(provider, types[0]) if types else "amd64"


def mixed_architectures(provider: str, types: Sequence[str]) -> list[Issue]:
    """Why no one image of ours or of the cloud's runs on all of these types, if none does."""
    known = {name: type_names.architecture(provider, name) for name in types}
    if len(set(known.values())) < 2:
        return []
    listed = ", ".join(f"{name}: {architecture}" for name, architecture in known.items())
    hint = "name types of one kind, or an image of your own that is built for both"
    return [Issue(("resources",), f"no one image runs on all of these machines ({listed})", hint)]


@cache
def _rows_by_name(provider: str) -> dict[str, Instance]:
    return {row.instance_type.lower(): row for row in instances(provider)}


def names_of(row: Instance) -> tuple[str, ...]:
    """What a spec may call this row's GPU: `A100`, `A100-80GB`."""
    return (row.gpu, f"{row.gpu}-{row.gpu_memory_gib:.0f}GB") if row.gpu_memory_gib else (row.gpu,)


def _wrong_counts(provider: str, gpus: int | None, named: Sequence[str]) -> list[Issue]:
    """A job that uses fewer GPUs than the machine has pays for idle ones; one that wants more never
    starts.
    """
    problems: list[Issue] = []
    for index, name in enumerate(named):
        row = find_instance(provider, name)
        if row is None and (meant := find_instance(provider, f"ml.{name}")):
            at: Keys = ("resources", "instance", provider, *((index,) if len(named) > 1 else ()))
            message = f"{name} is EC2's name of it (did you mean {meant.instance_type!r}?)"
            problems.append(Issue(at, message))
        if row is not None and gpus is not None and row.gpus != gpus:
            has = f"{row.gpus} x {row.gpu}" if row.gpus else "no GPU"
            keys: Keys = ("resources", "instance", provider, *((index,) if len(named) > 1 else ()))
            problems.append(
                Issue(
                    keys,
                    f"{name} has {has}, the job uses {gpus} per node",
                    f"resources.gpus: {row.gpus}",
                )
            )
    return problems


def _models(provider: str) -> list[str]:
    """The GPU models of a provider."""
    return sorted({row.gpu for row in instances(provider) if row.gpu})


def _price(row: Instance) -> tuple[bool, float, int]:
    return row.usd_per_hour is None, row.usd_per_hour or 0.0, row.vcpus


def _one_per_count(rows: Sequence[Instance]) -> list[Instance]:
    cheapest: dict[int, Instance] = {}
    for row in sorted(rows, key=_price):
        cheapest.setdefault(row.gpus, row)
    return [cheapest[count] for count in sorted(cheapest)]
