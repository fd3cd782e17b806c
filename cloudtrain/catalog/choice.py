"""From what a spec asks for to the instance types that have it, in order of preference. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cloudtrain.catalog import Instance, instances
from cloudtrain.errors import Keys

Problem = tuple[Keys, str, str | None]
"""A mistake before it has its place: keys, message, hint."""


def choose(
    provider: str, *, gpus: int, gpu: Sequence[str], named: Sequence[str], default: str
) -> tuple[tuple[str, ...], list[Problem]]:
    """The instance types for a job, and what is wrong with the wish.

    `named` types are taken as they are. Otherwise each GPU model of the list, in its order, gives the cheapest type
    that has exactly `gpus` of it; models that this provider does not have in that number are passed over, unless none
    is left. No model: the cheapest of all; no GPUs: `default`.
    """
    if named:
        return tuple(dict.fromkeys(named)), _wrong_counts(provider, gpus, named)
    if not gpus:
        return (default,), []
    chosen: list[str] = []
    problems: list[Problem] = []
    for index, model in enumerate(gpu or ("",)):
        rows = [row for row in instances(provider) if row.gpus and (not model or model in names_of(row))]
        fitting = sorted((row for row in rows if row.gpus == gpus), key=_price)
        if fitting:
            chosen.append(fitting[0].instance_type)
            continue
        keys: Keys = ("resources", "gpu", index) if model else ("resources", "gpus")
        offered = ", ".join(f"{row.gpus} ({row.instance_type})" for row in _one_per_count(rows))
        what = f"{gpus} x {model}" if model else f"{gpus} GPUs"
        hint = f"a node can have: {offered}" if rows else f"{provider} has: {', '.join(_models(provider))}"
        problems.append((keys, f"no {provider} instance type has {what}", hint))
    return tuple(dict.fromkeys(chosen)), [] if chosen else problems


def find(provider: str, instance_type: str) -> Instance | None:
    """The row of an instance type, None when the table does not know it."""
    name = instance_type.lower()  # Azure does not tell capitals apart, and AWS has none
    return next((row for row in instances(provider) if row.instance_type.lower() == name), None)


def architecture_of(provider: str, types: Sequence[str]) -> str:
    """What images must be built for, by the first of these types; amd64 where the table does not know it."""
    row = find(provider, types[0]) if types else None
    return row.architecture if row else "amd64"


def names_of(row: Instance) -> tuple[str, ...]:
    """What a spec may call this row's GPU: `A100`, `A100-80GB`."""
    return (row.gpu, f"{row.gpu}-{row.gpu_memory_gib:.0f}GB") if row.gpu_memory_gib else (row.gpu,)


def _wrong_counts(provider: str, gpus: int, named: Sequence[str]) -> list[Problem]:
    """A job that uses fewer GPUs than the machine has pays for idle ones; one that wants more never starts."""
    problems: list[Problem] = []
    for index, name in enumerate(named):
        row = find(provider, name)
        if row is None and (meant := find(provider, f"ml.{name}")):
            at: Keys = ("resources", "instance", provider, *((index,) if len(named) > 1 else ()))
            message = f"{name} is EC2's name of it (did you mean {meant.instance_type!r}?)"
            problems.append((at, message, None))
        if row is not None and row.gpus != gpus:
            has = f"{row.gpus} x {row.gpu}" if row.gpus else "no GPU"
            keys: Keys = ("resources", "instance", provider, *((index,) if len(named) > 1 else ()))
            problems.append((keys, f"{name} has {has}, the job uses {gpus} per node", f"resources.gpus: {row.gpus}"))
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
