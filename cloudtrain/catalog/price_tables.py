"""The tables of prices that `cloudtrain gpus --refresh` keeps in the data folder: one file per
provider and region.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from cloudtrain.bounded_files import read_regular_text

REGION_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,40}")
"""How both clouds spell a region. It becomes the name of a file."""
MAX_USD_PER_HOUR = 1e6
"""A machine that costs more is a mistake of the list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPrice:
    """What a cloud's price list says of one instance type in one region. The fields are the columns
    of the file.
    """

    instance_type: str
    usd_per_hour: float
    """US dollars per hour of one machine, on demand."""
    spot_usd_per_hour: float | None = None
    """The same at low priority; None where the list has no such price, which is never 0."""
    region: str
    as_of: str
    """The day on which the list was read, `2026-11-23`."""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceList:
    """What a price list says of the machines that jobs may rent."""

    prices: tuple[ListedPrice, ...]
    left_out: int = 0
    """Machines whose price cannot be true: 0, negative, no number. They are unknown."""


def price_or_none(value: object) -> float | None:
    """A price in US dollars per hour; None for 0, which price lists say of what they do not know,
    and for no price.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        usd = float(value)
    except (OverflowError, ValueError):
        return None
    return usd if 0 < usd < MAX_USD_PER_HOUR else None


def dearest(prices: Iterable[ListedPrice]) -> tuple[ListedPrice, ...]:
    """One price per type and region, in order: of several the dearest, so that no budget is passed."""
    found: dict[tuple[str, str], ListedPrice] = {}
    for each in sorted(prices, key=lambda price: price.usd_per_hour):
        found[each.region, each.instance_type] = each
    return tuple(found[key] for key in sorted(found))


def table_path(data_dir: str | Path, provider: str, region: str) -> Path:
    """The file with the prices of a region."""
    return Path(data_dir) / "prices" / provider / f"{region}.csv"


def listed_regions(data_dir: str | Path | None, provider: str) -> tuple[str, ...]:
    """The regions whose price list has been read, in order of their names."""
    if not data_dir:
        return ()
    names = (path.stem for path in table_path(data_dir, provider, "any").parent.glob("*.csv"))
    return tuple(sorted(name for name in names if REGION_NAME.fullmatch(name)))


def listed_prices(
    data_dir: str | Path | None, provider: str, region: str
) -> tuple[ListedPrice, ...]:
    """The prices of a region by its table; empty where there is none. ValueError names the file and
    the line.
    """
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
    """Those prices as the text of a file."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(ListedPrice))
    writer.writerows(["" if value is None else value for value in astuple(each)] for each in prices)
    return text.getvalue()


def _read(text: str, region: str) -> Iterable[ListedPrice]:
    import csv

    rows = csv.DictReader(text.splitlines())
    missing = {field.name for field in fields(ListedPrice)} - set(rows.fieldnames or ())
    if missing:
        raise ValueError(f"line 1: has no column {', '.join(sorted(missing))}")
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
