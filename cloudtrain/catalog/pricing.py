"""What a job may cost: the price of its machines, the time it is allowed, and the most that both
come to. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloudtrain.bounded_files import read_regular_text
from cloudtrain.catalog import Instance, instances
from cloudtrain.catalog.machines import find_instance
from cloudtrain.issues import Issue

if TYPE_CHECKING:
    from cloudtrain.catalog.price_tables import ListedPrice
    from cloudtrain.spec.model import Limits

HOUR = 3600
OWN_TABLE = "your own table"
"""The source of a price that the user has written down."""
OWN_TABLE_HINT = "write the price into a table of your own (setting prices)"
PRICE_UNKNOWN = "cannot be held: the price of this machine is not known"
"""The refusal of a limit in money."""
SHORTEST_SECONDS = 60
"""Less than this pays for no training at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """US dollars per hour of one machine, on demand."""

    usd: float
    as_of: str
    source: str

    def age_days(self, now: float) -> int | None:
        """How old it is, in days; None when its date is only a year or nothing. `now`: a Unix
        timestamp.
        """
        try:
            taken = date.fromisoformat(self.as_of)
        except ValueError:
            return None
        return (datetime.fromtimestamp(now, UTC).date() - taken).days


@dataclass(frozen=True, kw_only=True, slots=True)
class CostEstimate:
    """Price and caps of a job. The time cap is the one that the cloud itself will hold."""

    price: Price | None
    """Of one machine, the dearest of the list; None: unknown, which is not the same as free."""
    nodes: int
    max_seconds: int
    """The job is stopped after this long."""
    cap: str
    """What set it: `limits.max_cost`, `limits.max_runtime`, or empty for the platform's default."""
    overhead_seconds: int
    """Billed on top of the cap: the grace period after the stop, machines kept warm."""
    kept_seconds: int = 0
    """Of these, how long the machines are kept for the next job."""
    price_hint: str = OWN_TABLE_HINT
    """How to make an unknown price known."""

    @property
    def usd_per_hour(self) -> float | None:
        """US dollars per hour of all machines together; None if the price is unknown."""
        return self.price.usd * self.nodes if self.price else None

    @property
    def worst_usd(self) -> float | None:
        """The most that the machines can cost, without moving data, in US dollars; None if the
        price is unknown.
        """
        per_hour = self.usd_per_hour
        return (
            None
            if per_hour is None
            else per_hour * (self.max_seconds + self.overhead_seconds) / HOUR
        )

    @property
    def kept_usd(self) -> float | None:
        """The part of `worst_usd` for machines that are kept after the end, in US dollars; None if
        that is unknown.
        """
        per_hour = self.usd_per_hour
        return None if per_hour is None else per_hour * self.kept_seconds / HOUR

    def age_days(self, now: float) -> int | None:
        """How old the price is, in days; None when there is none, or its date is only a year or
        nothing.
        """
        return self.price.age_days(now) if self.price else None


def price_of(
    provider: str,
    types: Sequence[str],
    region: str,
    own: Mapping[tuple[str, str], Price] | None = None,
) -> Price | None:
    """The dearest price among these types in a region; None as soon as one of them is not known
    there.

    `own`: prices that win over our table, by (type, region), "" for any region: see
    `prices_in_force`.
    """
    found = []
    own = own or {}
    for name in types:
        row = find_instance(provider, name)
        spelt = row.instance_type if row else name  # Azure ignores case
        keys = ((name, region), (name, ""), (spelt, region), (spelt, ""))
        mine = next((own[key] for key in keys if key in own), None)
        if mine is not None:
            found.append(mine)
        elif row is not None and row.usd_per_hour is not None and row.region == region:
            found.append(Price(usd=row.usd_per_hour, as_of=row.as_of, source=row.source))
        else:
            return None
    return max(found, key=lambda price: price.usd, default=None)


def estimate_cost(
    price: Price | None,
    nodes: int,
    limits: Limits,
    *,
    default_seconds: int,
    grace_seconds: int,
    kept_seconds: int = 0,
    price_hint: str = OWN_TABLE_HINT,
) -> tuple[CostEstimate, list[Issue]]:
    """The caps of a job, and what is wrong with them.

    An amount of money becomes a time, since only a time can be held by the cloud without a watcher
    of ours. With an unknown price that is impossible, and such a job is refused; so is one without
    any cap of its own.
    """
    problems: list[Issue] = []
    seconds = default_seconds
    cap = ""
    if limits.max_runtime is not None:
        seconds = limits.max_runtime
        cap = "limits.max_runtime"
    overhead = grace_seconds + kept_seconds
    if limits.max_cost is not None and price is not None:
        affordable = int(limits.max_cost / (price.usd * nodes / HOUR)) - overhead
        if affordable < SHORTEST_SECONDS:
            hour = f"{price.usd * nodes:.2f} USD per hour"
            message = f"{limits.max_cost:.2f} USD pay for {max(0, affordable)} s at {hour}"
            if kept_seconds:
                message += f", {kept_seconds} s of kept machines set aside"
            problems.append(
                Issue(
                    ("limits", "max_cost"), message, "allow more, or take fewer or smaller machines"
                )
            )
        if affordable < seconds:
            seconds = max(SHORTEST_SECONDS, affordable)
            cap = "limits.max_cost"
    elif limits.max_cost is not None:
        hint = f"{price_hint}, or replace max_cost by max_runtime"
        problems.append(Issue(("limits", "max_cost"), PRICE_UNKNOWN, hint))
    elif limits.max_runtime is None and price is None:
        message = "the price of this machine is not known, and nothing limits what the job may cost"
        problems.append(Issue(("limits",), message, f"set limits.max_runtime, or {price_hint}"))
    made = CostEstimate(
        price=price,
        nodes=nodes,
        max_seconds=seconds,
        cap=cap,
        overhead_seconds=overhead,
        kept_seconds=kept_seconds,
        price_hint=price_hint,
    )
    return made, problems


def user_prices(path: str | None) -> tuple[dict[tuple[str, str], Price], list[Issue]]:
    """The user's own table, if there is one, and what is wrong with it."""
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
    """The prices in force of one provider in one region."""

    provider: str
    region: str
    known: Mapping[tuple[str, str], Price]
    """By (type, region), "" for any region: the user's own table, then what `gpus --refresh` has
    read. They win over the table that comes with cloudtrain, unless that one is newer than what was
    read.
    """
    spot: Mapping[str, float] = {}
    """US dollars per hour at low priority, by type, where a price list has it."""
    problems: tuple[Issue, ...] = ()
    """What is wrong with those tables."""

    def price_of(self, *types: str) -> Price | None:
        """The dearest price among these types; None as soon as one of them is not known."""
        return price_of(self.provider, types, self.region, self.known)

    def hint(self, *types: str) -> str:
        """How to make an unknown price of these types known."""
        if not types:
            return "name the cluster's machines with resources.instance"
        if not self.region:
            return OWN_TABLE_HINT
        command = f"cloudtrain gpus --provider {self.provider} --region {self.region} --refresh"
        return f"read the cloud's price list with {command}, {OWN_TABLE_HINT}"


def prices_in_force(
    provider: str, region: str, own: str | None, data_dir: str | None
) -> RegionalPrices:
    """What is known of a region. `own`: the user's own table; `data_dir`: where the tables of price
    lists are.
    """
    known, problems = user_prices(own)
    listed: tuple[ListedPrice, ...] = ()
    try:
        if data_dir and Path(data_dir, "prices", provider).is_dir():
            from cloudtrain.catalog.price_tables import listed_prices  # most people have none

            listed = listed_prices(data_dir, provider, region)
    except ValueError as error:
        problems = [
            *problems,
            Issue((), str(error), f"write it anew: cloudtrain gpus --refresh --region {region}"),
        ]
    shipped = {row.instance_type: row for row in instances(provider)} if listed else {}
    read = {
        (each.instance_type, region): Price(
            usd=each.usd_per_hour, as_of=each.as_of, source=each.source
        )
        for each in listed
        if (each.instance_type, "") not in known
        and not _is_newer(shipped.get(each.instance_type), region, each.as_of)
    }
    spot = {each.instance_type: each.spot_usd_per_hour for each in listed if each.spot_usd_per_hour}
    return RegionalPrices(
        provider=provider,
        region=region,
        known={**read, **known},
        spot=spot,
        problems=tuple(problems),
    )


def _is_newer(row: Instance | None, region: str, as_of: str) -> bool:
    """Whether the table that comes with cloudtrain has a price of a later day. A bare year is older
    than its days.
    """
    return (
        row is not None
        and row.usd_per_hour is not None
        and row.region == region
        and row.as_of > as_of
    )


def known_prices(prices: RegionalPrices, types: Sequence[str]) -> dict[str, float]:
    """US dollars per hour of those types whose price is known."""
    known = {name: prices.price_of(name) for name in types}
    return {name: price.usd for name, price in known.items() if price is not None}


def read_prices(text: str) -> dict[tuple[str, str], Price]:
    """A user's own table: CSV with the columns instance_type, usd_per_hour and, if wanted, region,
    as_of.

    ValueError names the line that cannot be read.
    """
    import csv

    own: dict[tuple[str, str], Price] = {}
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
        own[key] = Price(usd=usd, as_of=(row.get("as_of") or "").strip(), source=OWN_TABLE)
    return own
