"""`cloudtrain gpus`: its machines, their order, and the text for an unknown price."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.catalog import PROVIDERS, instances
from cloudtrain.providers.aws import price_list as aws_list
from cloudtrain.providers.azure import price_list as azure_list
from cloudtrain.submission import machines as price_refresh
from tests.fakes.price_lists import PriceLists, meter, sagemaker
from tests.support.in_process import call

UNKNOWN = [
    row for name in PROVIDERS for row in instances(name) if row.gpus and row.usd_per_hour is None
]


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a home without settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def listed(*arguments: str) -> list[dict[str, Any]]:
    result = call("gpus", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    machines: list[dict[str, Any]] = json.loads(result.out)["machines"]
    return machines


def names(*arguments: str) -> list[str]:
    return [offer["instance_type"] for offer in listed(*arguments)]


def test_gpu_machines_are_sorted_by_price_with_unknown_prices_last() -> None:
    prices = [offer["usd_per_hour"] for offer in listed()]
    assert len(prices) == sum(row.gpus > 0 for name in PROVIDERS for row in instances(name))
    assert UNKNOWN
    assert prices[-len(UNKNOWN) :] == [None] * len(UNKNOWN)
    priced = prices[: -len(UNKNOWN)]
    assert priced == sorted(priced)
    assert min(priced) > 0


def test_a_gpu_is_found_by_its_name_and_count_as_people_spell_them() -> None:
    everywhere = [
        "ml.p4d.24xlarge",
        "Standard_ND96asr_v4",
        "ml.p4de.24xlarge",
        "Standard_ND96amsr_A100_v4",
    ]
    assert names("a100:8") == everywhere
    assert names("A100-80GB:8") == names("a100 80gb:8") == everywhere[2:]
    assert names("H100-NVL:2") == ["Standard_NC80adis_H100_v5"]
    assert names("A100:3") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a200"], "no machine has a GPU 'a200' (did you mean"),
        (["A100:0"], "'A100:0': '0' is not a number of GPUs"),
        (["--provider", "gcp"], "no table of machines is of 'gcp'"),
        (
            ["--region", "us-east-11"],
            "no price in 'us-east-11' is known; prices are known in eastus, us-east-1\n",
        ),
        (["--refresh", "--region", "Mars"], "'Mars' is the name of no region\n"),
        (
            ["--refresh", "--provider", "aws", "--region", "eastus"],
            "'eastus' is the name of no region of aws",
        ),
    ],
)
def test_what_it_cannot_mean_is_said_in_one_line(arguments: list[str], message: str) -> None:
    result = call("gpus", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("ml.p4d.24xlarge,2O.00", "line 2: '2O.00' is not a price per hour"),
        ("ml.p4d.24xlarge,0", "line 2: '0' is not a price per hour"),
        (None, "No such file or directory"),
    ],
)
def test_unreadable_custom_price_table_is_an_error_without_fallback(
    tmp_path: Path, rows: str | None, why: str
) -> None:
    (tmp_path / "cloudtrain.toml").write_text('prices = "mine.csv"\n')
    if rows is not None:
        (tmp_path / "mine.csv").write_text(f"instance_type,usd_per_hour\n{rows}\n")
    result = call("gpus", "A100:8")
    assert (result.code, result.out) == (2, "")
    assert f"cloudtrain.toml:1: prices: {tmp_path / 'mine.csv'}: {why}" in result.err


def test_a_region_of_ones_own_table_can_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "cloudtrain.toml").write_text('prices = "mine.csv"\n')
    header = "instance_type,usd_per_hour,region,as_of"
    (tmp_path / "mine.csv").write_text(f"{header}\nml.p4d.24xlarge,20,eu-west-1,2026-11-01\n")
    shown = {
        offer["instance_type"]: offer["usd_per_hour"]
        for offer in listed("A100:8", "--region", "eu-west-1")
    }
    assert shown == {"ml.p4d.24xlarge": 20.0, "ml.p4de.24xlarge": None}
    assert 20.0 in [offer["usd_per_hour"] for offer in listed("A100:8", "--region", "all")]


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Iterator[PriceLists]:
    """Both clouds' price lists, on a day that stands still."""
    served = PriceLists()
    for module in (aws_list, azure_list):
        monkeypatch.setattr(module, "BASE", served.url)
    monkeypatch.setattr(price_refresh, "_today", lambda: "2099-11-23")
    size = "Standard_NC4as_T4_v3"
    low = {"meterName": "NC4as T4 v3 Low Priority", "skuName": "NC4as T4 v3 Low Priority"}
    served.meters = [meter(size, "northeurope", 0.6), meter(size, "northeurope", 0.12, **low)]
    cheap = {"name": "ml.g4dn.xlarge", "price": "0.8"}
    unknown = {"name": "ml.g5.xlarge", "price": "0.0"}
    served.offers["eu-west-1"] = sagemaker("eu-west-1", cheap, unknown)
    yield served
    served.close()


def test_a_refresh_reads_both_lists_and_shows_what_they_say(
    lists: PriceLists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_AWS_REGION", "eu-west-1")
    monkeypatch.setenv("CLOUDTRAIN_AZURE_LOCATION", "northeurope")
    result = call("gpus", "T4:1", "--refresh")
    assert result.code == 0, result.err
    assert result.err.splitlines() == [
        "reading the price list of aws: eu-west-1",
        "reading the price list of azure: all regions",
        "aws: 1 price of eu-west-1 read and stored; 1 machine without a usable price left out",
        "azure: 1 price of northeurope read and stored",
        (
            "SPOT is Azure's price at low priority; SageMaker's spot has no price list: up to 90 %"
            " less, AWS says"
        ),
    ]
    assert [" ".join(line.split()) for line in result.out.splitlines()[1:3]] == [
        "Standard_NC4as_T4_v3 1 x T4 16 GiB 4 28 GiB 0.60 0.12 northeurope 2099-11-23",
        "ml.g4dn.xlarge 1 x T4 16 GiB 4 16 GiB 0.80 eu-west-1 2099-11-23",
    ]
    lists.asked.clear()
    everywhere = {
        (offer["instance_type"], offer["region"]) for offer in listed("T4:1", "--region", "all")
    }
    assert {("ml.g4dn.xlarge", "eu-west-1"), ("ml.g4dn.xlarge", "us-east-1")} <= everywhere
    shown = listed("T4:1", "--region", "eu-west-1")
    assert [offer["usd_per_hour"] for offer in shown] == [0.8] + [None] * (len(shown) - 1)
    assert {offer["provider"] for offer in shown} == {"aws"}
    assert lists.asked == [], "shown from the disk"
