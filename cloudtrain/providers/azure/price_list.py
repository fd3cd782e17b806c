"""Azure's prices of virtual machines from its public retail price API: no login, no SDK, all
regions at once.

Azure ML bills a machine at the price of its virtual machine (how-to-manage-optimize-cost). What
Microsoft's pages call low priority there has a meter `Low Priority`; `Spot` is the price of virtual
machines outside of Azure ML, and is left out. Which of the two a job of the tier `spot` pays has
not been seen in an account.
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
"""A query without a region answers for all of them."""
SIZES_PER_QUERY = 10
"""With more than fifteen the service has refused the filter, likely for its length."""
MAX_PAGES = 500
"""Of one query; a page has 100 to 1,000 items."""
_REGION = re.compile(r"[a-z]{2,}[a-z0-9]*")
_NOT_LINUX = ("windows", "cloud services", "cloudservices", "dedicated host")
LOW_PRIORITY = "low priority"
_KEPT = "%$&=+'(),:"
"""Signs of a query that are not to be quoted again."""
OTHER_TIERS = ("spot", "expired")


def is_region(name: str) -> bool:
    """Return True if Azure calls a region so: `westeurope`."""
    return _REGION.fullmatch(name) is not None and REGION_NAME.fullmatch(name) is not None


def own_region(settings: Settings) -> str:
    """Where the workspace of the settings is; empty when that is not set. `East US` is `eastus`."""
    return re.sub(r"[\s-]", "", settings.get("azure.location") or "").lower()


def read(regions: Sequence[str], types: Sequence[str], today: str) -> PriceList:
    """The prices of those sizes in those regions, or in all regions if none is named. CloudError."""
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
                    instance_type=name, usd_per_hour=usd, region=region, as_of=today, source=source
                )
            )
    if not dedicated:
        where = f" in {', '.join(regions)}" if regions else ""
        raise pages.odd(f"has no price of these machines{where}")
    found = dearest(dedicated)
    left_out = len(unknown - {(each.region, each.instance_type) for each in found})
    prices = tuple(
        replace(each, spot_usd_per_hour=low.get((each.region, each.instance_type)))
        for each in found
    )
    return PriceList(prices=prices, left_out=left_out)


def _items(
    pages: PricePages, types: Sequence[str], regions: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    """All items of all pages of all queries."""
    for first in range(0, len(types), SIZES_PER_QUERY):
        path = _query(types[first : first + SIZES_PER_QUERY], regions)
        seen = set[str]()
        while path:
            if path in seen or len(seen) >= MAX_PAGES:
                raise pages.odd("never ends: a page names one before it as the next")
            seen.add(path)
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
    """Path and query of the next page; empty after the last one. CloudError when it leads to
    another server.
    """
    if link in (None, ""):
        return ""
    there = urlsplit(str(link))
    if _server(str(link)) != _server(pages.base) or there.path != PATH:
        raise pages.odd("names a next page on another server")
    return f"{there.path}?{quote(there.query, safe=_KEPT)}"


def _server(address: str) -> tuple[str, str | None, int | None] | None:
    """Scheme, host and port of an address; None where it has no port that could be one."""
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
    """`dedicated` or `low priority` for an hour of a machine with Linux today; empty for any other
    meter.
    """
    if item.get("type") != "Consumption" or item.get("unitOfMeasure") != "1 Hour":
        return ""
    if str(item.get("effectiveStartDate", ""))[:10] > today:
        return ""
    product = str(item.get("productName")).lower()
    meter = f"{item.get('meterName')} {item.get('skuName')}".lower()
    if any(word in product for word in _NOT_LINUX) or any(word in meter for word in OTHER_TIERS):
        return ""
    return LOW_PRIORITY if LOW_PRIORITY in meter else "dedicated"


def _pages(what: str) -> PricePages:
    from cloudtrain.providers.shared.price_pages import (
        PricePages,
    )  # no table on the disk needs an HTTP client

    return PricePages(BASE, what)
