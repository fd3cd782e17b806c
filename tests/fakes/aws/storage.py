"""SageMaker's use of S3 for a job: downloading channels, syncing checkpoints, uploading archives."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError


class Storage:
    """S3 as the service itself sees it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def has_bucket(self, uri: str) -> bool:
        """Return whether the bucket of an address exists."""
        try:
            self._client.head_bucket(Bucket=_parts(uri)[0])
        except ClientError:
            return False
        return True

    def about(self, bucket: str, key: str) -> dict[str, Any] | None:
        """Return HeadObject's answer for an object; None if it is missing."""
        try:
            head: dict[str, Any] = self._client.head_object(Bucket=bucket, Key=key)
        except ClientError:
            return None
        return head

    def download(self, uri: str, folder: Path) -> int:
        """Every object whose name begins with the prefix (S3Prefix), below the folder; returns how
        many there were.
        """
        bucket, prefix = _parts(uri)
        count = 0
        for key in self._keys(bucket, prefix):
            count += 1
            path = folder / inside(key, prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._client.get_object(Bucket=bucket, Key=key)["Body"].read())
        return count

    def store(self, content: bytes, uri: str) -> None:
        """One object."""
        bucket, key = _parts(uri)
        self._client.put_object(Bucket=bucket, Key=key, Body=content)

    def remove(self, uri: str) -> None:
        """One object, if it is there."""
        bucket, key = _parts(uri)
        self._client.delete_object(Bucket=bucket, Key=key)

    def _keys(self, bucket: str, prefix: str) -> Iterator[str]:
        for page in self._client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix
        ):
            yield from (
                item["Key"] for item in page.get("Contents", []) if not item["Key"].endswith("/")
            )


class Checkpoints:
    """The checkpoint folders of all nodes on their way to one prefix in S3, whoever of them wrote
    last.

    As strict as "Use checkpoints in Amazon SageMaker AI" in the developer guide allows: S3 is kept
    like the folder, so what is deleted there is deleted in S3; nothing says that a new file is
    stored before an old one goes. Deleting is quick and storing takes its time, so the one is done
    at the first look and the other at the second.
    """

    def __init__(self, storage: Storage, uri: str, folders: Sequence[Path]) -> None:
        self._storage = storage
        self._uri = uri
        self._folders = folders
        self._seen: dict[Path, tuple[int, int]] = {}
        self._found: dict[Path, tuple[int, int]] = {}

    def restore(self) -> None:
        """Download what an earlier job or attempt stored to every node."""
        for folder in self._folders if self._uri else ():
            self._storage.download(self._uri, folder)
        self._seen = dict(self._files())

    def sync(self, *, last: bool = False) -> None:
        """Delete what was deleted, store what has changed. `last`: all of it, the containers are
        over.
        """
        before = self._found
        self._found = dict(self._files())
        for path in self._seen.keys() - self._found.keys():
            del self._seen[path]
            self._storage.remove(f"{self._uri.rstrip('/')}/{self._name(path)}")
        for path, sign in self._found.items():
            if self._seen.get(path) == sign or not (last or before.get(path) == sign):
                continue
            # It may be renamed or deleted while we look: the next look finds what became of it.
            with suppress(FileNotFoundError):
                self._storage.store(
                    path.read_bytes(), f"{self._uri.rstrip('/')}/{self._name(path)}"
                )
                self._seen[path] = sign

    def _files(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        for top in self._folders if self._uri else ():
            # One that is renamed or deleted meanwhile is passed over.
            for folder, _, names in os.walk(top):
                for path in (Path(folder, name) for name in sorted(names)):
                    with suppress(FileNotFoundError):
                        status = path.stat()
                        if path.is_file():
                            yield path, (status.st_mtime_ns, status.st_size)

    def _name(self, path: Path) -> str:
        return next(
            path.relative_to(folder).as_posix()
            for folder in self._folders
            if path.is_relative_to(folder)
        )


def archive(folders: Sequence[Path]) -> bytes | None:
    """Return a .tar.gz of these folders together; the first node wins where names clash; None if
    they are empty.
    """
    files: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            files.setdefault(path.relative_to(folder).as_posix(), path)
    if not files:
        return None
    return _packed(files)


def empty_archive() -> bytes:
    """A .tar.gz with nothing in it."""
    return _packed({})


def _packed(files: dict[str, Path]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, path in sorted(files.items()):
            tar.add(path, name, recursive=False)
    return content.getvalue()


def inside(key: str, prefix: str) -> str:
    """Return an object's path in the folder that its prefix becomes.

    `data/train` is taken for a folder if a slash follows in the name; otherwise names count from
    the last slash.
    """
    if key.startswith(prefix.rstrip("/") + "/"):
        return key[len(prefix.rstrip("/")) + 1 :]
    return key[prefix.rfind("/") + 1 :]


def _parts(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key
