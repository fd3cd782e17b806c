"""Price of machines in a region, by the user's table, price lists and the table here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.catalog import Instance, instances
from cloudtrain.catalog.machines import find_instance
from cloudtrain.errors import Issue
from cloudtrain_wire.bounded_files import read_regular_text

if TYPE_CHECKING:
    from cloudtrain.catalog.price_tables import ListedPrice

OWN_TABLE = "your own table"
"""Source of a price from the user's table."""
OWN_TABLE_HINT = "write the price into your own table (setting prices)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """US dollars per hour of one machine, on demand; 0 if it is paid already."""

    usd: float
    as_of: str
    source: str

    def age_days(self, time_now: float) -> int | None:
        """Return the age in days, or None for an incomplete date. `time_now`: a Unix timestamp."""
        try:
            taken = date.fromisoformat(self.as_of)
        except ValueError:
            return None

        return (datetime.fromtimestamp(time_now, UTC).date() - taken).days


def user_prices(path: str | None) -> tuple[dict[tuple[str, str], Price], list[Issue]]:
    """Return the user's own table and its mistakes."""
    if path is None:
        return {}, []

    try:
        return read_prices(read_regular_text(path)), []
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return {}, [
            Issue(
                ("prices",), f"{path}: {why}", "a CSV file: instance_type,usd_per_hour,region,as_of"
            )
        ]


class RegionalPrices(NamedTuple):
    """Prices of a provider in a region."""

    provider: str
    region: str
    table: Mapping[tuple[str, str], Price]
    """Prices by (type, region); "" for any region.

    The user's table wins, then the newer of `gpus --refresh` and our table.
    """
    spot: Mapping[str, float] = {}
    """US dollars per hour on spot machines, by type, if a price list has it."""
    problems: tuple[Issue, ...] = ()
    """Mistakes in the tables."""

    def price_of(self, *types: str) -> Price | None:
        """Return the highest price of these types, or None if one is unknown."""
        prices = []
        for name in types:
            row = find_instance(self.provider, name)
            spelt = row.instance_type if row else name  # Azure ignores case
            keys = ((name, self.region), (name, ""), (spelt, self.region), (spelt, ""))
            listed = [self.table[key] for key in keys if key in self.table]
            if listed:
                prices.append(listed[0])
            elif row is not None and row.usd_per_hour is not None and row.region == self.region:
                prices.append(Price(usd=row.usd_per_hour, as_of=row.as_of, source=row.source))
            else:
                return None

        return max(prices, key=lambda price: price.usd, default=None)

    def unpriced(self, *types: str) -> tuple[str, ...]:
        """Return the machines of a list whose price is unknown; none for a single machine."""
        is_list = len(types) > 1
        return tuple(name for name in types if is_list and self.price_of(name) is None)

    def hint(self, *types: str) -> str:
        """Return a hint for an unknown price of these types."""
        if not types:
            return "name the cluster's machines with resources.instance"
        if not self.region:
            return OWN_TABLE_HINT

        command = f"cloudtrain gpus --provider {self.provider} --region {self.region} --refresh"
        return f"read the cloud's price list with {command}, {OWN_TABLE_HINT}"


def prices_in_force(
    provider: str, region: str, user_file: str | None, data_dir: str | None
) -> RegionalPrices:
    """Return the prices of a region.

    `user_file`: the user's table. `data_dir`: folder of the price lists.
    """
    user_table, problems = user_prices(user_file)
    listed: tuple[ListedPrice, ...] = ()
    try:
        if data_dir and Path(data_dir, "prices", provider).is_dir():
            from cloudtrain.catalog.price_tables import listed_prices  # rarely needed

            listed = listed_prices(data_dir, provider, region)
    except ValueError as error:
        problems = [
            *problems,
            Issue((), str(error), f"write it anew: cloudtrain gpus --refresh --region {region}"),
        ]

    shipped: dict[str, Instance] = {}
    if listed:
        shipped = {row.instance_type: row for row in instances(provider)}

    table: dict[tuple[str, str], Price] = {}
    spot: dict[str, float] = {}
    for row in listed:
        name = row.instance_type
        is_old = _is_newer(shipped.get(name), region, row.as_of)
        if (name, "") not in user_table and not is_old:
            table[name, region] = Price(usd=row.usd_per_hour, as_of=row.as_of, source=row.source)
        if row.spot_usd_per_hour:
            spot[name] = row.spot_usd_per_hour

    table |= user_table
    return RegionalPrices(
        provider=provider,
        region=region,
        table=table,
        spot=spot,
        problems=tuple(problems),
    )


def _is_newer(row: Instance | None, region: str, as_of: str) -> bool:
    """Return whether our table has a later price. A bare year is older than its days."""
    return (
        row is not None
        and row.usd_per_hour is not None
        and row.region == region
        and row.as_of > as_of
    )


def known_prices(prices: RegionalPrices, types: Sequence[str]) -> dict[str, float]:
    """Return US dollars per hour of the types with a known price."""
    prices_by_type = {name: prices.price_of(name) for name in types}
    return {name: price.usd for name, price in prices_by_type.items() if price is not None}


def read_prices(text: str) -> dict[tuple[str, str], Price]:
    """Read a user's table: CSV with instance_type, usd_per_hour, optional region and as_of.

    Raise ValueError with the line.
    """
    import csv

    from cloudtrain.catalog.price_tables import price_or_none  # few have a table

    table: dict[tuple[str, str], Price] = {}
    rows = csv.DictReader(text.splitlines())
    if not {"instance_type", "usd_per_hour"} <= set(rows.fieldnames or ()):
        raise ValueError(
            "line 1: expected the columns instance_type, usd_per_hour and, if wanted, region, as_of"
        )

    for number, row in enumerate(rows, 2):
        usd = price_or_none(row["usd_per_hour"])
        if usd is None:
            raise ValueError(f"line {number}: {row['usd_per_hour']!r} is not a price per hour")

        key = (row["instance_type"].strip(), (row.get("region") or "").strip())
        table[key] = Price(usd=usd, as_of=(row.get("as_of") or "").strip(), source=OWN_TABLE)

    return table
