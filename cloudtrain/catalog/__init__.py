"""Machines for rent: one dated table per provider, `aws.csv` and `azure.csv`.

An unknown value is blank in the table and None here: a price is never 0. `gpu_memory_gib` is the
memory of one GPU. A type without GPUs has an empty `gpu`.

AWS Deep Learning Containers for PyTorch: the tables `dlc.csv` (versions, newest first, and regions
without one) and `dlc_accounts.csv` (registry of each region) are made from
`sagemaker.core.image_uris`. tests/unit/test_images.py compares every address with the SDK, and makes
the tables anew with `CLOUDTRAIN_REWRITE_TABLES=1`. The CUDA of a version is from AWS's release notes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PROVIDERS = ("aws", "azure")

_PARTITIONS = {
    "cn-": "aws-cn",
    "us-gov-": "aws-us-gov",
    "us-iso-": "aws-iso",
    "us-isob-": "aws-iso-b",
    "us-isof-": "aws-iso-f",
    "eu-isoe-": "aws-iso-e",
    "eusc-": "aws-eusc",
}
"""Begin of a region's name -> its partition, in ARNs; tests compare it with botocore's."""


_MAKERS_SIZES = {
    "A10G": (24,),
    "B200": (180, 192),
    "B300": (288,),
    "GB200": (192,),
    "L4": (24,),
    "L40S": (48,),
}
"""Gigabytes in the names that makers and other tools use, where a row has what is usable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """Instance type with its GPUs, its network and its price per hour."""

    provider: str
    instance_type: str
    gpu: str
    gpus: int
    gpu_memory_gib: float | None
    vcpus: int
    memory_gib: float
    network: str
    network_gbps: int | None
    """Bandwidth between nodes in Gbit/s; None: unknown, or without a guarantee."""
    nvme: bool | None
    """True if it has local disks, which SageMaker uses instead of a volume; None: unknown."""
    usd_per_hour: float | None
    region: str
    as_of: str
    source: str


@cache
def instances(provider: str) -> tuple[Instance, ...]:
    """Return all rows of a provider's table."""
    return tuple(_instance(provider, row) for row in table(provider))


def _instance(provider: str, row: Mapping[str, str]) -> Instance:
    network_gbps = None
    if row["network_gbps"]:
        network_gbps = int(row["network_gbps"])

    nvme = None
    if row["nvme"]:
        nvme = row["nvme"] == "1"

    return Instance(
        provider=provider,
        instance_type=row["instance_type"],
        gpu=row["gpu"],
        gpus=int(row["gpus"]),
        gpu_memory_gib=_number(row["gpu_memory_gib"]),
        vcpus=int(row["vcpus"]),
        memory_gib=float(row["memory_gib"]),
        network=row["network"],
        network_gbps=network_gbps,
        nvme=nvme,
        usd_per_hour=_number(row["usd_per_hour"]),
        region=row["region"],
        as_of=row["as_of"],
        source=row["source"],
    )


def _number(text: str) -> float | None:
    """Return a number of a table; None if it is unknown."""
    if not text:
        return None

    return float(text)


def home_region(provider: str) -> str:
    """Return the region of the prices in the table."""
    return instances(provider)[0].region


def names_of(row: Instance) -> tuple[str, ...]:
    """Return the GPU names of a row, the most precise last: `A10G`, `A10G-24GB`, `A10G-22GB`."""
    names = [row.gpu]
    names += [f"{row.gpu}-{size}GB" for size in _MAKERS_SIZES.get(row.gpu, ())]
    if row.gpu_memory_gib:
        names.append(f"{row.gpu}-{row.gpu_memory_gib:.0f}GB")

    return tuple(names)


@cache
def all_gpu_names() -> tuple[str, ...]:
    """Return every name that a spec may have: also redundant sizes, and makers' names."""
    names = set(gpu_names())
    for provider in PROVIDERS:
        for row in instances(provider):
            if row.gpu:
                names.update(names_of(row))

    return tuple(sorted(names))


@cache
def gpu_names() -> tuple[str, ...]:
    """Return the GPU names to choose from: `A100`, and `A100-80GB` if there are several sizes."""
    sizes: dict[str, set[float]] = {}
    for provider in PROVIDERS:
        for row in instances(provider):
            if row.gpu:
                memories = sizes.setdefault(row.gpu, set())
                if row.gpu_memory_gib:
                    memories.add(row.gpu_memory_gib)

    names = set(sizes)
    for family, memories in sizes.items():
        if len(memories) > 1:
            names |= {f"{family}-{memory:.0f}GB" for memory in memories}

    return tuple(sorted(names))


def dlc_image(version: str, region: str, gpu: bool) -> str | None:
    """Return the address of a version (`2.10` or `2.10.0`) in a region, or None."""
    account = _account(region)
    if account is None:
        return None

    for row in table("dlc"):
        if version in (row["version"], row["version"].rpartition(".")[0]):
            if region in row["without"].split():
                return None

            registry = f"{account['account']}.dkr.ecr.{region}.{account['domain']}"
            kind = "gpu" if gpu else "cpu"
            return f"{registry}/pytorch-training:{row['version']}-{kind}-{row['python']}"

    return None


def _account(region: str) -> Mapping[str, str] | None:
    """Return the account that has the containers of a region, or None."""
    for account in table("dlc_accounts"):
        if account["region"] == region:
            return account

    return None


def dlc_versions() -> tuple[str, ...]:
    """Return the versions, newest first: `2.10`."""
    return tuple(dict.fromkeys(row["version"].rpartition(".")[0] for row in table("dlc")))


def registry_accounts() -> frozenset[str]:
    """Return the accounts whose registries have these containers."""
    return frozenset(row["account"] for row in table("dlc_accounts"))


def dlc_regions() -> tuple[str, ...]:
    """Return the regions with containers."""
    return tuple(row["region"] for row in table("dlc_accounts"))


def partition_of(region: str) -> str:
    """Return the partition of a region, as ARNs have it: `aws-cn`."""
    for begin, partition in _PARTITIONS.items():
        if region.startswith(begin):
            return partition

    return "aws"


def registry_domain(region: str) -> str:
    """Return the domain of a region's registries."""
    account = _account(region)
    if account is not None:
        return account["domain"]
    if region.startswith("cn-"):
        return "amazonaws.com.cn"

    return "amazonaws.com"


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a table of this folder by column name; it is read once."""
    import csv

    # importlib.resources is slow to import.
    text = Path(__file__).with_name(f"{name}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))


@cache
def model(file: str) -> dict[str, Any]:
    """Return the shapes of a cloud's requests from a file of this folder, which is read once."""
    content: dict[str, Any] = json.loads(Path(__file__).with_name(file).read_text("utf-8"))
    return content
