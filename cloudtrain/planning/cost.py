"""Cost of a job: its estimate, and the limits that keep it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtrain.catalog.pricing import OWN_TABLE_HINT, Price
from cloudtrain.errors import Issue

if TYPE_CHECKING:
    from cloudtrain.spec.model import Limits

HOUR = 3600

NOT_CHECKED = "not checked"
"""Mark in the source of a price that no list confirms."""

THIS_MACHINE = "this machine"

PRICE_UNKNOWN = f"cannot be kept: the price of {THIS_MACHINE} is unknown"
"""Refusal of a limit in money."""

SHORTEST_SECONDS = 60
"""Minimum time that allows any training."""


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
    attempts: int = 1
    """How often a queue starts the job at most, each time with the whole time limit."""
    dearest_usd: float = 0.0
    """Maximum cost on the dearest machine of a list that is tried one by one; 0 without a list."""
    prepaid: tuple[str, ...] = ()
    """Machines of a list that are paid in advance; the price is of the others."""

    @property
    def usd_per_hour(self) -> float | None:
        """US dollars per hour of all machines; None if the price is unknown."""
        if not self.price:
            return None

        return self.price.usd * self.nodes

    @property
    def billed_seconds(self) -> int:
        """Maximum billed time of all attempts together."""
        return (self.max_seconds + self.overhead_seconds) * self.attempts

    @property
    def worst_usd(self) -> float | None:
        """Maximum machine cost in US dollars, without data transfer; None if unknown."""
        per_hour = self.usd_per_hour
        if per_hour is None:
            return None
        own = per_hour * self.billed_seconds / HOUR
        return max(own, self.dearest_usd)

    @property
    def kept_usd(self) -> float | None:
        """Part of `worst_usd` for warm machines; None if unknown."""
        per_hour = self.usd_per_hour
        if per_hour is None:
            return None

        return per_hour * self.kept_seconds / HOUR

    def age_days(self, now: float) -> int | None:
        """Return the age of the price in days, or None."""
        if not self.price:
            return None

        return self.price.age_days(now)


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
    prepaid: tuple[str, ...] = (),
    attempts: int = 1,
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
        affordable = int(limits.max_cost / (price.usd * nodes / HOUR) / attempts) - overhead
        if affordable < SHORTEST_SECONDS:
            hour = f"{price.usd * nodes:.2f} USD per hour"
            message = f"{limits.max_cost:.2f} USD pay for {max(0, affordable)} s at {hour}"

            if transfer_seconds:
                message += f", after {transfer_seconds} s for image, inputs and upload"
            if kept_seconds:
                message += f", after {kept_seconds} s for warm machines"
            if attempts > 1:
                message += f", in each of {attempts} attempts"

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
        prepaid=prepaid,
        attempts=attempts,
    )

    return made, problems
