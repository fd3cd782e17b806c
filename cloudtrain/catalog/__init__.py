"""The machines one can rent: one dated table per provider, `aws.csv` and `azure.csv`.

A price that is not known is blank there and None here, never 0. Memory is that of one GPU, in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

PROVIDERS = ("aws", "azure")


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """One row: an instance type with its GPUs, its network and its price per hour."""

    provider: str
    instance_type: str
    gpu: str
    gpus: int
    gpu_memory_gib: float | None
    vcpus: int
    memory_gib: float
    network: str
    usd_per_hour: float | None
    region: str
    as_of: str
    source: str


@cache
def instances(provider: str) -> tuple[Instance, ...]:
    """All rows of one provider's table."""
    import csv

    text = (files(__name__) / f"{provider}.csv").read_text()
    return tuple(
        Instance(
            provider=provider,
            instance_type=row["instance_type"],
            gpu=row["gpu"],
            gpus=int(row["gpus"]),
            gpu_memory_gib=float(row["gpu_memory_gib"]) if row["gpu_memory_gib"] else None,
            vcpus=int(row["vcpus"]),
            memory_gib=float(row["memory_gib"]),
            network=row["network"],
            usd_per_hour=float(row["usd_per_hour"]) if row["usd_per_hour"] else None,
            region=row["region"],
            as_of=row["as_of"],
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


@cache
def gpu_names() -> tuple[str, ...]:
    """Every GPU name a spec may use: the families (`A100`), and `A100-80GB` where a family has several sizes."""
    sizes: dict[str, set[float]] = {}
    for provider in PROVIDERS:
        for instance in instances(provider):
            sizes.setdefault(instance.gpu, set()).update({instance.gpu_memory_gib} - {None})  # type: ignore[arg-type]
    names = set(sizes)
    for family, memories in sizes.items():
        if len(memories) > 1:
            names |= {f"{family}-{memory:.0f}GB" for memory in memories}
    return tuple(sorted(names))
