"""Downloads a job's model, output and checkpoints from the datastore URIs in its request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, StorageError
from cloudtrain.planning.azureml import (
    ARTIFACT_STORE,
    PUBLISHED_FOLDER,
    STOP_FILE,
    STORED_FOLDERS,
    artifact_folder,
)
from cloudtrain.providers import Note, Progress
from cloudtrain.providers.shared.paths import safe_join
from cloudtrain.runs.files import storing
from cloudtrain.source.results import LINK, LONGEST_TARGET, make_links

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace

_SYSTEM = "azureml/"
"""In `logs`: Azure ML's own logs, which are not fetched."""

_DATASTORE_URI = re.compile(r"azureml://(?:subscriptions/.*?/)?datastores/([^/]+)/paths/(.*)")


def artifact_uris(document: Mapping[str, Any]) -> dict[str, str]:
    """The datastore URIs of a job's model, output and checkpoints, by its request."""
    outputs = document.get("outputs", {})
    return {
        name: outputs[name]["path"]
        for name in ("model", "output", "checkpoints")
        if name in outputs
    }


def published_blob(document: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Datastore and path of a file that is published for a job, by its request."""
    datastore, folder = datastore_path(document["outputs"]["output"]["path"])
    return datastore, f"{folder}{PUBLISHED_FOLDER}/{name}"


def datastore_path(uri: str) -> tuple[str, str]:
    """Name of the datastore and path in it of a datastore URI. StorageError for any other URI."""
    found = _DATASTORE_URI.fullmatch(uri)
    if found is None:
        raise StorageError(
            f"{uri} is not a datastore path", hint="az ml job download brings what it can"
        )
    return found[1], found[2]


def fetch(
    cloud: Workspace,
    found: Mapping[str, str],
    names: Sequence[str],
    folder: Path,
    progress: Progress | None,
    note: Note,
) -> list[str]:
    """Download these into `folder/<name>`; returns the names of those that exist. `note`: see
    `Provider.fetch`.
    """
    return [
        name
        for name in names
        if name in found and download_folder(cloud, found[name], folder / name, progress, note)
    ]


def fetch_artifacts(cloud: Workspace, job: str, folder: Path) -> bool:
    """Download ./outputs and ./logs of the nodes, which Azure ML stores by itself; False if there
    is nothing.
    """
    container = cloud.container(ARTIFACT_STORE)
    found = False
    for kept in STORED_FOLDERS:
        prefix = f"{artifact_folder(job)}{kept}/"
        for name, _ in container.blobs(prefix):
            if _is_wanted(name) and not name.startswith(f"{prefix}{_SYSTEM}"):
                path = safe_join(folder / kept, name[len(prefix) :])
                with storing(path):
                    container.download(name, path)
                found = True
    return found


def download_folder(
    cloud: Workspace, uri: str, folder: Path, progress: Progress | None, note: Note = lambda _: None
) -> bool:
    """Download all blobs below a datastore URI, or the one of exactly that name; False if there is
    none.

    Blobs that the launcher stored for symbolic links become links again, if they point to something
    inside the folder.
    """
    datastore, prefix = datastore_path(uri)
    container = cloud.container(datastore)
    blobs = [(name, size) for name, size in container.blobs(prefix) if _is_wanted(name)]
    total = sum(size for _, size in blobs)
    done = 0
    links = []
    for name, size in blobs:
        path = safe_join(folder, name[len(prefix) :].lstrip("/") or name.rpartition("/")[2])
        with storing(path):
            container.download(name, path)
            if path.name.endswith(LINK) and size <= LONGEST_TARGET:
                links.append(path)
        done += size
        if progress is not None:
            progress(done, total)
    with storing(folder):
        return make_links(links, folder, note) if blobs else False


def existing_artifacts(cloud: Workspace, job: str, found: Mapping[str, str]) -> list[str] | None:
    """The names of the artifacts that exist; None if storage refuses to list them.

    What Azure ML stores by itself (./outputs, ./logs) counts as output.
    """
    try:
        existing = [name for name, uri in found.items() if has_blobs(cloud, uri)]
        if "output" in found and "output" not in existing and _has_artifacts(cloud, job):
            existing.append("output")
        return existing
    except (CloudError, StorageError):
        return None


def _has_artifacts(cloud: Workspace, job: str) -> bool:
    container = cloud.container(ARTIFACT_STORE)
    prefixes = [f"{artifact_folder(job)}{kept}/" for kept in STORED_FOLDERS]
    return any(
        _is_wanted(name) and not name.startswith(f"{prefix}{_SYSTEM}")
        for prefix in prefixes
        for name, _ in container.blobs(prefix)
    )


def has_blobs(cloud: Workspace, uri: str) -> bool:
    """Return True if there are any blobs below a datastore URI."""
    datastore, prefix = datastore_path(uri)
    return any(_is_wanted(name) for name, _ in cloud.container(datastore).blobs(prefix))


def _is_wanted(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return (
        bool(file)
        and not file.startswith(STOP_FILE)
        and not folder.endswith(f"/{PUBLISHED_FOLDER}")
    )
