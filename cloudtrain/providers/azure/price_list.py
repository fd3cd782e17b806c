"""Azure's prices of virtual machines from its public retail price API. No login, no SDK.

Azure ML bills a machine at the price of its virtual machine (how-to-manage-optimize-cost). Machines
of low priority, with a fixed price, were retired on 2026-03-31; their meters are left out. Those of
the tier `spot` have the meter `Spot`, whose price varies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from time import sleep
from typing import Any
from urllib.parse import quote, urlsplit

from cloudtrain.catalog.price_tables import ListPrice, odd_list
from cloudtrain.settings import Settings

NAME = "Azure's retail price list"
ADDRESS = "https://prices.azure.com/api/retail/prices"
REGION = re.compile(r"[a-z]{2,}[a-z0-9]*")
"""Form of Azure's region names: `westeurope`."""
READS_ALL_REGIONS = True
"""True if prices of all regions are read unless one is named."""
MAX_PAGES = 500
"""Maximum pages of one size; a page has 100 to 1,000 items."""
MAX_BYTES = 16 * 2**20
"""Maximum size of a page."""
ANSWER_SECONDS = 60
PAUSES = (1, 4, 16, 0)
"""Seconds after each failed attempt; the last one is the failure."""
SPOT = "spot"
_OTHER_PRODUCTS = re.compile("windows|cloud ?services|dedicated host")
_OTHER_TIERS = re.compile("low priority|expired")
_UNQUOTED = "%$&=+'(),:"
"""Characters of a query that must not be quoted again."""


def own_region(settings: Settings) -> str:
    """Return the location in the settings, `East US` as `eastus`; empty without one."""
    return re.sub(r"[\s-]", "", settings.get("azure.location") or "").lower()


def read(regions: Sequence[str], types: Sequence[str], today: str) -> Iterator[ListPrice]:
    """Yield the prices of sizes in some regions, or in all of them. May raise CloudError."""
    for size in types:
        for region in regions or ("",):
            for item in _items(size, region):
                meter = f"{item.get('meterName')} {item.get('skuName')}".lower()
                if str(item.get("armSkuName")).lower() == size.lower() and _is_hour(item, today):
                    yield ListPrice(
                        str(item.get("armRegionName")),
                        size,
                        str(item.get("currencyCode")),
                        item.get("retailPrice"),
                        is_spot=SPOT in meter,
                    )


def _items(size: str, region: str) -> Iterator[Mapping[str, Any]]:
    """Yield all items of all pages of a query."""
    clauses = {"serviceName": "Virtual Machines", "priceType": "Consumption", "armSkuName": size}
    if region:
        clauses["armRegionName"] = region

    condition = " and ".join(f"{field} eq '{value}'" for field, value in clauses.items())
    query = f"currencyCode='USD'&$filter={quote(condition)}"

    for _ in range(MAX_PAGES):
        page = _page(query)
        items = page.get("Items")
        if not isinstance(items, list):
            raise odd_list(NAME, "has a page without items")

        for item in items:
            if isinstance(item, dict):
                yield item

        # Only the query of the next page's address counts: the server stays the same.
        query = quote(urlsplit(str(page.get("NextPageLink") or "")).query, safe=_UNQUOTED)
        if not query:
            return

    raise odd_list(NAME, "never ends")


def _page(query: str) -> Mapping[str, Any]:
    """Return a page of the list. May raise CloudError."""
    from http.client import HTTPException  # tables on the disk need no HTTP client
    from urllib.error import HTTPError
    from urllib.request import urlopen

    for pause in PAUSES:
        try:
            with urlopen(f"{ADDRESS}?{query}", timeout=ANSWER_SECONDS) as answer:
                if urlsplit(answer.geturl()).netloc != urlsplit(ADDRESS).netloc:
                    raise odd_list(NAME, "sends to another server")
                content = answer.read(MAX_BYTES + 1)
                break
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()
            if not pause:
                raise odd_list(NAME, f"cannot be read: {error}") from None

        sleep(pause)

    page = None
    if len(content) <= MAX_BYTES:
        with suppress(ValueError, RecursionError):
            page = json.loads(content)
    if not isinstance(page, dict):
        raise odd_list(NAME, "is not a JSON object of a usual size")

    return page


def _is_hour(item: Mapping[str, Any], today: str) -> bool:
    """Return whether an item is an hour of Linux today, dedicated or spot."""
    is_current = str(item.get("effectiveStartDate", ""))[:10] <= today
    is_hourly = item.get("type") == "Consumption" and item.get("unitOfMeasure") == "1 Hour"
    product = str(item.get("productName")).lower()
    meter = f"{item.get('meterName')} {item.get('skuName')}".lower()
    is_other = _OTHER_PRODUCTS.search(product) or _OTHER_TIERS.search(meter)

    return is_current and is_hourly and not is_other
