"""The only module that calls Azure's blob storage SDK: datastores' containers, and logs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.storage.blob import BlobClient, BlobProperties, ContainerClient

from cloudtrain.errors import CloudError
from cloudtrain.providers.azure.error_codes import KEYS_FORBIDDEN
from cloudtrain.providers.azure.errors import refuse_unreadable_storage, translated
from cloudtrain.providers.azure.rights import DELETE_BLOBS, READ_BLOBS, WRITE_BLOBS
from cloudtrain.providers.shared.downloads import StoredFile, draft_of
from cloudtrain.providers.shared.transfers import Count
from cloudtrain.source.inputs import SentFile

RETRIES: dict[str, Any] = {"retry_total": 4, "initial_backoff": 0.5, "increment_base": 2}
"""Options of the SDK: it retries for seconds, not for the minutes of its defaults."""

_CHECKED: dict[str, Any] = {"raw_response_hook": refuse_unreadable_storage}

_NO_SUCH_RANGE = 416
_NO_BLOB = "cloudtrain/no-blob-has-this-name"

BLOCK_BYTES = 16 * 2**20
"""Size of a block: a blob has at most 50,000 of them."""

BLOCKS_AT_ONCE = 4

RENEW_SECONDS = 300
"""Seconds from the renewal of a signature to its end."""

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

MAX_BYTES = 16 * 2**20
"""Maximum size of one read of a log."""


class CheckedContainerClient(ContainerClient):
    """A client of a container that refuses answers of other servers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        checked_options = _CHECKED | options
        super().__init__(*args, **checked_options)

    def upload_blob(self, *args: Any, **options: Any) -> Any:
        """Upload a blob; the SDK's own uploads have a hook for their progress."""
        progress = options.pop("raw_response_hook", None)

        def look(response: Any) -> None:
            refuse_unreadable_storage(response)
            if progress is not None:
                progress(response)

        return super().upload_blob(*args, **options, raw_response_hook=look)


class RenewedSas(AzureSasCredential):
    """A signature for storage that is replaced before it ends: Azure ML gives them for one hour."""

    def __init__(self, token: str, renew: Callable[[], str]) -> None:
        super().__init__(token)
        self._renew = renew
        self._lock = threading.Lock()

    @property
    def signature(self) -> str:
        """Signature for the next request."""
        with self._lock:
            token = str(super().signature)
            if _end_of(token) - time.time() < RENEW_SECONDS:
                token = self._renew() or token  # the datastore may have lost its secret
                self.update(token)
            return token


class BlobContainer:
    """The blob container of a datastore.

    It is opened with the datastore's secret, or with the user's own login if the account forbids
    keys.
    """

    def __init__(self, account: str, name: str, secret: Any, login: Callable[[], Any]) -> None:
        """Open a container. `account`: its address; `secret`: None if the datastore has none."""
        self._account = account
        self._name = name
        self._login = login
        self._lock = threading.Lock()
        self._secret = secret
        self._keys_forbidden = False
        self._client = self._opened(secret or login())

    def takes_secret(self) -> bool:
        """Return True if the account lets the datastore's secret read the container."""
        if self._keys_forbidden or not self._secret:
            return False
        try:
            with _calling("listing blobs", self._name, READ_BLOBS):
                _page(self._client, _NO_BLOB, None)
        except CloudError as error:
            if error.code != KEYS_FORBIDDEN:
                raise
            return False

        return True

    def blobs(self, prefix: str) -> Iterator[StoredFile]:
        """Yield all blobs with a prefix, without folders."""
        token: str | None = None
        while True:
            read_page = partial(_page, prefix=prefix, token=token)
            blobs, token = self._call(read_page, "listing blobs", prefix, READ_BLOBS)
            for blob in blobs:
                if (blob.metadata or {}).get("hdi_isfolder") != "true":
                    modified = 0.0
                    if blob.last_modified:
                        modified = blob.last_modified.timestamp()

                    yield StoredFile(blob.name, int(blob.size or 0), modified)
            if not token:
                return

    def download(self, name: str, size: int, path: Path, count: Count) -> None:  # noqa: ARG002
        """Download one blob; the file appears only when it is complete."""
        loaded = 0

        def hook(current: int, _: int | None) -> None:
            nonlocal loaded
            count(current - loaded)
            loaded = current

        def read(client: ContainerClient) -> None:
            with draft.open("wb") as file:
                client.download_blob(name, progress_hook=hook).readinto(file)

        with draft_of(path) as draft:
            self._call(read, "reading a blob", name, READ_BLOBS)

    def upload(self, name: str, file: SentFile) -> None:
        """Upload a file, replacing an existing blob; a large one in blocks."""

        def write(client: ContainerClient) -> None:
            content: Any = file.rewound()  # the SDK takes what has `read`
            client.upload_blob(
                name, content, length=file.size, overwrite=True, max_concurrency=BLOCKS_AT_ONCE
            )

        self._call(write, "writing a blob", name, WRITE_BLOBS)

    def put(self, name: str, content: bytes) -> None:
        """Store a blob, replacing an existing one."""

        def write(client: ContainerClient) -> None:
            client.upload_blob(name, content, overwrite=True)

        self._call(write, "writing a blob", name, WRITE_BLOBS)

    def delete(self, folder: str, last: str) -> int | None:
        """Delete all blobs of a folder, marks of folders after their contents, and one last.

        Return how many deleted blobs and versions stay; None if the account does not list them.
        """
        names = set(self._call(partial(_names, prefix=folder), "listing blobs", folder, READ_BLOBS))
        for name in (*sorted(names - {last}, reverse=True), last):
            self._call(partial(_delete, name=name), "deleting a blob", name, DELETE_BLOBS)

        history = partial(_names, prefix=folder, include=("deleted", "versions"))
        with suppress(CloudError):
            return len(self._call(history, "listing versions", folder, READ_BLOBS))

        return None

    def _call(
        self,
        do: Callable[[ContainerClient], T],
        description: str,
        place: str,
        action: str,
    ) -> T:
        """Call with the container; repeat with the user's login if keys are forbidden."""
        while True:
            client = self._client
            keys_forbidden = self._keys_forbidden
            call = description
            if keys_forbidden:
                call += " with your own login, since the account takes no keys,"

            try:
                with _calling(call, place, action):
                    return do(client)
            except CloudError as error:
                if error.code != KEYS_FORBIDDEN or keys_forbidden or not self._secret:
                    raise
            self._open_by_login()

    def _open_by_login(self) -> None:
        with self._lock:
            if self._keys_forbidden:
                return
            self._client = self._opened(self._login())
            self._keys_forbidden = True

        _LOG.warning(
            "%s takes no keys: %s is opened with your own login",
            self._account,
            self._name,
        )

    def _opened(self, credential: Any) -> ContainerClient:
        return CheckedContainerClient(
            self._account,
            self._name,
            credential=credential,
            max_block_size=BLOCK_BYTES,
            **RETRIES,
        )


def _page(
    client: ContainerClient,
    prefix: str,
    token: str | None,
) -> tuple[list[BlobProperties], str | None]:
    """Return one page of a list of blobs, and where the next one begins."""
    pages: Any = client.list_blobs(name_starts_with=prefix, include=["metadata"]).by_page(token)
    blobs = list(next(pages))
    return blobs, pages.continuation_token


def _names(client: ContainerClient, prefix: str, include: Sequence[str] = ()) -> list[str]:
    """Return the names of all blobs with a prefix, folders too."""
    return [blob.name for blob in client.list_blobs(prefix, include=list(include))]


def _delete(client: ContainerClient, name: str) -> None:
    with suppress(ResourceNotFoundError):  # by an earlier call whose answer was lost
        client.delete_blob(name, delete_snapshots="include")


def _end_of(token: str) -> float:
    """Return when a signature ends, as a Unix timestamp; infinity if it does not say."""
    end = dict(parse_qsl(token.removeprefix("?"))).get("se", "")
    try:
        return datetime.fromisoformat(end).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.inf


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A part of a log file."""

    data: bytes
    start: int
    """Offset of its first byte; 0 if the log was replaced since the last read."""
    created: str
    """Creation time of the log, which changes with a replacement, as after a preemption."""
    more: bool
    """True if the log continues after it."""


def read_log(address: str, start: int, created: str) -> LogChunk | None:
    """Return the log at a signed URL from byte `start`, at most MAX_BYTES; None without a log.

    `created`: the creation time at the last read, or empty; a log with another one is read from its
    first byte.
    """
    client = BlobClient.from_blob_url(address, **RETRIES, **_CHECKED)
    with client, _calling("reading the log", address.partition("?")[0]):
        try:
            properties = client.get_blob_properties()
            creation_time = str(properties.creation_time or "")
            begin = 0
            if created in ("", creation_time) and properties.size >= start:
                begin = start

            length = min(properties.size - begin, MAX_BYTES)
            data = b""
            if length:
                download = client.download_blob(offset=begin, length=length)
                if str(download.properties.creation_time or "") != creation_time:
                    return None  # replaced just now: the next read finds the new one
                data = download.readall()
        except ResourceNotFoundError:
            return None
        except HttpResponseError as error:
            if error.status_code != _NO_SUCH_RANGE:  # replaced just now by a shorter one
                raise
            return None

    return LogChunk(data, begin, creation_time, more=begin + length < properties.size)


@contextmanager
def _calling(description: str, place: str, action: str = "") -> Iterator[None]:
    """Translate the SDK's errors. `action`: the required right, which storage does not name."""
    try:
        yield
    except (AzureError, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError)):
            raise  # an error of the local disk
        raise translated(error, description, place, action) from error
