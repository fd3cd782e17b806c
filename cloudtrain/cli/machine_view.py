"""Views of machines: why a plan has its machine, cheaper ones, and the table of `gpus`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloudtrain.catalog.pricing import OWN_TABLE, Price
from cloudtrain.cli.output import table
from cloudtrain.planning.cost import NOT_CHECKED

if TYPE_CHECKING:
    from cloudtrain.catalog.offers import MachineOffer
    from cloudtrain.planning.machine_choice import Offer
    from cloudtrain.planning.plan import Plan

NETWORKS = {"efa": "EFA", "infiniband": "InfiniBand"}
"""Usual names of the networks between nodes."""
LEFT_OUT_FIRST = ("MEMORY", "VCPUS", "PRICE OF", "NETWORK", "SPOT")
"""Columns that a narrow terminal does without, in this order."""


def machine_lines(plan: Plan) -> list[str]:
    """Return the reason for this machine, and cheaper ones; nothing without a rented machine."""
    choice = plan.target.choice
    if choice is None or plan.is_rehearsal:
        return []

    reason = choice.reason
    if plan.spec.resources.instance.get(plan.target.provider):
        origin = plan.where("resources.instance")
        if origin:
            reason += f"  ← {origin}"

    lines = [reason]

    if choice.cheaper:
        lines.append(f"cheaper: {'; '.join(_offer(offer, plan) for offer in choice.cheaper)}")

    return lines


def elsewhere(plan: Plan) -> str:
    """Return the price in another region if it is unknown in the plan's own region."""
    offer = plan.target.choice.elsewhere if plan.target.choice else None
    if offer is None:
        return ""

    usd = offer.usd_per_hour * plan.spec.resources.nodes
    text = f"; {usd:.2f} USD/h on demand in {offer.region} ({_price_date(offer)})"
    estimate = plan.target.cost_estimate
    if estimate and "--refresh" in estimate.price_hint:
        text += "; cloudtrain gpus --refresh reads this region's"

    return text


def _offer(offer: Offer, plan: Plan) -> str:
    price = _price_date(offer)
    where = ""
    if offer.provider != plan.target.provider:
        where = f"{offer.provider}, "

    if where and offer.region not in price:
        where += f"{offer.region}, "

    gpus = ""
    if offer.gpus:
        gpus = f"{offer.gpus} x {offer.gpu}, "

    usd = offer.usd_per_hour * plan.spec.resources.nodes

    return f"{offer.instance_type} {usd:.2f} USD/h ({gpus}{where}{price})"


def _price_date(offer: Offer) -> str:
    if NOT_CHECKED in offer.source:
        return f"{offer.as_of} {offer.source}"
    if not offer.as_of:
        return offer.source

    return f"price of {offer.as_of}"


def offers_table(
    offers: Sequence[MachineOffer], timestamp: float, width: int | None = None
) -> tuple[str, list[str]]:
    """Return a table of machines, and the columns left out to fit a terminal of this width.

    Unknown values are blank.
    """
    header = [
        "INSTANCE",
        "GPU",
        "GPU MEMORY",
        "VCPUS",
        "MEMORY",
        "NETWORK",
        "USD/H",
        "SPOT",
        "REGION",
        "PRICE OF",
    ]
    rows = [list(_cells(offer, timestamp)) for offer in offers]
    text = table(rows, header)
    left_out: list[str] = []

    for name in LEFT_OUT_FIRST:
        if width is None or max(map(len, text.splitlines())) <= width:
            break

        left_out.append(name)
        index = header.index(name)
        for row in (header, *rows):
            del row[index]

        text = table(rows, header)

    return text, left_out


def _cells(offer: MachineOffer, timestamp: float) -> tuple[str, ...]:
    row = offer.machine
    price = offer.price

    gpu_memory = ""
    if row.gpu_memory_gib:
        gpu_memory = f"{row.gpu_memory_gib:.0f} GiB"

    usd = "unknown"
    age = ""
    if price:
        usd = f"{price.usd:.2f}"
        age = _age(price, timestamp)

    spot = ""
    if offer.spot_usd_per_hour:
        spot = f"{offer.spot_usd_per_hour:.2f}"

    return (
        row.instance_type,
        f"{row.gpus} x {row.gpu}",
        gpu_memory,
        str(row.vcpus),
        f"{row.memory_gib:.0f} GiB",
        NETWORKS.get(row.network, ""),
        usd,
        spot,
        offer.region,
        age,
    )


def _age(price: Price, timestamp: float) -> str:
    days = price.age_days(timestamp)
    marks = []
    if days is not None and days > 1:
        marks.append(f"{days} days old")
    if price.source == OWN_TABLE:
        marks.append("your own table")
    if NOT_CHECKED in price.source:
        marks.append(NOT_CHECKED)

    date = price.as_of or "no date"
    if not marks:
        return date

    return f"{date} ({', '.join(marks)})"
