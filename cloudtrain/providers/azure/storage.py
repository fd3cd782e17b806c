"""The only module that calls Azure's blob storage SDK: containers of datastores, and logs by their signed URLs."""

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
from cloudtrain.providers.azure.permissions import READ_BLOBS, WRITE_BLOBS

RETRIES: dict[str, Any] = {"retry_total": 4, "initial_backoff": 0.5, "increment_base": 2}
"""Options of the SDK: it retries for seconds, not for the minutes of its defaults."""

_NO_SUCH_RANGE = 416

MAX_BYTES = 16 * 2**20
"""The most that is read of a log at once."""


class BlobContainer:
    """The blob container of a datastore."""

    def __init__(self, account: str, name: str, credential: Any) -> None:
        self._client = ContainerClient(account, name, credential=credential, **RETRIES)

    def blobs(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Names and sizes in bytes of all blobs with a prefix, without the folders that some accounts list."""
        with _calling("listing blobs", prefix, READ_BLOBS):
            for found in self._client.list_blobs(name_starts_with=prefix, include=["metadata"]):
                if (found.metadata or {}).get("hdi_isfolder") != "true":
                    yield found.name, int(found.size or 0)

    def download(self, name: str, path: Path, progress: Progress | None = None) -> None:
        """Download one blob; the file appears only when it is complete. `progress` is called once, at the end."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}.part")
        try:
            with _calling("reading a blob", name, READ_BLOBS), draft.open("wb") as file:
                self._client.download_blob(name).readinto(file)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        if progress is not None:
            size = path.stat().st_size
            progress(size, size)

    def upload(self, name: str, path: Path) -> None:
        """Upload a file, replacing an existing blob. OSError if the file cannot be read."""
        with path.open("rb") as file, _calling("writing a blob", name, WRITE_BLOBS):
            self._client.upload_blob(name, file, overwrite=True)

    def put(self, name: str, content: bytes) -> None:
        """Store a blob, replacing an existing one."""
        with _calling("writing a blob", name, WRITE_BLOBS):
            self._client.upload_blob(name, content, overwrite=True)


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A part of a log file."""

    data: bytes
    start: int
    """Offset of its first byte; 0 if the log was replaced since the last read."""
    created: str
    """When the log was created; a replaced log, as after a preemption, has another time."""
    more: bool
    """Whether the log has more after it."""


def read_log(address: str, start: int, created: str) -> LogChunk | None:
    """The log at a signed URL from byte `start` on, at most MAX_BYTES; None if it does not exist (yet).

    `created`: the creation time at the last read, or empty; a log with another one is read from its first byte.
    """
    client = BlobClient.from_blob_url(address, **RETRIES)
    with client, _calling("reading the log", address.partition("?")[0]):
        try:
            about = client.get_blob_properties()
            now = str(about.creation_time or "")
            begin = start if created in ("", now) and about.size >= start else 0
            length = min(about.size - begin, MAX_BYTES)
            data = b""
            if length:
                found = client.download_blob(offset=begin, length=length)
                if str(found.properties.creation_time or "") != now:
                    return None  # replaced just now: the next read finds the new one
                data = found.readall()
        except ResourceNotFoundError:
            return None
        except HttpResponseError as error:
            if error.status_code != _NO_SUCH_RANGE:  # replaced just now by a shorter one
                raise
            return None
    return LogChunk(data, begin, now, more=begin + length < about.size)


@contextmanager
def _calling(what: str, place: str, action: str = "") -> Iterator[None]:
    """Translate the SDK's errors. `action`: what who calls must be allowed, which storage does not tell."""
    try:
        yield
    except (AzureError, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError)):
            raise  # an error of the local disk
        raise translated(error, what, place, action) from error
