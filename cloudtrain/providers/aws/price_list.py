"""SageMaker's training prices from AWS's Price List API.

It needs credentials and the right `pricing:GetProducts`. Spot prices of SageMaker are not in any list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudtrain.catalog.price_tables import NO_CREDENTIALS, ListPrice, odd_list
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.settings import Settings

NAME = "AWS's price list of SageMaker"
REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}")
"""Form of AWS's region names: `eu-west-1`."""
READS_ALL_REGIONS = False
"""True if prices of all regions are read unless one is named: here these are some 100,000."""
SERVICE_REGION = "us-east-1"
"""Region of the service, which has the prices of all regions."""
COMPONENT = "Training"
"""Component of training; hosting, notebooks and HyperPod (`Cluster`) have separate prices."""
MAX_PAGES = 10_000
"""Maximum pages of an answer; a page has 100 products."""
_TYPE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9-]+")


def own_region(settings: Settings) -> str:
    """Return the region of the settings, or else of the AWS CLI; empty without either."""
    if region := settings.get("aws.region"):
        return str(region)
    # imported late: it needs pydantic
    from cloudtrain.providers.aws.account import configured_region

    return configured_region(settings)


def read(regions: Sequence[str], types: Sequence[str], today: str) -> Iterator[ListPrice]:
    """Yield the prices of all types in some regions, or in all of them. May raise CloudError."""
    del types, today  # the list has all types, and today's prices
    for region in regions or ("",):
        for product in _products(region):
            attributes = _mapping(_mapping(product.get("product")).get("attributes"))
            name = str(attributes.get("instanceName"))
            is_training = attributes.get("component") == COMPONENT and _TYPE.fullmatch(name)
            if is_training and str(attributes.get("usagetype")).endswith(f":{name}"):
                for currency, amount in _per_hour(product):
                    yield ListPrice(str(attributes.get("regionCode")), name, currency, amount)


def _products(region: str) -> Iterator[Mapping[str, Any]]:
    """Yield products with their terms, of one region or, without a name, of all."""
    # imported late: it needs pydantic
    from cloudtrain.providers.aws.config import connect

    filters = []
    if region:
        filters.append({"Type": "TERM_MATCH", "Field": "regionCode", "Value": region})

    try:
        client = connect(SERVICE_REGION)
    except UsageError as error:  # boto3 is not installed
        raise CloudError(error.message, hint=error.hint, code=NO_CREDENTIALS) from None

    pages = client.pages("pricing", "get_products", ServiceCode="AmazonSageMaker", Filters=filters)
    for number, page in enumerate(pages):
        if number == MAX_PAGES:
            raise odd_list(NAME, "never ends")
        for text in page["PriceList"]:
            try:
                yield _mapping(json.loads(str(text)))
            except (ValueError, RecursionError):
                raise odd_list(NAME, "is not JSON") from None


def _per_hour(product: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield currency and amount per hour of a product's on-demand terms."""
    for term in _mapping(_mapping(product.get("terms")).get("OnDemand")).values():
        for value in _mapping(_mapping(term).get("priceDimensions")).values():
            dimension = _mapping(value)
            if str(dimension.get("unit")).lower() in ("hrs", "hour", "hours"):
                yield from _mapping(dimension.get("pricePerUnit")).items()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
