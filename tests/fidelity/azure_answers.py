"""Recorded requests of Azure ML, sent to the imitation: does it answer as the service did?

A recording is replayed in its order against an empty workspace. Names, times, hosts and signatures
differ, so answers are compared by status, headers, form and error code, and by the words that do
not depend on them.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.fakes.azure.account import Cluster
from tests.fakes.azure.blobs import AUDIENCE
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.recorded import DATA, Exchange, exchanges
from tests.support.waiting import HANG_SECONDS


class Kept(NamedTuple):
    """A kind of difference: expressions for the call and for the difference itself."""

    call: str
    difference: str
    reason: str


AZURE = (
    Kept(
        "(PUT|DELETE) .*/computes/|computeOperations|GET .*/computes/{name}",
        ".*",
        "cloudtrain creates no clusters",
    ),
    Kept("mfeOperationResults", ".*", "cloudtrain does not wait for a cancellation"),
    Kept(
        "PUT .*/datastores/|/datastores/{name}|/datastores\\?",
        ".*",
        "cloudtrain creates and lists no datastores",
    ),
    Kept("pipeline_job.* (PUT|GET) .*/(jobs|runs)/", ".*", "cloudtrain submits no pipelines"),
    Kept("command_job_local PUT", ".*", "local jobs of azure-ai-ml run on the user's machine"),
    Kept(
        "GET .*/computes/",
        "identity is not",
        "role assignments of the imitation belong to the cluster's identity",
    ),
    Kept(
        "GET .*/computes/",
        "enableNodePublicIp|description",
        "clusters differ by the way they were created",
    ),
    Kept("GET .*/datastores/", "systemData.createdBy", "only workspaces of 2023 show it"),
    Kept("/jobs", "_azureml.ClusterName is not", "shown since 2024"),
    Kept("2022-\\d\\d-\\d\\d", ".*", "API versions before 2023 are not imitated"),
)


def reason(kept: tuple[Kept, ...], call: str, difference: str) -> str:
    """Return why a difference is kept; empty for one that is not."""
    for row in kept:
        if re.search(row.call, call) and re.search(row.difference, difference):
            return row.reason
    return ""


Answer = tuple[int, Mapping[str, str], Any]
_HEADERS = (
    "Location",
    "x-ms-error-code",
    "x-ms-response-type",
    "x-ms-async-operation-timeout",
    "Content-Range",
    "Content-MD5",
    "x-ms-blob-type",
)
_WORDS = ("status", "code", "error.message", "Type", "goal", "mode", "jobTier", "shmSize")
"""Members that must be equal."""
CONTENT = b"seventeen letters"


class Verdict(NamedTuple):
    """One exchange and where the imitation's answer differs."""

    exchange: Exchange
    differences: list[str]

    @property
    def call(self) -> str:
        """Recording, method and path."""
        exchange = self.exchange
        return f"{exchange.recording} {exchange.method} {exchange.path}"


def verdicts(path: Path = DATA) -> Iterator[Verdict]:
    """Replay all recordings of a file."""
    for _, recording in groupby(exchanges(path), key=lambda exchange: exchange.recording):
        rows = list(recording)
        curated: dict[str, dict[str, str]] = {}
        for name, version in re.findall(
            r"(AzureML-[^:@\"/]+)(?::|/versions/)(\d+)", json.dumps(rows)
        ):
            curated.setdefault(name, {})[version] = f"mcr.microsoft.com/{name}:{version}"
        with AzureCloud(phase_seconds=3600, location="eastus2", curated=curated) as cloud:
            replay = _Replay(cloud)
            for exchange in rows:
                yield Verdict(exchange, replay.differences(exchange))


class _Replay:
    """One recording against an empty workspace, with what its requests presuppose."""

    def __init__(self, cloud: AzureCloud) -> None:
        self.cloud = cloud
        account = cloud.account
        self._names = {
            "{sub}": account.subscription,
            "{rg}": account.resource_group,
            "{ws}": account.workspace,
            "{region}": account.location,
            "https://{account}.blob.core.windows.net:443": account.blob_url,
            "https://{account}.blob.core.windows.net": account.blob_url,
        }
        account.computes["testCompute"] = Cluster(vm_size="Standard_DS3_v2")

    def differences(self, exchange: Exchange) -> list[str]:
        """Send the request of an exchange; return the differences of the answer."""
        self._prepare(exchange)
        status, headers, body = self._send(exchange)
        if exchange.path.partition("?")[0].endswith("startPendingUpload"):
            self._learn_container(exchange, body)
        if status != exchange.status:
            return [f"status {status} for {exchange.status}: {str(body)[:300]}"]
        names = {name.lower() for name in headers}
        missing = [
            f"header {name} is missing"
            for name in _HEADERS
            if name in exchange.headers and name.lower() not in names
        ]
        return missing + list(_compare(exchange.response, body, ""))

    def _prepare(self, exchange: Exchange) -> None:
        """Create what was there before the recording began."""
        account = self.cloud.account
        text = json.dumps([exchange.path, exchange.request])
        if exchange.status >= 400 and "ompute" in json.dumps(exchange.response):
            account.computes.pop("testCompute", None)
        container = re.search(r"azureml-blobstore-(?:[0-9a-f-]{36}|{ws guid})", text)
        if container:
            self._names[container[0]] = self.cloud.container
        if exchange.method == "HEAD" and exchange.status == 200:
            path = self._filled(exchange.path).removeprefix(account.blob_url)
            container_name, _, blob = path.partition("?")[0].lstrip("/").partition("/")
            account.storage.create(container_name).write(blob, b"content")
        uri = re.search(r'"codeUri": "([^"]*LocalUpload[^"]*)"', json.dumps(exchange.request))
        if uri:
            path = self._filled(uri[1]).removeprefix(f"{account.blob_url}/").partition("/")[2]
            account.storage.create(self.cloud.container).write(f"{path}/train.py", b"")
        if exchange.method == "PUT" and exchange.status == 200 and "/codes/" in exchange.path:
            self._send(exchange)
        for name in re.findall(r"/codes/([0-9a-f-]{36})/versions/1", json.dumps(exchange)):
            self._put_code(name, exchange.path)

    def _put_code(self, name: str, path: str) -> None:
        """Upload a code that an earlier client has left, with the hash that is searched for."""
        if name in self._names:
            return
        self._names[name] = name
        digest = re.search(r"hash=([0-9a-z{}]+)", path)
        account = self.cloud.account
        account.storage.create(name).write("code/train.py", b"")
        properties = {"hash_sha256": self._filled(digest[1]) if digest else "", "hash_version": "1"}
        body = {"codeUri": f"{account.blob_url}/{name}/code", "properties": properties}
        self.cloud.service.assets.put_code(name, "1", {"properties": body}, "2023-04-01")

    def _learn_container(self, exchange: Exchange, body: Any) -> None:
        recorded = exchange.response["blobReferenceForConsumption"]["blobUri"].rpartition("/")[2]
        self._names[recorded] = body["blobReferenceForConsumption"]["blobUri"].rpartition("/")[2]

    def _send(self, exchange: Exchange) -> Answer:
        account = self.cloud.account
        target = self._filled(exchange.path)
        for host in (self.cloud.endpoint.url, f"https://{account.location}.api.azureml.ms"):
            target = target.removeprefix(host)
        is_blob = "blob.core.windows.net" in exchange.path
        audience = AUDIENCE if is_blob else account.url
        headers = {
            "Authorization": f"Bearer {account.tokens.bearer(audience)}",
            "Content-Type": "application/json",
            "x-ms-version": "2026-02-06",
        }
        request = exchange.request or {}
        headers |= {
            name: self._filled(value) for name, value in request.get("<headers>", {}).items()
        }
        body = b"" if is_blob else self._filled(json.dumps(request)).encode()
        if headers.pop("Content-Length", None):
            body = CONTENT
        url = urlsplit(self.cloud.endpoint.url)
        connection = http.client.HTTPSConnection(
            str(url.hostname), url.port, context=self._tls(), timeout=HANG_SECONDS
        )
        try:
            connection.request(
                exchange.method, target.replace("?sas", "?").replace("&sas", ""), body, headers
            )
            try:
                answer = connection.getresponse()
            except http.client.HTTPException:
                raise RuntimeError("\n".join(account.unexpected_errors)) from None
            content = answer.read()
            received = dict(answer.getheaders())
        finally:
            connection.close()
        return answer.status, received, _parsed(content, is_blob=is_blob)

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.cloud.environment()["SSL_CERT_FILE"])

    def _filled(self, text: str) -> str:
        for name, value in self._names.items():
            text = text.replace(name, value)
        return re.sub(r"\{(\w+)\}", r"\1", text)


def _parsed(content: bytes, *, is_blob: bool) -> Any:
    if not content:
        return None
    return _elements(content.decode()) if is_blob else json.loads(content)


def _elements(text: str) -> Any:
    """Return the names of the elements of an XML text; other texts as they are."""
    return sorted(set(re.findall(r"<(\w[\w-]*)", text))) or text


def _compare(recorded: Any, answered: Any, place: str) -> Iterator[str]:
    """Yield where two answers differ in form: missing and additional members, and their types."""
    if isinstance(recorded, dict) and isinstance(answered, dict):
        for key in sorted(recorded.keys() | answered.keys()):
            path = f"{place}.{key}".lstrip(".")
            if key not in answered:
                yield f"{path} is missing"
            elif key not in recorded:
                yield f"{path} is not in the recording"
            else:
                yield from _compare(recorded[key], answered[key], path)
    elif isinstance(recorded, list) and isinstance(answered, list):
        for number, (before, after) in enumerate(zip(recorded, answered, strict=False)):
            yield from _compare(before, after, f"{place}[{number}]")
        if bool(recorded) != bool(answered):
            yield f"{place} has {len(answered)} items for {len(recorded)}"
    elif isinstance(recorded, str) and "<?xml" in recorded:
        names = _elements(recorded)
        if names != answered:
            yield f"elements: {sorted(set(names) ^ set(answered))}"
    elif place.endswith("properties.status"):
        return  # it depends on the moment
    elif type(recorded) is not type(answered) or (
        place.endswith(_WORDS) and recorded != answered and "{" not in str(recorded)
    ):
        yield f"{place} is {answered!r} for {recorded!r}"
