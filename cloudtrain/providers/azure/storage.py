"""The edge to Azure's blob storage: containers of datastores, and logs by their signed addresses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.storage.blob import BlobClient, ContainerClient

from cloudtrain.providers import Progress
from cloudtrain.providers.azure.errors import translated

RETRIES: dict[str, Any] = {"retry_total": 4, "initial_backoff": 0.5, "increment_base": 2}
"""The SDK's own tries of one call: some seconds, not the minutes of its defaults."""

_NO_SUCH_RANGE = 416

MOST_BYTES = 16 * 2**20
"""Of a log in one look: a flood of lines is brought in turns."""


class Container:
    """The container of a datastore."""

    def __init__(self, account: str, name: str, credential: Any) -> None:
        self._client = ContainerClient(account, name, credential=credential, **RETRIES)

    def blobs(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Names and sizes in bytes of all blobs below a prefix; the folders that some accounts list are passed over."""
        with _calling("listing blobs", prefix):
            for found in self._client.list_blobs(name_starts_with=prefix, include=["metadata"]):
                if (found.metadata or {}).get("hdi_isfolder") != "true":
                    yield found.name, int(found.size or 0)

    def download(self, name: str, path: Path, progress: Progress | None = None) -> None:
        """Bring one blob; the file is there whole or not at all. `progress` is told of its bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}.part")
        try:
            with _calling("reading a blob", name), draft.open("wb") as file:
                self._client.download_blob(name).readinto(file)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        if progress is not None:
            size = path.stat().st_size
            progress(size, size)

    def upload(self, name: str, path: Path) -> None:
        """Store one file, whatever was there. OSError when it cannot be read."""
        with path.open("rb") as file, _calling("writing a blob", name):
            self._client.upload_blob(name, file, overwrite=True)

    def put(self, name: str, content: bytes) -> None:
        """Store one blob, whatever was there."""
        with _calling("writing a blob", name):
            self._client.upload_blob(name, content, overwrite=True)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a log."""

    data: bytes
    start: int
    """The byte it begins with: not what was asked for, if the log was replaced meanwhile."""
    created: str
    """When the log was created; one that is replaced, as after a preemption, has another time."""
    more: bool
    """Whether the log goes on after it."""


def read_log(address: str, start: int, created: str) -> Part | None:
    """What a log holds from byte `start` on, by its signed address; None when it is not there (yet).

    `created`: when it was created, as far as one knows; a log of another time is read from its first byte.
    """
    client = BlobClient.from_blob_url(address, **RETRIES)
    with client, _calling("reading the log", address.partition("?")[0]):
        try:
            about = client.get_blob_properties()
            now = str(about.creation_time or "")
            begin = start if created in ("", now) and about.size >= start else 0
            length = min(about.size - begin, MOST_BYTES)
            data = b""
            if length:
                found = client.download_blob(offset=begin, length=length)
                if str(found.properties.creation_time or "") != now:
                    return None  # replaced in this moment: the next look finds the new one
                data = found.readall()
        except ResourceNotFoundError:
            return None
        except HttpResponseError as error:
            if error.status_code != _NO_SUCH_RANGE:  # replaced by a shorter one in this moment
                raise
            return None
    return Part(data, begin, now, more=begin + length < about.size)


@contextmanager
def _calling(what: str, place: str) -> Iterator[None]:
    try:
        yield
    except (AzureError, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError)):
            raise  # the disk's
        raise translated(error, what, place) from error
