"""Why a plan shows its machine and what would cost less, from the spec, the settings and the
tables. No network.
"""

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

if TYPE_CHECKING:  # a table of machines needs no pydantic
    from cloudtrain.spec.model import JobSpec


def regional_prices(provider: str, region: str, settings: Settings) -> RegionalPrices:
    """The prices in force in a region, by the settings' tables."""
    return prices_in_force(provider, region, settings.get("prices"), settings.get("data_dir"))


def region_of_settings(provider: str, settings: Settings) -> str:
    """The region whose prices matter to this person: that of the settings, or else that of the
    table.
    """
    return settings.get(f"{provider}.{declaration_of(provider).region_setting}") or home_region(
        provider
    )


def machine_choice(
    settings: Settings, spec: JobSpec, types: Sequence[str], gpus: int, here: RegionalPrices
) -> MachineChoice | None:
    """Why the first of `types` is shown, and what would cost less; None where the machines are a
    cluster's.
    """
    if not types:
        return None
    resources = spec.resources
    named = bool(resources.instance.get(here.provider))
    wanted = Wanted(nodes=resources.nodes, gpus=gpus, models=tuple(resources.gpu), named=named)
    others = [
        regional_prices(name, region_of_settings(name, settings), settings)
        for name in PROVIDERS
        if name != here.provider
    ]
    found = explain_choice(wanted, types, here, others)
    return (
        found
        if here.price_of(*types)
        else replace(found, elsewhere=_elsewhere(types[0], here, settings))
    )


def _elsewhere(instance_type: str, here: RegionalPrices, settings: Settings) -> Offer | None:
    """The same machine where its price is known."""
    row = find_instance(here.provider, instance_type)
    market = price_in_another_region(instance_type, here, settings) if row else None
    return offer(row, market) if row and market else None


def price_in_another_region(
    instance_type: str, here: RegionalPrices, settings: Settings
) -> RegionalPrices | None:
    """The prices of a region other than this one in which that of a type is known; None if it is
    nowhere.
    """
    from cloudtrain.catalog.price_tables import (
        listed_regions,
    )  # most prices are known where they are wanted

    row = find_instance(here.provider, instance_type)
    shipped = (row.region,) if row else ()
    for region in (*shipped, *listed_regions(settings.get("data_dir"), here.provider)):
        market = regional_prices(here.provider, region, settings) if region != here.region else here
        if market.price_of(instance_type) is not None:
            return market
    return None
