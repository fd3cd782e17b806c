"""Price tables of `cloudtrain gpus --refresh`: one file per provider and region."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from cloudtrain.errors import CloudError
from cloudtrain_wire.bounded_files import read_regular_text

REGION_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,40}")
"""Form of a region name, which becomes a file name."""
NO_CREDENTIALS = "NoCredentials"
"""Error code of a price list that needs an SDK or credentials, which this machine lacks."""
MAX_USD_PER_HOUR = 1e6
"""Higher prices are mistakes in the list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPrice:
    """Price of an instance type in a region. The fields are the columns of the file."""

    instance_type: str
    usd_per_hour: float
    """US dollars per hour of one machine, on demand."""
    spot_usd_per_hour: float | None = None
    """Price on spot machines when it was read; None if unknown, never 0."""
    region: str
    as_of: str
    """Day when the list was read, `2026-11-23`."""
    source: str


class ListPrice(NamedTuple):
    """A price per hour as a cloud's list has it: nothing in it is checked yet."""

    region: str
    instance_type: str
    currency: str
    amount: object
    is_spot: bool = False
    """True for spot machines, whose price varies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceList:
    """Prices of the machines that jobs may rent."""

    prices: tuple[ListedPrice, ...]
    left_out: int = 0
    """Number of machines with an impossible price: 0, negative, not a number."""


def odd_list(name: str, why: str) -> CloudError:
    """Return the error for a price list that cannot be read or believed."""
    return CloudError(f"{name} {why}", hint="the prices that were known before stay as they are")


def price_or_none(value: object) -> float | None:
    """Return a price in US dollars per hour. None for 0, which lists use for unknown."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        usd = float(value)
    except (OverflowError, ValueError):
        return None

    return usd if 0 < usd < MAX_USD_PER_HOUR else None


def price_list(name: str, prices: Iterable[ListPrice], today: str) -> PriceList:
    """Return the prices to store, the highest per type and region, so budgets hold.

    `name`: of the list, for errors. Raise CloudError for another currency, or without prices.
    """
    on_demand: dict[tuple[str, str], float] = {}
    spot: dict[tuple[str, str], float] = {}
    keys: set[tuple[str, str]] = set()

    for price in prices:
        if price.currency != "USD":
            raise odd_list(name, f"is in {price.currency[:10]}, not in US dollars")

        key = price.region, price.instance_type
        by_tier = spot if price.is_spot else on_demand
        usd = price_or_none(price.amount)
        if usd is not None:
            by_tier[key] = max(usd, by_tier.get(key, 0.0))
        if not price.is_spot:
            keys.add(key)

    if not on_demand:
        raise odd_list(name, "has no price of these machines")

    listed = []
    for key in sorted(on_demand):
        region, instance_type = key
        listed.append(
            ListedPrice(
                instance_type=instance_type,
                usd_per_hour=on_demand[key],
                spot_usd_per_hour=spot.get(key),
                region=region,
                as_of=today,
                source=name,
            )
        )

    return PriceList(prices=tuple(listed), left_out=len(keys - on_demand.keys()))


def table_path(data_dir: str | Path, provider: str, region: str) -> Path:
    """Return the file of a region's prices."""
    return Path(data_dir) / "prices" / provider / f"{region}.csv"


def listed_regions(data_dir: str | Path | None, provider: str) -> tuple[str, ...]:
    """Return the regions with a price list, sorted."""
    if not data_dir:
        return ()
    names = (path.stem for path in table_path(data_dir, provider, "any").parent.glob("*.csv"))
    return tuple(sorted(name for name in names if REGION_NAME.fullmatch(name)))


def listed_prices(
    data_dir: str | Path | None, provider: str, region: str
) -> tuple[ListedPrice, ...]:
    """Return the prices of a region, or (). ValueError names the file and the line."""
    if not data_dir or not REGION_NAME.fullmatch(region):
        return ()

    path = table_path(data_dir, provider, region)
    try:
        text = read_regular_text(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None

    try:
        return tuple(_read(text, region))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def table_text(prices: Iterable[ListedPrice]) -> str:
    """Return prices as the text of a file."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(ListedPrice))
    writer.writerows(astuple(listed) for listed in prices)

    return text.getvalue()


def _read(text: str, region: str) -> Iterable[ListedPrice]:
    import csv

    rows = csv.DictReader(text.splitlines())
    missing = {field.name for field in fields(ListedPrice)} - set(rows.fieldnames or ())
    if missing:
        raise ValueError(f"line 1: missing column {', '.join(sorted(missing))}")

    for number, row in enumerate(rows, 2):
        usd = price_or_none(row["usd_per_hour"])
        if usd is None or row["region"] != region or None in row.values():
            raise ValueError(f"line {number}: is not a price of {region}")

        yield ListedPrice(
            instance_type=row["instance_type"],
            usd_per_hour=usd,
            spot_usd_per_hour=price_or_none(row["spot_usd_per_hour"]),
            region=region,
            as_of=row["as_of"],
            source=row["source"],
        )
