"""AWS Deep Learning Containers for PyTorch: the addresses of the sagemaker SDK.

The tables `dlc.csv` (versions, newest first, and regions without one) and `dlc_accounts.csv`
(registry of each region) are made from `sagemaker.core.image_uris`. tests/unit/test_images.py
compares every address with the SDK, and makes the tables anew with `CLOUDTRAIN_REWRITE_TABLES=1`. A
tag is the version, the processor and the Python version.
"""

from __future__ import annotations

from functools import cache

from cloudtrain.catalog import read_table


def dlc_image(version: str, region: str, gpu: bool) -> str | None:
    """Return the address of a version (`2.10` or `2.10.0`) in a region, or None."""
    for row in _table("dlc"):
        if version in (row["version"], row["version"].rpartition(".")[0]):
            account = next(
                (account for account in _table("dlc_accounts") if account["region"] == region), None
            )
            if account is None or region in row["without"].split():
                return None
            registry = f"{account['account']}.dkr.ecr.{region}.{account['domain']}"
            return f"{registry}/pytorch-training:{row['version']}-{'gpu' if gpu else 'cpu'}-{row['python']}"
    return None


def dlc_versions() -> tuple[str, ...]:
    """Return the versions, newest first: `2.10`."""
    return tuple(dict.fromkeys(row["version"].rpartition(".")[0] for row in _table("dlc")))


def dlc_regions() -> tuple[str, ...]:
    """Return the regions with containers."""
    return tuple(row["region"] for row in _table("dlc_accounts"))


def registry_domain(region: str) -> str:
    """Return the domain of a region's registries."""
    domain = next(
        (row["domain"] for row in _table("dlc_accounts") if row["region"] == region), None
    )
    return domain or ("amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com")


@cache
def _table(name: str) -> tuple[dict[str, str], ...]:
    return tuple(read_table(name))
