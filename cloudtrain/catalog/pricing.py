"""Cost of a job: machine prices, time limits and the maximum of both. Pure."""

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
    from cloudtrain.spec.model import Limits

HOUR = 3600
OWN_TABLE = "your own table"
"""Source of a price from the user's table."""
NOT_CHECKED = "not checked"
"""Mark in the source of a price that no list confirms."""
OWN_TABLE_HINT = "write the price into your own table (setting prices)"
THIS_MACHINE = "this machine"
PRICE_UNKNOWN = f"cannot be kept: the price of {THIS_MACHINE} is unknown"
"""Refusal of a limit in money."""
SHORTEST_SECONDS = 60
"""Minimum time that allows any training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """US dollars per hour of one machine, on demand; 0 if it is paid already."""

    usd: float
    as_of: str
    source: str

    def age_days(self, now: float) -> int | None:
        """Return the age in days, or None for an incomplete date. `now`: a Unix timestamp."""
        try:
            taken = date.fromisoformat(self.as_of)
        except ValueError:
            return None

        return (datetime.fromtimestamp(now, UTC).date() - taken).days


@dataclass(frozen=True, kw_only=True, slots=True)
class CostEstimate:
    """Price and limits of a job. The cloud itself enforces the time limit."""

    price: Price | None
    """Price of one machine, the highest of the list; None: unknown, not free."""
    nodes: int
    max_seconds: int
    """Time after which the job is stopped."""
    cap: str
    """Origin of the limit: `limits.max_cost`, `limits.max_runtime`, or "" for the default."""
    overhead_seconds: int
    """Billed time above the limit: grace period, transfers and warm machines."""
    kept_seconds: int = 0
    """Part of the overhead for warm machines."""
    transfer_seconds: int = 0
    """Part of the overhead for image, inputs and upload: an allowance, as their sizes differ."""
    price_hint: str = OWN_TABLE_HINT
    """Hint for an unknown price."""
    unpriced: tuple[str, ...] = ()
    """Machines of a list whose price is unknown."""
    dearest_usd: float = 0.0
    """Maximum cost on the dearest machine of a list that is tried one by one; 0 without a list."""

    @property
    def usd_per_hour(self) -> float | None:
        """US dollars per hour of all machines; None if the price is unknown."""
        return self.price.usd * self.nodes if self.price else None

    @property
    def worst_usd(self) -> float | None:
        """Maximum machine cost in US dollars, without data transfer; None if unknown."""
        per_hour = self.usd_per_hour
        if per_hour is None:
            return None
        own = per_hour * (self.max_seconds + self.overhead_seconds) / HOUR
        return max(own, self.dearest_usd)

    @property
    def kept_usd(self) -> float | None:
        """Part of `worst_usd` for warm machines; None if unknown."""
        per_hour = self.usd_per_hour
        return None if per_hour is None else per_hour * self.kept_seconds / HOUR

    def age_days(self, now: float) -> int | None:
        """Return the age of the price in days, or None."""
        return self.price.age_days(now) if self.price else None


def price_of(
    provider: str,
    types: Sequence[str],
    region: str,
    user_table: Mapping[tuple[str, str], Price] | None = None,
) -> Price | None:
    """Return the highest price of these types in a region, or None if one is unknown.

    `user_table`: prices that win over our table, by (type, region); "" for any region. See
    `prices_in_force`.
    """
    prices = []
    user_table = user_table or {}
    for name in types:
        row = find_instance(provider, name)
        spelt = row.instance_type if row else name  # Azure ignores case
        keys = ((name, region), (name, ""), (spelt, region), (spelt, ""))
        mine = next((user_table[key] for key in keys if key in user_table), None)

        if mine is not None:
            prices.append(mine)
        elif row is not None and row.usd_per_hour is not None and row.region == region:
            prices.append(Price(usd=row.usd_per_hour, as_of=row.as_of, source=row.source))
        else:
            return None

    return max(prices, key=lambda price: price.usd, default=None)


def estimate_cost(
    price: Price | None,
    nodes: int,
    limits: Limits,
    *,
    default_seconds: int,
    grace_seconds: int,
    kept_seconds: int = 0,
    transfer_seconds: int = 0,
    price_hint: str = OWN_TABLE_HINT,
    unpriced: tuple[str, ...] = (),
) -> tuple[CostEstimate, list[Issue]]:
    """Return the limits of a job and their mistakes.

    A cost limit becomes a time limit, which the cloud enforces by itself. A job with an unknown
    price and a cost limit is refused; so is one without any limit.
    """
    problems: list[Issue] = []
    machine = " and ".join(unpriced) or THIS_MACHINE
    seconds = default_seconds
    cap = ""

    if limits.max_runtime is not None:
        seconds = limits.max_runtime
        cap = "limits.max_runtime"

    overhead = grace_seconds + kept_seconds + transfer_seconds
    if limits.max_cost is not None and price is not None and price.usd:
        affordable = int(limits.max_cost / (price.usd * nodes / HOUR)) - overhead
        if affordable < SHORTEST_SECONDS:
            hour = f"{price.usd * nodes:.2f} USD per hour"
            message = f"{limits.max_cost:.2f} USD pay for {max(0, affordable)} s at {hour}"

            if transfer_seconds:
                message += f", after {transfer_seconds} s for image, inputs and upload"
            if kept_seconds:
                message += f", after {kept_seconds} s for warm machines"

            problems.append(
                Issue(
                    ("limits", "max_cost"), message, "allow more, or take fewer or smaller machines"
                )
            )

        if affordable < seconds:
            seconds = max(SHORTEST_SECONDS, affordable)
            cap = "limits.max_cost"
    elif limits.max_cost is not None and price is None:
        hint = f"{price_hint}, or replace max_cost by max_runtime"
        message = PRICE_UNKNOWN.replace(THIS_MACHINE, machine)
        problems.append(Issue(("limits", "max_cost"), message, hint))
    elif limits.max_runtime is None and price is None:
        message = f"the price of {machine} is unknown, so the cost of the job is not limited"
        problems.append(Issue(("limits",), message, f"set limits.max_runtime, or {price_hint}"))

    made = CostEstimate(
        price=price,
        nodes=nodes,
        max_seconds=seconds,
        cap=cap,
        overhead_seconds=overhead,
        kept_seconds=kept_seconds,
        transfer_seconds=transfer_seconds,
        price_hint=price_hint,
        unpriced=unpriced,
    )

    return made, problems


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
    """US dollars per hour at low priority, by type, if a price list has it."""
    problems: tuple[Issue, ...] = ()
    """Mistakes in the tables."""

    def price_of(self, *types: str) -> Price | None:
        """Return the highest price of these types, or None if one is unknown."""
        return price_of(self.provider, types, self.region, self.table)

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

    shipped = {row.instance_type: row for row in instances(provider)} if listed else {}
    read = {
        (row.instance_type, region): Price(usd=row.usd_per_hour, as_of=row.as_of, source=row.source)
        for row in listed
        if (row.instance_type, "") not in user_table
        and not _is_newer(shipped.get(row.instance_type), region, row.as_of)
    }
    spot = {row.instance_type: row.spot_usd_per_hour for row in listed if row.spot_usd_per_hour}

    return RegionalPrices(
        provider=provider,
        region=region,
        table={**read, **user_table},
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

    table: dict[tuple[str, str], Price] = {}
    rows = csv.DictReader(text.splitlines())
    if not {"instance_type", "usd_per_hour"} <= set(rows.fieldnames or ()):
        raise ValueError(
            "line 1: expected the columns instance_type, usd_per_hour and, if wanted, region, as_of"
        )

    for number, row in enumerate(rows, 2):
        try:
            usd = float(row["usd_per_hour"])
            if not 0 < usd < 1e6:
                raise ValueError
        except (TypeError, ValueError):
            raise ValueError(
                f"line {number}: {row['usd_per_hour']!r} is not a price per hour"
            ) from None

        key = (row["instance_type"].strip(), (row.get("region") or "").strip())
        table[key] = Price(usd=usd, as_of=(row.get("as_of") or "").strip(), source=OWN_TABLE)

    return table
