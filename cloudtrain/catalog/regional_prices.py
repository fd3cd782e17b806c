"""Prices in force in a region, by the tables and the settings."""

from __future__ import annotations

from cloudtrain.catalog import home_region
from cloudtrain.catalog.machines import find_instance
from cloudtrain.catalog.pricing import RegionalPrices, prices_in_force
from cloudtrain.declaration import declaration_of
from cloudtrain.settings import Settings


def regional_prices(provider: str, region: str, settings: Settings) -> RegionalPrices:
    """Return the prices in force in a region, by the settings' tables."""
    return prices_in_force(provider, region, settings.get("prices"), settings.get("data_dir"))


def region_of_settings(provider: str, settings: Settings) -> str:
    """Return the region for prices: from the settings, or else from the table."""
    return settings.get(f"{provider}.{declaration_of(provider).region_setting}") or home_region(
        provider
    )


def price_in_another_region(
    instance_type: str,
    local_prices: RegionalPrices,
    settings: Settings,
) -> RegionalPrices | None:
    """Return prices of another region that knows this type; None if there is no such region."""
    # imported late: most prices are known in their own region
    from cloudtrain.catalog.price_tables import listed_regions

    regions = list(listed_regions(settings.get("data_dir"), local_prices.provider))
    row = find_instance(local_prices.provider, instance_type)
    if row:
        regions.insert(0, row.region)

    for region in regions:
        market = local_prices
        if region != local_prices.region:
            market = regional_prices(local_prices.provider, region, settings)
        if market.price_of(instance_type) is not None:
            return market

    return None
