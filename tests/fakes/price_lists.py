"""The public price lists of AWS and Azure on loopback, in their documented forms, strict about
requests.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from tests.fakes.messages import Request, Response
from tests.fakes.plain_server import serve

AWS_FOLDER = "/offers/v1.0/aws/AmazonSageMaker/current"
AZURE_PATH = "/api/retail/prices"
AZURE_PAGE = 3
"""Items per page; the service has up to 1,000."""
MAX_SIZES = 15
"""With more sizes in a filter the service answers 400."""
_CLAUSE = re.compile(r"(\w+) eq '([^']*)'")
_FIELDS = {
    "serviceName": "serviceName",
    "priceType": "type",
    "armSkuName": "armSkuName",
    "armRegionName": "armRegionName",
}


def sagemaker(region: str, *products: dict[str, Any], currency: str = "USD") -> dict[str, Any]:
    """AWS's offer file of a region, as far as it matters: products by SKU, and what each costs."""
    entries: dict[str, Any] = {}
    terms: dict[str, Any] = {}
    for number, product in enumerate(products):
        sku = f"SKU{number:013}"
        attributes = {
            "regionCode": region,
            "instanceName": product["name"],
            "usagetype": product.get("usage", f"{region}-Train:{product['name']}"),
            "component": product.get("component", "Training"),
        }
        dimension = {
            "unit": product.get("unit", "Hrs"),
            "pricePerUnit": {currency: product["price"]},
        }
        entries[sku] = {"sku": sku, "attributes": attributes}
        terms[sku] = {f"{sku}.TERM": {"sku": sku, "priceDimensions": {"RATE": dimension}}}
    return {
        "offerCode": "AmazonSageMaker",
        "publicationDate": "2026-11-20T02:56:06Z",
        "products": entries,
        "terms": {"OnDemand": terms},
    }


def meter(size: str, region: str, usd: object, **changes: Any) -> dict[str, Any]:
    """An item of Azure's list: by default an hour of a dedicated machine with Linux."""
    name = size.removeprefix("Standard_").replace("_", " ")
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": usd,
        "armRegionName": region,
        "effectiveStartDate": "2026-01-01T00:00:00Z",
        "meterName": name,
        "productName": "Virtual Machines Series",
        "skuName": name,
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "armSkuName": size,
    } | changes


class PriceLists:
    """Both lists on one server. `faults`: what the next requests get: a status, `cut`, None for the
    answer.
    """

    def __init__(self) -> None:
        self.offers: dict[str, Any] = {}
        """AWS's offer file by region, or a replacement."""
        self.meters: list[dict[str, Any]] = []
        self.faults: list[tuple[int, dict[str, str]] | str | None] = []
        self.asked: list[str] = []
        """Paths in order, without their queries."""
        self.filters: list[str] = []
        self.next_page = ""
        """Replaces the address of the next page; empty for the true one."""
        self.url = ""

    def serve(self, request: Request) -> Response:
        """Answer a request, or let it go wrong."""
        self.asked.append(urlsplit(request.target).path)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, tuple):
            return Response(fault[0], list(fault[1].items()), b"")
        status, document = self.answer(request.target)
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        headers = []
        if "gzip" in request.headers.get("accept-encoding", ""):
            body = gzip.compress(body)
            headers = [("Content-Encoding", "gzip")]
        if fault == "cut":
            headers.append(("Content-Length", str(len(body))))
            body = body[: len(body) // 2]
        return Response(status, headers, body)

    def answer(self, target: str) -> tuple[int, Any]:
        """Status and document."""
        url = urlsplit(target)
        if url.path == AZURE_PATH:
            return self._azure(dict(parse_qsl(url.query, strict_parsing=True)))
        if url.path == f"{AWS_FOLDER}/region_index.json":
            return 200, {
                "formatVersion": "v1.0",
                "regions": {name: {"regionCode": name} for name in self.offers},
            }
        name = url.path.removeprefix(f"{AWS_FOLDER}/").removesuffix("/index.json")
        return (200, self.offers[name]) if name in self.offers and not url.query else (403, {})

    def _azure(self, query: Mapping[str, str]) -> tuple[int, Any]:
        clauses = query.get("$filter", "").split(" and ")
        allowed: dict[str, set[str]] = {}
        for clause in clauses:
            parts = [_CLAUSE.fullmatch(part) for part in clause.strip("()").split(" or ")]
            if not all(parts) or len(parts) > MAX_SIZES:
                return 400, {"Error": f"not a filter: {clause}"}
            field, *remaining = {part[1] for part in parts if part}
            if remaining or field not in _FIELDS:
                return 400, {"Error": f"not a field: {clause}"}
            allowed[_FIELDS[field]] = {part[2] for part in parts if part}
        if query.get("currencyCode") != "'USD'" or not query.keys() <= {
            "currencyCode",
            "$filter",
            "$skip",
        }:
            return 400, {"Error": "unknown parameters"}
        self.filters.append(query["$filter"])
        fitting = [
            meter
            for meter in self.meters
            if all(meter[key] in values for key, values in allowed.items())
        ]
        start = int(query.get("$skip", "0"))
        after = start + AZURE_PAGE
        link = f"{self.url}{AZURE_PATH}?currencyCode='USD'&$filter={quote(query['$filter'])}&$skip={after}"
        items = fitting[start:after]
        more = (self.next_page or link) if after < len(fitting) else None
        return 200, {
            "BillingCurrency": "USD",
            "Items": items,
            "NextPageLink": more,
            "Count": len(items),
        }


@contextmanager
def price_lists() -> Iterator[PriceLists]:
    """Serve empty lists until the end of the block."""
    lists = PriceLists()
    with serve(lists.serve) as port:
        lists.url = f"http://127.0.0.1:{port}"
        yield lists
