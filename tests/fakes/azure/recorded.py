"""Exchanges of the real Azure ML service.

Each row of tests/data/azureml-recorded.jsonl names its repository and commit: those of Microsoft's
own test recordings. Identifiers are placeholders such as `{name}`.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import isodate

DATA = Path(__file__).parents[2] / "data" / "azureml-recorded.jsonl"


class Exchange(NamedTuple):
    """A recorded request and its answer."""

    recording: str
    number: int
    method: str
    path: str
    status: int
    request: Any
    response: Any
    headers: dict[str, str]


@cache
def exchanges(path: Path = DATA) -> tuple[Exchange, ...]:
    """Return all exchanges, those of one recording together and in their order."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return tuple(
        Exchange(
            recording=row["recording"],
            number=row["n"],
            method=row["method"],
            path=row["path"].replace("https://management.azure.com", ""),
            status=row["status"],
            request=row["request"],
            response=row["response"],
            headers=row["headers"],
        )
        for row in rows
    )


class Form(NamedTuple):
    """Members of a recorded resource, in the service's order."""

    sent: Mapping[str, Any]
    """Those that the client had sent."""
    answered: Mapping[str, Any]
    """All that the service answered."""

    def filled(self, values: Mapping[str, Any], *nested: str) -> dict[str, Any]:
        """Return all members with these values, or with the value that the service fills in.

        `nested`: members that are objects of such members themselves.
        """
        members: dict[str, Any] = {}
        for name, recorded in self.answered.items():
            value = values.get(name)
            if name in nested and isinstance(recorded, dict) and (value or name not in self.sent):
                value = Form(self.sent.get(name) or {}, recorded).filled(value or {})
            if value is None and name not in self.sent:
                value = copy.deepcopy(recorded)
            members[name] = value
        return members | {name: values[name] for name in values.keys() - members.keys()}


@cache
def form(kind: str, version: str, type_: str = "") -> Form:
    """Return the form of a resource's `properties` in an API version, or in the nearest one.

    `kind`: expression for a part of its path, such as `/jobs/`; `type_`: of a job, `Command` or
    `Sweep`.
    """
    candidates = [
        (api_version(exchange.path), exchange)
        for exchange in exchanges()
        if re.search(kind, exchange.path)
        and exchange.status < 300
        and isinstance(exchange.response, dict)
        and "properties" in exchange.response
        and exchange.response["properties"].get("jobType", "") == type_
        and not exchange.response["properties"].get("isArchived")
        and "Local" not in (exchange.response["properties"].get("services") or {})
    ]
    earlier = [item for item in candidates if item[0] <= version] or candidates
    nearest = max(earlier, key=lambda item: (item[0], item[1].method == "GET"))[1]
    created = [
        exchange
        for exchange in exchanges()
        if exchange.recording == nearest.recording
        and exchange.method == "PUT"
        and urlsplit(exchange.path).path == urlsplit(nearest.path).path
    ]
    sent = created[0].request["properties"] if created else {}
    return Form(sent, nearest.response["properties"])


def api_version(path: str) -> str:
    """Return the API version in an address; empty without one."""
    return "".join(parse_qs(urlsplit(path).query).get("api-version", []))


def duration_seconds(text: str) -> int | None:
    """An ISO 8601 duration in seconds; None for anything else."""
    try:
        return int(isodate.parse_duration(text).total_seconds())
    except (isodate.ISO8601Error, AttributeError):  # years have no length
        return None
