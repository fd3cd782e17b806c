"""Why a plan shows the machine it shows, and which cheaper ones of any cloud satisfy the same spec.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cloudtrain.catalog import Instance, instances, type_names
from cloudtrain.catalog.machines import find_instance, names_of
from cloudtrain.catalog.pricing import RegionalPrices

CHEAPER = 0.95
"""A machine is named as cheaper from this share of the price on: tables are not more exact than
that.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """An instance type at its price in one region, on demand."""

    provider: str
    instance_type: str
    gpu: str
    """`A100-80GB`; empty for a machine without GPUs."""
    gpus: int
    region: str
    usd_per_hour: float
    """US dollars per hour of one machine."""
    as_of: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineChoice:
    """Why this machine, and what would cost less."""

    reason: str
    cheaper: tuple[Offer, ...] = ()
    """One of each provider that satisfies the spec and costs less, the plan's own provider first.
    """
    elsewhere: Offer | None = None
    """Where the price in the plan's own region is not known: the same machine in a region where it
    is.
    """


class Wanted(NamedTuple):
    """What a spec says of its machines."""

    nodes: int
    gpus: int
    """Per node."""
    models: tuple[str, ...] = ()
    """GPU models in order of preference; empty for any."""
    named: bool = False
    """Whether the spec names instance types itself."""


def explain_choice(
    wanted: Wanted,
    types: Sequence[str],
    here: RegionalPrices,
    others: Sequence[RegionalPrices] = (),
) -> MachineChoice:
    """The reason for the first of `types`, and machines here and at other providers that cost less
    than it.
    """
    reason = _reason(wanted, types, here)
    shown = find_instance(here.provider, types[0])
    price = here.price_of(types[0])
    if shown is None or price is None:
        return MachineChoice(reason=reason)
    found = (_cheaper(wanted, shown, price.usd * CHEAPER, each) for each in (here, *others))
    return MachineChoice(reason=reason, cheaper=tuple(each for each in found if each))


def _reason(wanted: Wanted, types: Sequence[str], here: RegionalPrices) -> str:
    if wanted.named:
        return "the first that the spec names" if len(types) > 1 else "the spec names it"
    if not wanted.gpus:
        return "the default for a job without GPUs"
    model = next(
        (name for name in wanted.models if _has(find_instance(here.provider, types[0]), name)), ""
    )
    what = (
        f"{wanted.gpus} x {model}"
        if model
        else f"{wanted.gpus} GPU{'s' if wanted.gpus > 1 else ''}"
    )
    rows = [
        row
        for row in instances(here.provider)
        if row.gpus == wanted.gpus and (not model or _has(row, model))
    ]
    what += ", the first of the spec's models that it has" if len(wanted.models) > 1 else ""
    if len(rows) == 1:
        return f"the only one of {here.provider} with {what}"
    if all(row.usd_per_hour is None for row in rows):
        return f"the smallest of {here.provider} with {what}, whose prices are not known"
    return f"the cheapest of {here.provider} with {what}; by the prices that come with cloudtrain"


def _cheaper(wanted: Wanted, shown: Instance, limit: float, market: RegionalPrices) -> Offer | None:
    """The cheapest machine of a provider up to a price; of the GPU models, the first that has one."""
    rows = [
        row
        for row in instances(market.provider)
        if row.instance_type != shown.instance_type
        and _satisfies(row, wanted, shown)
        and _architecture(row) == _architecture(shown)  # another processor would need another image
    ]
    for model in wanted.models or ("",):
        offers = (
            offer(row, market) for row in rows if not model or wanted.named or _has(row, model)
        )
        cheap = [each for each in offers if each and each.usd_per_hour <= limit]
        if cheap:
            return min(cheap, key=lambda each: each.usd_per_hour)
    return None


def offer(row: Instance, market: RegionalPrices) -> Offer | None:
    """A machine at its price in a region; None where that is not known."""
    price = market.price_of(row.instance_type)
    if price is None:
        return None
    return Offer(
        provider=row.provider,
        instance_type=row.instance_type,
        gpu=names_of(row)[-1] if row.gpu else "",
        gpus=row.gpus,
        region=market.region,
        usd_per_hour=price.usd,
        as_of=price.as_of,
        source=price.source,
    )


def _satisfies(row: Instance, wanted: Wanted, shown: Instance) -> bool:
    """Whether a machine could take the place of the one shown.

    Of a type that the spec names itself, its GPU, cores and memory are what is wanted; else what
    the spec says.
    """
    if row.gpus != wanted.gpus or row.gpus != shown.gpus:
        return False
    if wanted.nodes > 1 and _is_fast(shown) and not _is_fast(row):
        return False
    if not wanted.gpus:
        return row.vcpus >= shown.vcpus and row.memory_gib >= shown.memory_gib
    if wanted.named:
        return row.gpu == shown.gpu and (row.gpu_memory_gib or 0) >= (shown.gpu_memory_gib or 0)
    return not wanted.models or any(_has(row, name) for name in wanted.models)


def _architecture(row: Instance) -> str:
    return type_names.architecture(row.provider, row.instance_type)


def _is_fast(row: Instance) -> bool:
    return row.network in ("efa", "infiniband")


def _has(row: Instance | None, model: str) -> bool:
    return row is not None and model in names_of(row)
