"""The addresses of AWS's training containers: each is what the sagemaker SDK itself gives, and none
newer is missing.

`CLOUDTRAIN_REWRITE_TABLES=1 pytest tests/unit/test_images.py` makes `dlc.csv` and
`dlc_accounts.csv` anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from cloudtrain.catalog import dlc as images
from cloudtrain.catalog.dlc import dlc_image, dlc_regions, dlc_versions
from tests.support.limits import HANG_SECONDS

# Read at import: the tests' own home has no such variable.
REWRITE = os.environ.get("CLOUDTRAIN_REWRITE_TABLES")
TABLES = Path(images.__file__).parent
KEPT = 8
"""Number of the newest versions in the table."""
URI = re.compile(
    r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.([a-z0-9.-]+)/pytorch-training:([\d.]+)-(gpu|cpu)-(py\d+)"
)
TYPES = {"gpu": "ml.g5.xlarge", "cpu": "ml.m5.xlarge"}
Addresses = Mapping[str, Mapping[str, Mapping[str, str | None]]]
"""The SDK's: version, region, processor, address (None: it knows none)."""

# In a separate process: the import takes seconds, warns, and would leave its settings in this
# one.
SCRIPT = f"""
import botocore.loaders, json, socket, sys
def refuse(*args, **kwargs): raise OSError("no network for this")
socket.socket.connect = socket.getaddrinfo = refuse
loader = botocore.loaders.create_loader()
botocore.loaders.create_loader = lambda *args: loader  # the SDK would read all endpoints anew for each address
from sagemaker.core import image_uris
known = image_uris.config_for_framework("pytorch")["training"]["versions"]
newest = sorted(known, key=lambda version: [int(part) for part in version.split(".")])[:-{KEPT + 1}:-1]
regions = sorted({{region for version in newest for region in known[version]["registries"]}})
def address(version, region, type):
    try:
        return image_uris.retrieve("pytorch", region, version=version, image_scope="training", instance_type=type)
    except ValueError:
        return None
def both(version, region):
    return {{processor: address(version, region, type) for processor, type in {TYPES}.items()}}
json.dump({{version: {{region: both(version, region) for region in regions}} for version in newest}}, sys.stdout)
"""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Addresses:
    """Return the SDK's addresses of its newest versions in each region, newest version first."""
    if find_spec("sagemaker") is None or find_spec("sagemaker.core") is None:
        pytest.skip('the sagemaker SDK is not installed: pip install "cloudtrain[sagemaker]"')
    home = str(tmp_path_factory.mktemp("sdk"))
    env = {"HOME": home, "PATH": os.environ["PATH"], "AWS_EC2_METADATA_DISABLED": "true"}
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert process.returncode == 0, process.stderr
    listed: Addresses = json.loads(process.stdout)
    if REWRITE:
        rewrite(listed)
    return listed


def rewrite(addresses: Addresses) -> None:
    """Rewrite both tables from the SDK's data."""
    places: dict[str, tuple[str, str]] = {}
    versions = ["version,python,without"]
    for version, regions in addresses.items():
        python = ""
        for region, by_processor in regions.items():
            if match := URI.fullmatch(by_processor["gpu"] or ""):
                account, _, domain, _, _, python = match.groups()
                assert places.setdefault(region, (account, domain)) == (
                    account,
                    domain,
                ), "an account per version"
        without = [
            region for region, by_processor in regions.items() if by_processor["gpu"] is None
        ]
        versions.append(f"{version},{python},{' '.join(without)}")
    accounts = [
        "region,account,domain",
        *(",".join((region, *places[region])) for region in sorted(places)),
    ]
    (TABLES / "dlc.csv").write_text("\n".join(versions) + "\n")
    (TABLES / "dlc_accounts.csv").write_text("\n".join(accounts) + "\n")
    images._table.cache_clear()


def cases(addresses: Addresses) -> Iterator[tuple[str, str, str, str | None]]:
    """Version, region, processor, the SDK's address."""
    for version, regions in addresses.items():
        for region, by_processor in regions.items():
            for processor, address in by_processor.items():
                yield version, region, processor, address


def test_every_address_is_the_sdks(addresses: Addresses) -> None:
    images = {case: dlc_image(case[0], case[1], case[2] == "gpu") for case in cases(addresses)}
    assert len(images) > 500
    assert {case: address for case, address in images.items() if address != case[3]} == {}


def test_no_newer_version_and_no_region_is_missing(addresses: Addresses) -> None:
    command = "CLOUDTRAIN_REWRITE_TABLES=1 pytest tests/unit/test_images.py"
    assert list(dlc_versions()) == list(dict.fromkeys(v.rpartition(".")[0] for v in addresses)), (
        command
    )
    assert set(dlc_regions()) == {region for regions in addresses.values() for region in regions}, (
        command
    )


@pytest.mark.parametrize(
    ("version", "region", "gpu", "address"),
    [
        (
            "2.8",
            "us-east-1",
            True,
            "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312",
        ),
        (
            "2.5",
            "eu-south-1",
            False,
            "692866216735.dkr.ecr.eu-south-1.amazonaws.com/pytorch-training:2.5.1-cpu-py311",
        ),
        (
            "2.9",
            "cn-north-1",
            True,
            "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/pytorch-training:2.9.0-gpu-py312",
        ),
    ],
)
def test_an_address_is_written_out(version: str, region: str, gpu: bool, address: str) -> None:
    assert dlc_image(version, region, gpu) == address


@pytest.mark.parametrize(
    ("version", "region"),
    [
        ("2.99", "us-east-1"),
        ("2", "us-east-1"),
        ("", "us-east-1"),
        ("2.8", "mars-1"),
        ("2.8", ""),
        ("2.7", "me-west-1"),
    ],
)
def test_what_is_not_known_has_no_address(version: str, region: str) -> None:
    assert dlc_image(version, region, gpu=True) is None
    assert dlc_image(version, region, gpu=False) is None
