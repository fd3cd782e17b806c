"""SageMaker's training prices from AWS's public price list, one file per region. No SDK.

The Pricing API would filter on the server, but needs credentials and the right
`pricing:GetProducts`. The file of one region has less than 16 MB, the file of all regions hundreds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.price_tables import (
    REGION_NAME,
    ListedPrice,
    PriceList,
    dearest,
    price_or_none,
)
from cloudtrain.settings import Settings

if TYPE_CHECKING:
    from cloudtrain.providers.shared.price_pages import PricePages

BASE = "https://pricing.us-east-1.amazonaws.com"
FOLDER = "/offers/v1.0/aws/AmazonSageMaker/current"
READS_ALL_REGIONS = False
"""True if one download has every region; here each region is a separate one."""
COMPONENT = "Training"
"""Component of training; hosting, notebooks and HyperPod (`Cluster`) have separate prices."""
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}")
_TYPE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9-]+")


def is_region(name: str) -> bool:
    """Return True for the form of AWS's region names: `eu-west-1`."""
    return _REGION.fullmatch(name) is not None and REGION_NAME.fullmatch(name) is not None


def own_region(settings: Settings) -> str:
    """Return the region of the settings, or else of the AWS CLI; empty without either."""
    if region := settings.get("aws.region"):
        return str(region)
    # imported late: it needs pydantic
    from cloudtrain.providers.aws.account import configured_region

    return configured_region(settings)


def all_regions() -> tuple[str, ...]:
    """Return the regions with a price list. Raise CloudError if the list cannot be read."""
    pages = _pages("AWS's list of regions with prices")
    regions = pages.document(f"{FOLDER}/region_index.json").get("regions")
    if not isinstance(regions, dict):
        raise pages.odd("lacks regions")
    return tuple(sorted(filter(is_region, regions)))


def read(regions: Sequence[str], types: Sequence[str], today: str) -> PriceList:
    """Return the prices of all types in these regions. Raise CloudError if unreadable."""
    del types  # the file has all of them
    lists = [_read_region(region, today) for region in regions]
    prices = tuple(price for listed in lists for price in listed.prices)
    return PriceList(prices=prices, left_out=sum(listed.left_out for listed in lists))


def _read_region(region: str, today: str) -> PriceList:
    pages = _pages(f"AWS's price list of SageMaker in {region}")
    document = pages.document(f"{FOLDER}/{region}/index.json")
    products = document.get("products")

    terms = (_mapping(document.get("terms"))).get("OnDemand")
    if (
        document.get("offerCode") != "AmazonSageMaker"
        or not isinstance(products, dict)
        or not isinstance(terms, dict)
    ):
        raise pages.odd("is not of the form that AWS documents")

    source = f"AWS price list of {str(document.get('publicationDate', ''))[:10]}"
    prices = []

    left_out = set()
    for sku, product in products.items():
        instance_type = _training_type(_mapping(_mapping(product).get("attributes")), region)
        for amounts in _per_hour(_mapping(terms.get(sku))) if instance_type else ():
            if amounts and "USD" not in amounts:
                raise pages.odd(
                    f"is in {', '.join(map(str, amounts))[:40]}; only prices in US dollars are"
                    " understood"
                )
            usd = price_or_none(amounts.get("USD"))
            if usd is None:
                left_out.add(instance_type)
                continue
            prices.append(
                ListedPrice(
                    instance_type=instance_type,
                    usd_per_hour=usd,
                    region=region,
                    as_of=today,
                    source=source,
                )
            )
    if not prices:
        raise pages.odd("has no price of a training machine")

    return PriceList(
        prices=dearest(prices),
        left_out=len(left_out - {price.instance_type for price in prices}),
    )


def _training_type(attributes: Mapping[str, Any], region: str) -> str:
    """Return the instance type of a training product in this region; empty for other products."""
    name = attributes.get("instanceName")
    usage = attributes.get("usagetype")
    if attributes.get("component") != COMPONENT or attributes.get("regionCode", region) != region:
        return ""
    if (
        not isinstance(name, str)
        or not _TYPE.fullmatch(name)
        or not str(usage).endswith(f":{name}")
    ):
        return ""

    return name


def _per_hour(terms: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the amounts per hour in a product's on-demand terms, by currency."""
    for term in terms.values():
        for dimension in _mapping(_mapping(term).get("priceDimensions")).values():
            amounts = _mapping(dimension)
            if str(amounts.get("unit")).lower() in ("hrs", "hour", "hours"):
                yield _mapping(amounts.get("pricePerUnit"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _pages(name: str) -> PricePages:
    # imported late: tables on the disk do not need an HTTP client
    from cloudtrain.providers.shared.price_pages import PricePages

    return PricePages(BASE, name)
