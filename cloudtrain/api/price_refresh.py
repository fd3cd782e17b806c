"""Renewal of the price tables from the clouds' price lists."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from cloudtrain.catalog import instances
from cloudtrain.catalog.offers import ALL, cloud_names, is_region, own_region, reader
from cloudtrain.catalog.price_tables import (
    NO_CREDENTIALS,
    listed_regions,
    price_list,
    table_path,
    table_text,
)
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.runs.files import make_private_folder, replace_text, storing
from cloudtrain.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Refreshed:
    """Result of reading one provider's price list."""

    provider: str
    regions: tuple[str, ...]
    prices: int
    left_out: int
    """Number of machines with an impossible price."""


def refresh_prices(
    settings: Settings,
    provider: str = "",
    region: str = "",
    note: Callable[[str], None] = lambda _: None,
) -> list[Refreshed]:
    """Read the price lists of both clouds, or of one.

    `region`: one, `all`, or empty for all regions if one request returns them, else for the
    settings' region and those read before. `note` is called with each step. A table is replaced as
    a whole after its list was read to the end. Raise CloudError if a list cannot be read; lists of
    other providers are stored. Of both, one that needs missing credentials is only noted.
    """
    names = cloud_names(provider)
    if region not in ("", ALL):
        names = [name for name in names if is_region(name, region)]
    if not names:
        of = ""
        if provider:
            of = f" of {provider}"

        raise UsageError(
            f"{region!r} is the name of no region{of}",
            hint="such as us-east-1 or westeurope, or all",
        )

    refreshed: list[Refreshed] = []
    failure: CloudError | None = None
    for name in names:
        try:
            refreshed.append(_refresh(name, region, settings, note))
        except CloudError as error:
            if error.code == NO_CREDENTIALS and len(names) > 1:  # somebody of the other cloud
                note(f"the price list of {name} is not read: {error.message}; {error.hint}")
            elif failure is None:
                failure = error
            else:
                failure.add_note(error.render())

    if failure is not None:
        for provider_list in refreshed:
            failure.add_note(
                f"{provider_list.provider}: {provider_list.prices} prices were read and stored"
            )

        raise failure

    return refreshed


def _refresh(name: str, region: str, settings: Settings, note: Callable[[str], None]) -> Refreshed:
    lists = reader(name)
    data_dir = Path(settings["data_dir"]).absolute()
    regions = _regions_to_read(name, region, settings)
    if len(regions) > 5:
        where = f"{len(regions)} regions"
    else:
        where = ", ".join(regions) or "all regions"

    note(f"reading the price list of {name}: {where}")
    today = _today()
    types = [row.instance_type for row in instances(name)]
    listed = lists.read(regions, types, today)
    listed = (price for price in listed if is_region(name, price.region))
    if regions:
        listed = (price for price in listed if price.region in regions)

    prices_read = price_list(lists.NAME, listed, today)

    for region_name, prices in groupby(prices_read.prices, key=lambda price: price.region):
        path = table_path(data_dir, name, region_name)
        with storing(path):
            make_private_folder(path.parent)
            replace_text(path, table_text(prices))

    regions = tuple(dict.fromkeys(price.region for price in prices_read.prices))
    return Refreshed(
        provider=name,
        regions=regions,
        prices=len(prices_read.prices),
        left_out=prices_read.left_out,
    )


def _regions_to_read(name: str, region: str, settings: Settings) -> tuple[str, ...]:
    """Return the regions to read; empty for all."""
    if region not in ("", ALL):
        return (region,)
    if region == ALL or reader(name).READS_ALL_REGIONS:
        return ()

    return tuple(
        sorted({own_region(name, settings), *listed_regions(settings.get("data_dir"), name)})
    )


def _today() -> str:
    return datetime.fromtimestamp(time.time(), UTC).date().isoformat()
