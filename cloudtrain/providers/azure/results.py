"""Download a job's model, output and checkpoints from the datastore URIs in its request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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
from cloudtrain.planning.launch import TAG_PREFIX
from cloudtrain.planning.plan import json_digest
from cloudtrain.providers.azure.config import client_of_run, request_of
from cloudtrain.providers.remote_folder import RemoteFolder
from cloudtrain.providers.shared.downloads import StoredFile, download_all
from cloudtrain.providers.shared.idempotent_create import own_tags
from cloudtrain.providers.shared.paths import run_folder
from cloudtrain.runs.files import storing
from cloudtrain.source.results import LINK, LONGEST_TARGET, make_links

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.providers.progress import Note, Progress
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState

_SYSTEM = "azureml/"
"""Folder in `logs` with Azure ML's own logs, which are not fetched."""

_DATASTORE_URI = r"azureml://(?:subscriptions/.*?/)?datastores/([^/]+)/paths/(.*)"


def artifact_uris(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the datastore URIs of a job's model, output and checkpoints, by its request."""
    outputs = document.get("outputs", {})
    uris = {}
    for name in ("model", "output", "checkpoints"):
        if name in outputs:
            uris[name] = outputs[name]["path"]

    return uris


def publish(run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG001
    """Write a blob into the job's output folder, which its nodes have mounted."""
    datastore, folder = datastore_path(request_of(run)["outputs"]["output"]["path"])
    blob = f"{folder}{PUBLISHED_FOLDER}/{name}"
    client_of_run(run).container(datastore).put(blob, text.encode())


def artifacts(run: RunFolder, state: RunState) -> dict[str, str]:
    """Return datastore URIs; empty for a job that was never started."""
    if state.ref is None:
        return {}

    return artifact_uris(request_of(run))


def native(run: RunFolder, state: RunState) -> Any:  # noqa: ARG001
    """Return azure-ai-ml's Job."""
    return client_of_run(run).entity(run.run_id)


def remote_folder(run: RunFolder) -> RemoteFolder | None:
    """Return the run's folder in its datastore; None if all outputs go elsewhere."""
    document = request_of(run)
    folder = run_folder(run.run_id)
    for uri in artifact_uris(document).values():
        root, _, path = uri.partition("/paths/")
        if path.startswith(folder):
            storage = client_of_run(run).container(datastore_path(uri)[0])
            owner = own_tags(document["tags"]).get("owner", "")
            return RemoteFolder(storage, f"{root}/paths/{folder}", folder, owner, marker(document))

    return None


def marker(document: Mapping[str, Any]) -> str:
    """Return the name of the blob that proves the folder of a job, by its request."""
    words = [document["tags"].get(f"{TAG_PREFIX}{key}") for key in ("run", "owner", "planned")]
    return f"{run_folder(document['name'])}job/{json_digest(words)[:16]}"


def checkpoints(run: RunFolder, state: RunState) -> str:
    """Return the datastore URI of the checkpoints; empty without any blob below it."""
    uri = artifacts(run, state).get("checkpoints", "")
    if not uri or not _has_blobs(client_of_run(run), uri):
        return ""

    return uri


def datastore_path(uri: str) -> tuple[str, str]:
    """Return datastore and path of a datastore URI. Raise StorageError for another URI."""
    match = re.fullmatch(_DATASTORE_URI, uri)
    if match is None:
        raise StorageError(
            f"{uri} is not a datastore path",
            hint="az ml job download brings what it can",
        )

    return match[1], match[2]


def fetch(
    run: RunFolder,
    state: RunState,
    names: Sequence[str],
    folder: Path,
    progress: Progress | None,
    note: Note,
) -> list[str]:
    """Download these into `folder/<name>`; return the existing names.

    Folders that Azure ML stores by itself go into `output`. `note`: see `Provider.fetch`.
    """
    cloud = client_of_run(run)
    uris = artifacts(run, state)
    existing = set()
    for name in names:
        if name in uris and download_folder(cloud, uris[name], folder / name, progress, note):
            existing.add(name)
    if "output" in names and uris and _fetch_stored(cloud, run.run_id, folder / "output", progress):
        existing.add("output")

    return [name for name in names if name in existing]


def _fetch_stored(cloud: Workspace, job: str, folder: Path, progress: Progress | None) -> bool:
    """Download ./outputs and ./logs of the nodes; return False if they are empty."""
    blobs = list(_stored_blobs(cloud, job))
    download = cloud.container(ARTIFACT_STORE).download
    return bool(download_all(blobs, artifact_folder(job), folder, download, progress))


def _stored_blobs(cloud: Workspace, job: str) -> Iterator[StoredFile]:
    """Yield the blobs of ./outputs and ./logs, without Azure ML's own logs."""
    for stored in STORED_FOLDERS:
        prefix = f"{artifact_folder(job)}{stored}/"
        for blob in cloud.container(ARTIFACT_STORE).blobs(prefix):
            if _is_wanted(blob.name) and not blob.name.startswith(f"{prefix}{_SYSTEM}"):
                yield blob


def download_folder(
    cloud: Workspace,
    uri: str,
    folder: Path,
    progress: Progress | None,
    note: Note = lambda _: None,
) -> bool:
    """Download all blobs below a datastore URI, or with exactly that name; False without any.

    Blobs that the launcher stored for symbolic links become links again, if they point to something
    inside the folder.
    """
    datastore, prefix = datastore_path(uri)
    container = cloud.container(datastore)
    blobs = [blob for blob in container.blobs(prefix) if _is_wanted(blob.name)]

    files = download_all(blobs, prefix, folder, container.download, progress)
    with storing(folder):
        links = [file for file in files if _is_link(file)]
        if not blobs:
            return False

        return make_links(links, folder, note)


def _is_link(file: Path) -> bool:
    return file.name.endswith(LINK) and file.stat().st_size <= LONGEST_TARGET


def existing_artifacts(cloud: Workspace, job: str, uris: Mapping[str, str]) -> list[str] | None:
    """Return the names of existing artifacts; None if storage refuses to list them.

    Folders that Azure ML stores by itself (./outputs, ./logs) count as output.
    """
    try:
        existing = [name for name, uri in uris.items() if _has_blobs(cloud, uri)]
        if "output" in uris and "output" not in existing and any(_stored_blobs(cloud, job)):
            existing.append("output")
        return existing
    except (CloudError, StorageError):
        return None


def _has_blobs(cloud: Workspace, uri: str) -> bool:
    """Return True if there are any blobs below a datastore URI."""
    datastore, prefix = datastore_path(uri)
    return any(_is_wanted(blob.name) for blob in cloud.container(datastore).blobs(prefix))


def _is_wanted(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return (
        bool(file)
        and not file.startswith(STOP_FILE)
        and not folder.endswith(f"/{PUBLISHED_FOLDER}")
    )
