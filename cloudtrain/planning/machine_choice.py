"""Reason for the machine of a plan, and cheaper ones. No network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.catalog import PROVIDERS, Instance, instances, names_of
from cloudtrain.catalog.machines import architecture_by_name, find_instance
from cloudtrain.catalog.pricing import RegionalPrices
from cloudtrain.catalog.regional_prices import (
    price_in_another_region,
    region_of_settings,
    regional_prices,
)
from cloudtrain.settings import Settings

if TYPE_CHECKING:
    from cloudtrain.spec.model import JobSpec

CHEAPER = 0.95
"""Price ratio below which a machine counts as cheaper. Tables are not more exact."""


def machine_choice(
    settings: Settings,
    spec: JobSpec,
    types: Sequence[str],
    gpus: int,
    local_prices: RegionalPrices,
) -> MachineChoice | None:
    """Explain the first of `types` and list cheaper machines; None for a cluster's machines."""
    if not types:
        return None

    resources = spec.resources
    named = bool(resources.instance.get(local_prices.provider))
    request = Wanted(
        nodes=resources.nodes,
        gpus=gpus,
        models=tuple(resources.gpu),
        named=named,
    )
    other_prices = []
    for name in PROVIDERS:
        if name != local_prices.provider:
            region = region_of_settings(name, settings)
            other_prices.append(regional_prices(name, region, settings))

    choice = explain_choice(request, types, local_prices, other_prices)
    if local_prices.price_of(*types):
        return choice

    unpriced = [*local_prices.unpriced(*types), types[0]][0]
    return replace(choice, elsewhere=_elsewhere(unpriced, local_prices, settings))


def _elsewhere(
    instance_type: str,
    local_prices: RegionalPrices,
    settings: Settings,
) -> Offer | None:
    """Return an offer of the same machine in a region where its price is known."""
    row = find_instance(local_prices.provider, instance_type)
    if row is None:
        return None

    market = price_in_another_region(instance_type, local_prices, settings)
    if market is None:
        return None

    return offer(row, market)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """An instance type with its on-demand price in one region."""

    provider: str
    instance_type: str
    gpu: str
    """`A100-80GB`; empty without GPUs."""
    gpus: int
    region: str
    usd_per_hour: float
    """US dollars per hour of one machine."""
    as_of: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineChoice:
    """Reason for a machine, and cheaper ones."""

    reason: str
    cheaper: tuple[Offer, ...] = ()
    """The cheapest matching offer of each provider, the plan's own first."""
    elsewhere: Offer | None = None
    """Offer in another region if the price in the plan's region is unknown."""


class Wanted(NamedTuple):
    """Machine requirements of a spec."""

    nodes: int
    gpus: int
    """Per node."""
    models: tuple[str, ...] = ()
    """GPU models in order of preference; empty for any."""
    named: bool = False
    """True if the spec names instance types."""


def explain_choice(
    need: Wanted,
    types: Sequence[str],
    market: RegionalPrices,
    other_markets: Sequence[RegionalPrices] = (),
) -> MachineChoice:
    """Return the reason for the first of `types`, and cheaper machines of all markets."""
    reason = _reason(need, types, market)
    shown = find_instance(market.provider, types[0])
    price = market.price_of(types[0])
    if shown is None or price is None:
        return MachineChoice(reason=reason)

    offers = []
    for candidate in (market, *other_markets):
        offer = _cheaper(need, shown, price.usd * CHEAPER, candidate)
        if offer:
            offers.append(offer)

    return MachineChoice(reason=reason, cheaper=tuple(offers))


def _reason(need: Wanted, types: Sequence[str], market: RegionalPrices) -> str:
    if need.named:
        return "the first in the spec" if len(types) > 1 else "named in the spec"
    if not need.gpus:
        return "the default for a job without GPUs"

    first = find_instance(market.provider, types[0])
    models = [name for name in need.models if _has(first, name)]
    rows = [row for row in instances(market.provider) if row.gpus == need.gpus]
    if models:
        need_words = f"{need.gpus} x {models[0]}"
        rows = [row for row in rows if _has(row, models[0])]
    elif need.gpus > 1:
        need_words = f"{need.gpus} GPUs"
    else:
        need_words = f"{need.gpus} GPU"

    if len(need.models) > 1:
        need_words += ", the first of the spec's models that it has"
    if len(rows) == 1:
        return f"the only one of {market.provider} with {need_words}"
    if all(row.usd_per_hour is None for row in rows):
        return f"the smallest of {market.provider} with {need_words}, whose prices are not known"

    return f"the cheapest of {market.provider} with {need_words}; by the prices that come with cloudtrain"


def _cheaper(need: Wanted, shown: Instance, limit: float, market: RegionalPrices) -> Offer | None:
    """Return a provider's cheapest machine up to a price, by GPU preference."""
    rows = []
    for row in instances(market.provider):
        if row.instance_type == shown.instance_type or not _satisfies(row, need, shown):
            continue
        if _architecture(row) == _architecture(shown):  # another would need another image
            rows.append(row)

    for model in need.models or ("",):
        offers = (offer(row, market) for row in rows if not model or need.named or _has(row, model))
        cheap = [candidate for candidate in offers if candidate and candidate.usd_per_hour <= limit]
        if cheap:
            return min(cheap, key=lambda candidate: candidate.usd_per_hour)

    return None


def offer(row: Instance, market: RegionalPrices) -> Offer | None:
    """Return a machine with its price in a region, or None if the price is unknown."""
    price = market.price_of(row.instance_type)
    if price is None:
        return None

    gpu = ""
    if row.gpu:
        gpu = names_of(row)[-1]

    return Offer(
        provider=row.provider,
        instance_type=row.instance_type,
        gpu=gpu,
        gpus=row.gpus,
        region=market.region,
        usd_per_hour=price.usd,
        as_of=price.as_of,
        source=price.source,
    )


def _satisfies(row: Instance, need: Wanted, shown: Instance) -> bool:
    """Return whether a machine could replace the shown one.

    For instance types in the spec, its GPU, cores and memory count; otherwise the spec's fields.
    """
    if row.gpus != need.gpus or row.gpus != shown.gpus:
        return False
    if need.nodes > 1 and _is_fast(shown) and not _is_fast(row):
        return False
    if not need.gpus:
        return row.vcpus >= shown.vcpus and row.memory_gib >= shown.memory_gib
    if need.named:
        return row.gpu == shown.gpu and (row.gpu_memory_gib or 0) >= (shown.gpu_memory_gib or 0)

    return not need.models or any(_has(row, name) for name in need.models)


def _architecture(row: Instance) -> str:
    return architecture_by_name(row.provider, row.instance_type)


def _is_fast(row: Instance) -> bool:
    return row.network in ("efa", "infiniband")


def _has(row: Instance | None, model: str) -> bool:
    return row is not None and model in names_of(row)
