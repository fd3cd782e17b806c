"""Reasons for the machine in a plan, and cheaper ones. No network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtrain.catalog import PROVIDERS, home_region
from cloudtrain.catalog.choice import MachineChoice, Offer, Wanted, explain_choice, offer
from cloudtrain.catalog.machines import find_instance
from cloudtrain.catalog.pricing import RegionalPrices, prices_in_force
from cloudtrain.declaration import declaration_of
from cloudtrain.settings import Settings

if TYPE_CHECKING:  # a table of machines does not need pydantic
    from cloudtrain.spec.model import JobSpec


def regional_prices(provider: str, region: str, settings: Settings) -> RegionalPrices:
    """Return the prices in force in a region, by the settings' tables."""
    return prices_in_force(provider, region, settings.get("prices"), settings.get("data_dir"))


def region_of_settings(provider: str, settings: Settings) -> str:
    """Return the region for prices: from the settings, or else from the table."""
    return settings.get(f"{provider}.{declaration_of(provider).region_setting}") or home_region(
        provider
    )


def machine_choice(
    settings: Settings, spec: JobSpec, types: Sequence[str], gpus: int, local_prices: RegionalPrices
) -> MachineChoice | None:
    """Explain the first of `types` and list cheaper machines; None for a cluster's machines."""
    if not types:
        return None
    resources = spec.resources
    named = bool(resources.instance.get(local_prices.provider))
    request = Wanted(nodes=resources.nodes, gpus=gpus, models=tuple(resources.gpu), named=named)
    other_prices = [
        regional_prices(name, region_of_settings(name, settings), settings)
        for name in PROVIDERS
        if name != local_prices.provider
    ]
    choice = explain_choice(request, types, local_prices, other_prices)
    if local_prices.price_of(*types):
        return choice
    return replace(choice, elsewhere=_elsewhere(types[0], local_prices, settings))


def _elsewhere(
    instance_type: str, local_prices: RegionalPrices, settings: Settings
) -> Offer | None:
    """Return an offer of the same machine in a region where its price is known."""
    row = find_instance(local_prices.provider, instance_type)
    market = price_in_another_region(instance_type, local_prices, settings) if row else None
    return offer(row, market) if row and market else None


def price_in_another_region(
    instance_type: str, local_prices: RegionalPrices, settings: Settings
) -> RegionalPrices | None:
    """Return prices of another region that knows this type; None if there is no such region."""
    # imported late: most prices are known in their own region
    from cloudtrain.catalog.price_tables import listed_regions

    row = find_instance(local_prices.provider, instance_type)
    shipped = (row.region,) if row else ()
    for region in (*shipped, *listed_regions(settings.get("data_dir"), local_prices.provider)):
        market = local_prices
        if region != local_prices.region:
            market = regional_prices(local_prices.provider, region, settings)
        if market.price_of(instance_type) is not None:
            return market
    return None
