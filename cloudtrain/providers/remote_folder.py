"""Folder of a run in a cloud's storage, which a marker proves to be ours.

The marker is an object whose name only the run's own request tells. It is stored before the job is
created and deleted last: a removal that was killed can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from cloudtrain.errors import UsageError


class Storage(Protocol):
    """Storage of a cloud."""

    def blobs(self, prefix: str) -> Iterable[tuple[str, int, float]]:
        """Yield name, size in bytes and time of all objects with a prefix."""
        ...

    def delete(self, folder: str, last: str) -> int | None:
        """Delete all objects of a folder, one of them after all others.

        Return how many stay as old versions or for a delay; None if that is unknown.
        """
        ...


class RemoteFolder(NamedTuple):
    """Folder of a run in a bucket or a datastore."""

    storage: Storage
    uri: str
    folder: str
    """Name in the storage, with a slash at the end."""
    owner: str
    """Owner by the run's request."""
    marker: str
    """Name of the object that proves the folder."""

    def sizes(self, owner: str) -> list[int]:
        """Return the sizes of all objects in bytes.

        Raise UsageError for a folder of somebody else than `owner`, or without the marker.
        """
        sizes = {name: size for name, size, _ in self.storage.blobs(self.folder)}
        if self.owner != owner:
            raise UsageError(f"{self.uri} is {self.owner or 'nobody'}'s, and you are {owner}")
        if sizes and self.marker not in sizes:
            raise UsageError(f"{self.uri} lacks the marker of this run")

        return list(sizes.values())

    def delete(self) -> int | None:
        """Delete all objects, the marker last; see `Storage.delete`."""
        return self.storage.delete(self.folder, self.marker)
