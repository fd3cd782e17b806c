"""Prices read from the lists of the clouds, and `cloudtrain gpus`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.api import price_refresh as price_refresh_module
from cloudtrain.api.price_refresh import refresh_prices
from cloudtrain.catalog import PROVIDERS, instances
from cloudtrain.catalog.price_tables import listed_prices, listed_regions, table_path
from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.client import aws
from cloudtrain.providers.azure import price_list as azure_list
from cloudtrain.settings import Settings, load_settings
from tests.fakes.price_lists import AZURE_PATH, PriceLists, meter, price_lists, product
from tests.support.in_process import call

TODAY = "2026-11-23"
G5 = product("ml.g5.xlarge", "eu-west-1", "1.5610000000")
A100 = "Standard_NC24ads_A100_v4"
T4 = "Standard_NC4as_T4_v3"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the reader of Azure's list would have waited."""
    seconds: list[float] = []
    monkeypatch.setattr(azure_list, "sleep", seconds.append)
    return seconds


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> Iterator[PriceLists]:
    """Both clouds' lists on this machine, on a day that stands still."""
    aws.cache_clear()  # a client keeps its address
    monkeypatch.setattr(price_refresh_module, "_today", lambda: TODAY)
    with price_lists() as served:
        monkeypatch.setattr(azure_list, "ADDRESS", f"{served.url}{AZURE_PATH}")
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", served.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield served
    aws.cache_clear()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Somebody whose jobs run in Ireland."""
    environ = {"CLOUDTRAIN_DATA_DIR": str(tmp_path / "data"), "CLOUDTRAIN_AWS_REGION": "eu-west-1"}
    return load_settings(tmp_path, environ={**environ, "HOME": str(tmp_path)})


def stored(settings: Settings, provider: str, region: str) -> dict[str, tuple[float, float | None]]:
    """The price on demand and the one of spot machines by type, of a table on the disk."""
    rows = listed_prices(settings["data_dir"], provider, region)
    assert {row.as_of for row in rows} <= {TODAY}
    return {row.instance_type: (row.usd_per_hour, row.spot_usd_per_hour) for row in rows}


def test_of_awss_list_the_price_per_hour_of_training_is_read(
    lists: PriceLists, settings: Settings
) -> None:
    name = "ml.p4d.24xlarge"
    lists.products = [
        product(name, "eu-west-1", "25.91", component="Cluster"),
        product(name, "eu-west-1", "27.20", usage=f"EU-Train:{name}"),
        product(name, "eu-west-1", "27.10"),
        product(name, "eu-west-1", "99.9", usage="EU-Train:ml.p4d"),
        product(name, "eu-west-1", "13.57", unit="Quantity"),
        product(name, "us-west-2", "99.9", usage=f"eu-west-1:{name}"),
        product("ml.p5.48xlarge", "eu-west-1", "66.1", component="Hosting"),
        G5,
        "{}",
        "[1]",
    ]
    [read] = refresh_prices(settings, "aws")
    assert (read.regions, read.prices, read.left_out) == (("eu-west-1",), 2, 0)
    assert stored(settings, "aws", "eu-west-1") == {
        "ml.p4d.24xlarge": (27.2, None),
        "ml.g5.xlarge": (1.561, None),
    }
    assert len(lists.asked) > 1, "several pages"
    assert all(filters == {"regionCode": "eu-west-1"} for filters in lists.asked)


def test_of_azures_list_an_hour_with_linux_is_read_dedicated_and_spot(
    lists: PriceLists, settings: Settings
) -> None:
    name = "NC24ads A100 v4"
    lists.meters = [
        meter(A100, "westeurope", 1.10, meterName=f"{name} Spot", skuName=f"{name} Spot"),
        meter(A100, "westeurope", 8.02, productName="Virtual Machines Series Windows"),
        meter(A100, "westeurope", 3.67),
        meter(
            A100,
            "westeurope",
            0.73,
            meterName=f"{name} Low Priority",
            skuName=f"{name} Low Priority",
        ),
        meter(A100, "westeurope", 1.0, effectiveStartDate="2027-01-01T00:00:00Z"),
        meter(A100, "westeurope", 99.0, type="Reservation"),
        meter(A100, "swedencentral", 3.9),
        meter(T4, "westeurope", 0.6, unitOfMeasure="1 GiB"),
        meter("Standard_E64s_v5", "westeurope", 4.0),
    ]
    [read] = refresh_prices(settings, "azure")
    assert read.regions == ("swedencentral", "westeurope")
    assert stored(settings, "azure", "westeurope") == {A100: (3.67, 1.10)}
    assert stored(settings, "azure", "swedencentral") == {A100: (3.9, None)}
    assert len(lists.asked) > 2, "several sizes, several pages"
    assert all("armRegionName" not in filters for filters in lists.asked)
    [read] = refresh_prices(settings, "azure", "swedencentral")
    assert (read.regions, read.prices) == (("swedencentral",), 1)
    assert lists.asked[-1]["armRegionName"] == "swedencentral"


def test_every_region_of_awss_list_can_be_read_and_later_those_again(
    lists: PriceLists, settings: Settings
) -> None:
    places = ("eu-west-1", "us-west-2", "../../etc")
    lists.products = [product("ml.g5.xlarge", region, "1.56") for region in places]
    refresh_prices(settings, "aws", "all")
    assert lists.asked == [{}]
    assert listed_regions(settings["data_dir"], "aws") == ("eu-west-1", "us-west-2")
    [read] = refresh_prices(settings, "aws")
    assert read.regions == ("eu-west-1", "us-west-2")


@pytest.mark.parametrize("price", ["0.0000000000", "-1", "NaN", "1e999", "free", None, True, ["1"]])
def test_a_price_that_cannot_be_true_is_unknown_and_never_0(
    lists: PriceLists, settings: Settings, price: object
) -> None:
    lists.products = [G5, product("ml.p5.48xlarge", "eu-west-1", price)]
    lists.meters = [meter(T4, "eastus", 0.53), meter(A100, "eastus", price)]
    aws, azure = refresh_prices(settings)
    assert (aws.left_out, azure.left_out) == (1, 1)
    assert stored(settings, "aws", "eu-west-1") == {"ml.g5.xlarge": (1.561, None)}
    assert stored(settings, "azure", "eastus") == {T4: (0.53, None)}


def test_a_busy_server_is_asked_again(
    lists: PriceLists, settings: Settings, waits: list[float]
) -> None:
    lists.meters = [meter(T4, "eastus", 0.53)]
    lists.faults = [429, 503]
    refresh_prices(settings, "azure")
    assert waits == [1, 4]
    assert stored(settings, "azure", "eastus")
    lists.faults = [503] * 9
    with pytest.raises(CloudError, match="cannot be read: HTTP Error 503"):
        refresh_prices(settings, "azure")


BROKEN = [
    ("<html>", "is not JSON"),
    ("[" * 100_000, "is not JSON"),
    (
        product("ml.g5.xlarge", "eu-west-1", "1.5", component="Hosting"),
        "has no price of these machines",
    ),
    (
        product("ml.g5.xlarge", "eu-west-1", "1.5", currency="CNY"),
        "is in CNY, not in US dollars",
    ),
]


@pytest.mark.parametrize(("item", "message"), BROKEN, ids=["html", "deep", "none", "yuan"])
def test_an_odd_list_of_awss_is_refused_and_the_old_table_stays_whole(
    lists: PriceLists, settings: Settings, item: str, message: str
) -> None:
    lists.products = [G5]
    refresh_prices(settings, "aws")
    path = table_path(settings["data_dir"], "aws", "eu-west-1")
    before = path.read_text()
    lists.products = [item]
    with pytest.raises(CloudError, match=message) as caught:
        refresh_prices(settings, "aws")
    assert caught.value.hint == "the prices that were known before stay as they are"
    assert path.read_text() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_an_odd_list_of_azures_is_refused(
    lists: PriceLists, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists.meters = [meter(T4, "eastus", 0.53, currencyCode="EUR")]
    with pytest.raises(CloudError, match="is in EUR, not in US dollars"):
        refresh_prices(settings, "azure")
    lists.meters = []
    with pytest.raises(CloudError, match="has no price of these machines"):
        refresh_prices(settings, "azure", "eastus")
    lists.meters = [meter(T4, "eastus", 0.53)] * 4
    lists.next_page = f"https://elsewhere.example:99999999{AZURE_PATH}?currencyCode='USD'&$filter=serviceName%20eq%20'Virtual%20Machines'"
    monkeypatch.setattr(azure_list, "MAX_PAGES", 5)
    with pytest.raises(CloudError, match="never ends"):  # and nobody else is asked
        refresh_prices(settings, "azure")
    long = b'{"Items": []' + b" " * azure_list.MAX_BYTES + b"}"
    for body in (b"[1]", b"<html>", b"[" * 100_000, long):
        lists.body = body
        with pytest.raises(CloudError, match="is not a JSON object of a usual size"):
            refresh_prices(settings, "azure")
    lists.body = b"{}"
    with pytest.raises(CloudError, match="has a page without items"):
        refresh_prices(settings, "azure")
    assert listed_regions(settings["data_dir"], "azure") == ()


def test_what_one_cloud_has_said_is_stored_when_the_other_says_nothing(
    lists: PriceLists, settings: Settings
) -> None:
    lists.meters = [meter(T4, "eastus", 0.53)]
    with pytest.raises(CloudError, match="has no price of these machines") as caught:
        refresh_prices(settings)
    assert caught.value.__notes__ == ["azure: 1 prices were read and stored"]
    assert stored(settings, "azure", "eastus")


@pytest.mark.parametrize("missing", ["credentials", "boto3"])
def test_without_credentials_or_boto3_azures_prices_are_read_alone(
    lists: PriceLists, settings: Settings, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "boto3":
        monkeypatch.setitem(sys.modules, "cloudtrain.providers.aws.client", None)
    else:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    lists.meters = [meter(T4, "eastus", 0.53)]
    notes: list[str] = []
    [read] = refresh_prices(settings, note=notes.append)
    assert read.provider == "azure"
    (note,) = [note for note in notes if "not read" in note]
    assert note.startswith("the price list of aws is not read: ")
    assert missing in note
    with pytest.raises(CloudError, match=missing):
        refresh_prices(settings, "aws")


def test_a_missing_right_is_named(lists: PriceLists, settings: Settings) -> None:
    lists.denied = True
    with pytest.raises(CloudError, match="AccessDeniedException") as caught:
        refresh_prices(settings, "aws")
    assert caught.value.hint == "these credentials lack a permission: pricing:GetProducts"


def test_a_refresh_that_is_interrupted_leaves_the_old_tables(
    lists: PriceLists, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists.meters = [meter(T4, "eastus", 0.53)] * 4
    refresh_prices(settings, "azure")
    lists.meters = [meter(T4, "eastus", 9.9)] * 4
    lists.faults = [None, 429]  # between the first page and the second

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(azure_list, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        refresh_prices(settings, "azure")
    assert stored(settings, "azure", "eastus") == {T4: (0.53, None)}


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


@pytest.fixture
def both_lists(lists: PriceLists, monkeypatch: pytest.MonkeyPatch) -> PriceLists:
    """Lists with a machine of each cloud."""
    monkeypatch.setattr(price_refresh_module, "_today", lambda: "2099-11-23")
    size = "Standard_NC4as_T4_v3"
    spot = {"meterName": "NC4as T4 v3 Spot", "skuName": "NC4as T4 v3 Spot"}
    lists.meters = [meter(size, "northeurope", 0.6), meter(size, "northeurope", 0.12, **spot)]
    lists.products = [
        product("ml.g4dn.xlarge", "eu-west-1", "0.8"),
        product("ml.g5.xlarge", "eu-west-1", "0.0"),
    ]
    return lists


def test_a_refresh_reads_both_lists_and_shows_what_they_say(
    both_lists: PriceLists, monkeypatch: pytest.MonkeyPatch
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
            "SPOT is what Azure's spot machines cost when it was read, and varies; SageMaker's spot"
            " has no price list: up to 90 % less, AWS says"
        ),
    ]
    assert [" ".join(line.split()) for line in result.out.splitlines()[1:3]] == [
        "Standard_NC4as_T4_v3 1 x T4 16 GiB 4 28 GiB 0.60 0.12 northeurope 2099-11-23",
        "ml.g4dn.xlarge 1 x T4 16 GiB 4 16 GiB 0.80 eu-west-1 2099-11-23",
    ]
    both_lists.asked.clear()
    everywhere = {
        (offer["instance_type"], offer["region"]) for offer in listed("T4:1", "--region", "all")
    }
    assert {("ml.g4dn.xlarge", "eu-west-1"), ("ml.g4dn.xlarge", "us-east-1")} <= everywhere
    shown = listed("T4:1", "--region", "eu-west-1")
    assert [offer["usd_per_hour"] for offer in shown] == [0.8] + [None] * (len(shown) - 1)
    assert {offer["provider"] for offer in shown} == {"aws"}
    assert both_lists.asked == [], "shown from the disk"
