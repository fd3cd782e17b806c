"""What resources cost while no job runs: `infra/CLOUD/idle_costs.csv`, where each price has a date
and a source.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from cloudtrain.bundle import bundled
from cloudtrain.infrastructure.changes import IdleCost


class Priced(NamedTuple):
    """Resources of one type, as many as there are."""

    type: str
    """As the cloud's template names it: `AWS::KMS::Key`."""
    tier: str = ""
    """Of those that differ in price by it: `Basic`."""
    how_many: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """A row of the table: list prices in US dollars, of us-east-1 and of East US."""

    type: str
    tier: str
    usd_per_month: float | None
    """In 730 hours; None where it depends on how much is stored."""
    note: str
    """How it comes about."""
    as_of: str
    """The month in which it was written down: `2026-11`."""
    basis: Literal["public", "assumed"]
    """`public`: the source said so then; `assumed`: nobody has read it there."""
    source: str
    """The address of a page."""

    @property
    def cost(self) -> IdleCost:
        """For people: with its date, and whether it is assumed."""
        assumed = "assumed, " if self.basis == "assumed" else ""
        return IdleCost(
            usd_per_month=self.usd_per_month, note=f"{self.note} ({assumed}{self.as_of})"
        )


@cache
def prices(cloud: str) -> Mapping[tuple[str, str], Price]:
    """The table of `aws` or `azure`, by type and tier."""
    path = bundled("infra") / cloud / "idle_costs.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [_price(row) for row in csv.DictReader(file)]
    return {(each.type, each.tier): each for each in rows}


def idle_cost(cloud: str, type_: str, tier: str = "") -> IdleCost | None:
    """What a resource costs while no job runs; None for nothing."""
    table = prices(cloud)
    price = table.get((type_, tier)) or table.get((type_, ""))
    return price.cost if price else None


def usd_per_month(cloud: str, *resources: Priced) -> float:
    """What these cost together, as far as it does not depend on what is stored. KeyError if one has
    no price.
    """
    found = (
        each.how_many * (prices(cloud)[each.type, each.tier].usd_per_month or 0.0)
        for each in resources
    )
    return round(sum(found), 2)


def _price(row: Mapping[str, str]) -> Price:
    basis: Literal["public", "assumed"] = "public" if row["basis"] == "public" else "assumed"
    return Price(
        type=row["type"],
        tier=row["tier"],
        usd_per_month=float(row["usd_per_month"]) if row["usd_per_month"] else None,
        note=row["note"],
        as_of=row["as_of"],
        basis=basis,
        source=row["source"],
    )
