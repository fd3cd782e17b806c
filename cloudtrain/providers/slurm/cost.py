"""Cost of a job by the price of a GPU in the user's spec."""

from __future__ import annotations

from cloudtrain.providers import plugin
from cloudtrain.providers.slurm.script import NO_LIMIT, PATIENCE
from cloudtrain.providers.slurm.section import SlurmSection

SLACK_SECONDS = 60
"""Delay of an end that Slurm enforces, in seconds."""


def estimate_of(
    spec: plugin.JobSpec, grace_seconds: int
) -> tuple[plugin.CostEstimate | None, tuple[plugin.Issue, ...]]:
    """Return the cost of a job with a price and a limit, else None; and the mistakes of its limits.

    The script enforces the limit over all restarts; each attempt has its own `--time` above it.
    """
    price = spec.section(SlurmSection).price
    gpus = spec.resources.gpus
    limits = spec.limits
    is_limited = limits.max_runtime is not None or limits.max_cost is not None
    if price is None or not isinstance(gpus, int) or not gpus or not is_limited:
        return None, ()

    estimate, problems = plugin.estimate_cost(
        plugin.Price(usd=price * gpus, as_of="", source="slurm.price"),
        spec.resources.nodes,
        limits,
        default_seconds=NO_LIMIT,
        grace_seconds=grace_seconds + PATIENCE + SLACK_SECONDS,
    )
    return estimate, tuple(problems)
