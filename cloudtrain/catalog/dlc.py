"""AWS Deep Learning Containers for PyTorch training: the addresses that the sagemaker SDK would
give, without it.

The tables `dlc.csv` (versions, newest first, and the regions that lack one) and `dlc_accounts.csv`
(whose registry a region uses) are made from `sagemaker.core.image_uris`: tests/unit/test_images.py
compares every address with it, and `CLOUDTRAIN_REWRITE_TABLES=1 pytest tests/unit/test_images.py`
makes the tables anew. No tag is written out in them: it is the version, the processor and the
Python.
"""

from __future__ import annotations

from functools import cache

from cloudtrain.catalog import read_table


def dlc_image(version: str, region: str, gpu: bool) -> str | None:
    """The address of a version (`2.10` or `2.10.0`) in a region, for GPU or CPU machines; None when
    there is none.
    """
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
    """The versions as one writes them, newest first: `2.10`."""
    return tuple(dict.fromkeys(row["version"].rpartition(".")[0] for row in _table("dlc")))


def dlc_regions() -> tuple[str, ...]:
    """The regions that have any."""
    return tuple(row["region"] for row in _table("dlc_accounts"))


def registry_domain(region: str) -> str:
    """What the host names of a region's registries end in."""
    known = next((row["domain"] for row in _table("dlc_accounts") if row["region"] == region), None)
    return known or ("amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com")


@cache
def _table(name: str) -> tuple[dict[str, str], ...]:
    return tuple(read_table(name))
