"""Azure's prices of virtual machines from its public retail price API. No login, no SDK.

Azure ML bills a machine at the price of its virtual machine (how-to-manage-optimize-cost).
Microsoft's low priority has a meter `Low Priority`; `Spot` is the price of virtual machines outside
of Azure ML, and is left out. Which of the two a job of the tier `spot` pays is not confirmed by an
account.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

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

BASE = "https://prices.azure.com"
PATH = "/api/retail/prices"
READS_ALL_REGIONS = True
"""True if one download has every region: a query without a region answers for all."""
SIZES_PER_QUERY = 10
"""The service refused the filter with more than fifteen, likely for its length."""
MAX_PAGES = 500
"""Maximum pages of one query; a page has 100 to 1,000 items."""
_REGION = re.compile(r"[a-z]{2,}[a-z0-9]*")
_NOT_LINUX = ("windows", "cloud services", "cloudservices", "dedicated host")
LOW_PRIORITY = "low priority"
_UNQUOTED = "%$&=+'(),:"
"""Characters of a query that must not be quoted again."""
OTHER_TIERS = ("spot", "expired")


def is_region(name: str) -> bool:
    """Return True for the form of Azure's region names: `westeurope`."""
    return _REGION.fullmatch(name) is not None and REGION_NAME.fullmatch(name) is not None


def own_region(settings: Settings) -> str:
    """Return the location in the settings, `East US` as `eastus`; empty without one."""
    return re.sub(r"[\s-]", "", settings.get("azure.location") or "").lower()


def read(regions: Sequence[str], types: Sequence[str], today: str) -> PriceList:
    """Return the prices of sizes in some regions, or in all of them. May raise CloudError."""
    pages = _pages("Azure's retail price list")
    spelling = {name.lower(): name for name in types}
    dedicated: list[ListedPrice] = []
    low: dict[tuple[str, str], float] = {}

    unknown: set[tuple[str, str]] = set()
    for item in _items(pages, list(spelling.values()), regions):
        name = spelling.get(str(item.get("armSkuName")).lower(), "")
        region = str(item.get("armRegionName"))
        tier = _tier(item, today)
        if not name or not tier or not is_region(region) or (regions and region not in regions):
            continue
        if item.get("currencyCode") != "USD":
            raise pages.odd(
                f"is in {str(item.get('currencyCode'))[:10]}; only prices in US dollars are"
                " understood"
            )
        usd = price_or_none(item.get("retailPrice"))
        if usd is None:
            unknown.add((region, name))
        elif tier == LOW_PRIORITY:
            low[region, name] = max(usd, low.get((region, name), 0.0))
        else:
            source = "Azure retail price list"
            dedicated.append(
                ListedPrice(
                    instance_type=name,
                    usd_per_hour=usd,
                    region=region,
                    as_of=today,
                    source=source,
                )
            )
    if not dedicated:
        where = f" in {', '.join(regions)}" if regions else ""
        raise pages.odd(f"has no price of these machines{where}")

    listed = dearest(dedicated)
    left_out = len(unknown - {(price.region, price.instance_type) for price in listed})
    prices = tuple(
        replace(price, spot_usd_per_hour=low.get((price.region, price.instance_type)))
        for price in listed
    )
    return PriceList(prices=prices, left_out=left_out)


def _items(
    pages: PricePages,
    types: Sequence[str],
    regions: Sequence[str],
) -> Iterator[Mapping[str, Any]]:
    """Yield all items of all pages of all queries."""
    for first in range(0, len(types), SIZES_PER_QUERY):
        path = _query(types[first : first + SIZES_PER_QUERY], regions)
        visited = set[str]()
        while path:
            if path in visited or len(visited) >= MAX_PAGES:
                raise pages.odd("never ends: a page names one before it as the next")
            visited.add(path)
            document = pages.document(path)
            items = document.get("Items")
            if not isinstance(items, list):
                raise pages.odd("has a page without items")
            yield from (item for item in items if isinstance(item, dict))
            path = _next_path(pages, document.get("NextPageLink"))


def _query(types: Sequence[str], regions: Sequence[str]) -> str:
    clauses = [
        "serviceName eq 'Virtual Machines'",
        "priceType eq 'Consumption'",
        _any_of("armSkuName", types),
    ]
    clauses += [_any_of("armRegionName", regions)] if regions else []
    return f"{PATH}?currencyCode='USD'&$filter={quote(' and '.join(clauses))}"


def _any_of(field: str, values: Sequence[str]) -> str:
    return "(" + " or ".join(f"{field} eq '{value}'" for value in values) + ")"


def _next_path(pages: PricePages, link: object) -> str:
    """Return path and query of the next page; empty after the last one.

    Raise CloudError if it leads to another server.
    """
    if link in (None, ""):
        return ""

    parts = urlsplit(str(link))
    if _server(str(link)) != _server(pages.base) or parts.path != PATH:
        raise pages.odd("names a next page on another server")

    return f"{parts.path}?{quote(parts.query, safe=_UNQUOTED)}"


def _server(address: str) -> tuple[str, str | None, int | None] | None:
    """Return scheme, host and port of an address; None if the port is invalid."""
    parts = urlsplit(address)
    try:
        return (
            parts.scheme,
            parts.hostname,
            parts.port or (443 if parts.scheme == "https" else None),
        )
    except ValueError:
        return None


def _tier(item: Mapping[str, Any], today: str) -> str:
    """Return `dedicated` or `low priority` for an hour of Linux today; empty for other meters."""
    if item.get("type") != "Consumption" or item.get("unitOfMeasure") != "1 Hour":
        return ""
    if str(item.get("effectiveStartDate", ""))[:10] > today:
        return ""

    product = str(item.get("productName")).lower()
    meter = f"{item.get('meterName')} {item.get('skuName')}".lower()
    if any(word in product for word in _NOT_LINUX) or any(word in meter for word in OTHER_TIERS):
        return ""

    return LOW_PRIORITY if LOW_PRIORITY in meter else "dedicated"


def _pages(name: str) -> PricePages:
    # imported late: tables on the disk do not need an HTTP client
    from cloudtrain.providers.shared.price_pages import PricePages

    return PricePages(BASE, name)
