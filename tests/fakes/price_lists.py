"""The price lists of AWS and Azure on loopback, in their documented forms, strict about requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from tests.fakes.messages import Request, Response
from tests.fakes.plain_server import serve

AZURE_PATH = "/api/retail/prices"
PAGE = 3
"""Items per page; the services have 100 to 1,000."""
_CLAUSE = re.compile(r"(\w+) eq '([^']*)'")
_FIELDS = {
    "serviceName": "serviceName",
    "priceType": "type",
    "armSkuName": "armSkuName",
    "armRegionName": "armRegionName",
}


def product(name: str, region: str, price: object, **changes: str) -> str:
    """A product of AWS's list with what it costs: by default an hour of training."""
    attributes = {
        "regionCode": region,
        "instanceName": name,
        "usagetype": changes.get("usage", f"{region}-Train:{name}"),
        "component": changes.get("component", "Training"),
    }
    dimension = {
        "unit": changes.get("unit", "Hrs"),
        "pricePerUnit": {changes.get("currency", "USD"): price},
    }
    document = {
        "product": {"sku": "SKU", "attributes": attributes},
        "publicationDate": "2026-11-20T02:56:06Z",
        "terms": {"OnDemand": {"SKU.TERM": {"priceDimensions": {"SKU.TERM.RATE": dimension}}}},
    }
    return json.dumps(document)


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
    """Both lists on one server. `faults`: statuses of the next answers; None for the answer."""

    def __init__(self) -> None:
        self.products: list[str] = []
        """AWS's products, as JSON."""
        self.meters: list[dict[str, Any]] = []
        self.faults: list[int | None] = []
        self.asked: list[dict[str, str]] = []
        """Filters by field, in order."""
        self.next_page = ""
        """Replaces the address of the next page; empty for the true one."""
        self.denied = False
        """True if AWS's credentials lack the right."""
        self.body: bytes | None = None
        """Replaces Azure's answer."""
        self.url = ""

    def serve(self, request: Request) -> Response:
        """Answer a request, or let it go wrong."""
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            return Response(fault, [], b"")

        if request.method == "POST":
            status, document = self._aws(request)
        else:
            url = urlsplit(request.target)
            assert url.path == AZURE_PATH
            status, document = self._azure(dict(parse_qsl(url.query, strict_parsing=True)))
            if self.body is not None:
                return Response(status, [], self.body)

        headers = [("x-amzn-RequestId", "1"), ("Content-Type", "application/x-amz-json-1.1")]
        return Response(status, headers, json.dumps(document).encode())

    def _aws(self, request: Request) -> tuple[int, Any]:
        if self.denied:
            message = "User: me is not authorized to perform: pricing:GetProducts"
            return 400, {"__type": "AccessDeniedException", "message": message}

        asked = json.loads(request.body)
        filters = asked["Filters"]
        if (
            request.headers["x-amz-target"] != "AWSPriceListService.GetProducts"
            or asked["ServiceCode"] != "AmazonSageMaker"
            or any(part["Type"] != "TERM_MATCH" for part in filters)
        ):
            return 400, {"__type": "InvalidParameterException"}

        values = {part["Field"]: part["Value"] for part in filters}
        self.asked.append(values)
        region = values.get("regionCode", "")
        fitting = [text for text in self.products if f'"{region}' in text or text[0] != "{"]
        start = int(asked.get("NextToken", "0"))
        answer: dict[str, Any] = {"PriceList": fitting[start : start + PAGE]}
        if start + PAGE < len(fitting):
            answer["NextToken"] = str(start + PAGE)

        return 200, answer

    def _azure(self, query: Mapping[str, str]) -> tuple[int, Any]:
        clauses = [_CLAUSE.fullmatch(text) for text in query.get("$filter", "").split(" and ")]
        if not all(clause and clause[1] in _FIELDS for clause in clauses):
            return 400, {"Error": f"not a filter: {query}"}

        wanted = {clause[1]: clause[2] for clause in clauses if clause}
        if query.get("currencyCode") != "'USD'" or not query.keys() <= {
            "currencyCode",
            "$filter",
            "$skip",
        }:
            return 400, {"Error": "unknown parameters"}
        self.asked.append(wanted)
        fitting = [
            meter
            for meter in self.meters
            if all(meter[_FIELDS[name]] == value for name, value in wanted.items())
        ]
        start = int(query.get("$skip", "0"))
        after = start + PAGE
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
