"""Reads the clouds' price lists into tables in the data folder, which plans and `cloudtrain gpus`
use from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from cloudtrain.catalog import instances
from cloudtrain.catalog.price_tables import PriceList, listed_regions, table_path, table_text
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.runs.files import make_private_folder, replace_text, storing
from cloudtrain.settings import Settings
from cloudtrain.submission.machines import ALL, cloud_names, own_region, price_list


@dataclass(frozen=True, kw_only=True, slots=True)
class Refreshed:
    """What has been read of one provider's price list."""

    provider: str
    regions: tuple[str, ...]
    prices: int
    left_out: int
    """Machines whose price cannot be true."""


def refresh_prices(
    settings: Settings,
    provider: str = "",
    region: str = "",
    note: Callable[[str], None] = lambda _: None,
) -> list[Refreshed]:
    """Read the price lists of both clouds, or of one.

    `region`: one, `all`, or empty for all regions where one question gives them, else for that of
    the settings and those that were read before. `note` is told what is being read. A table is
    replaced whole, and only once its provider's list has been read to its end. CloudError when a
    list cannot be read; those of other providers are stored all the same.
    """
    names = [
        name
        for name in cloud_names(provider)
        if region in ("", ALL) or price_list(name).is_region(region)
    ]
    if not names:
        of = f" of {provider}" if provider else ""
        raise UsageError(
            f"{region!r} is the name of no region{of}",
            hint="such as us-east-1 or westeurope, or all",
        )
    done: list[Refreshed] = []
    failure: CloudError | None = None
    for name in names:
        try:
            done.append(_refresh(name, region, settings, note))
        except CloudError as error:
            if failure is None:
                failure = error
            else:
                failure.add_note(error.render())
    if failure is not None:
        for each in done:
            failure.add_note(f"{each.provider}: {each.prices} prices were read and stored")
        raise failure
    return done


def _refresh(name: str, region: str, settings: Settings, note: Callable[[str], None]) -> Refreshed:
    lists = price_list(name)
    data_dir = Path(settings["data_dir"]).absolute()
    regions = _regions_to_read(name, region, settings)
    where = f"{len(regions)} regions" if len(regions) > 5 else ", ".join(regions) or "all regions"
    note(f"reading the price list of {name}: {where}")
    found: PriceList = lists.read(regions, [row.instance_type for row in instances(name)], _today())
    for each, prices in groupby(found.prices, key=lambda price: price.region):
        path = table_path(data_dir, name, each)
        with storing(path):
            make_private_folder(path.parent)
            replace_text(path, table_text(prices))
    regions = tuple(dict.fromkeys(price.region for price in found.prices))
    return Refreshed(
        provider=name, regions=regions, prices=len(found.prices), left_out=found.left_out
    )


def _regions_to_read(name: str, region: str, settings: Settings) -> tuple[str, ...]:
    """Those to read of a provider's list; empty for all that it has."""
    if region not in ("", ALL):
        return (region,)
    if price_list(name).READS_ALL_REGIONS:
        return ()
    if region == ALL:
        return tuple(price_list(name).all_regions())
    return tuple(
        sorted({own_region(name, settings), *listed_regions(settings.get("data_dir"), name)})
    )


def _today() -> str:
    return datetime.fromtimestamp(time.time(), UTC).date().isoformat()
