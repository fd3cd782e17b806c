"""Bringing what a job left from its datastore: model, output and checkpoints, from where its request put them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.contracts.azureml import STOP_FILE
from cloudtrain.errors import StorageError
from cloudtrain.provider import Progress
from cloudtrain.remote.names import inside
from cloudtrain.runs.store import storing

if TYPE_CHECKING:
    from cloudtrain.clouds.azure import Workspace

_PLACE = re.compile(r"azureml://(?:subscriptions/.*?/)?datastores/([^/]+)/paths/(.*)")


def places(document: Mapping[str, Any]) -> dict[str, str]:
    """Where a job's model, output and checkpoints lie, by its request."""
    outputs = document.get("outputs", {})
    return {name: outputs[name]["path"] for name in ("model", "output", "checkpoints") if name in outputs}


def parts(place: str) -> tuple[str, str]:
    """Datastore and path of an address in a datastore. StorageError for any other."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise StorageError(f"{place} is no path in a datastore", hint="az ml job download brings what it can")
    return found[1], found[2]


def fetch(
    cloud: Workspace, found: Mapping[str, str], names: Sequence[str], folder: Path, progress: Progress | None
) -> list[str]:
    """Bring these into `folder/<name>`; returns the names of those that there were."""
    return [name for name in names if name in found and bring_folder(cloud, found[name], folder / name, progress)]


def bring_folder(cloud: Workspace, place: str, folder: Path, progress: Progress | None) -> bool:
    """Bring all blobs below a place (or the one of that very name); False if there is none."""
    datastore, prefix = parts(place)
    container = cloud.container(datastore)
    blobs = [(name, size) for name, size in container.blobs(prefix) if _is_wanted(name)]
    total, done = sum(size for _, size in blobs), 0
    for name, size in blobs:
        path = inside(folder, name[len(prefix) :].lstrip("/") or name.rpartition("/")[2])
        with storing(path):
            container.download(name, path)
        done += size
        if progress is not None:
            progress(done, total)
    return bool(blobs)


def has_any(cloud: Workspace, place: str) -> bool:
    """Whether anything lies there."""
    datastore, prefix = parts(place)
    return any(True for _ in cloud.container(datastore).blobs(prefix))


def _is_wanted(name: str) -> bool:
    return not name.endswith("/") and not name.rpartition("/")[2].startswith(STOP_FILE)
