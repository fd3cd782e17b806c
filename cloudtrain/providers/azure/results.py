"""Bringing what a job left from its datastore: model, output and checkpoints, from where its request put them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.contracts.azureml import ARTIFACT_STORE, KEPT_FOLDERS, STOP_FILE, artifact_folder
from cloudtrain.errors import CloudError, StorageError
from cloudtrain.providers import Note, Progress
from cloudtrain.providers.cloud.paths import inside
from cloudtrain.runs.files import storing
from cloudtrain.source.results import LINK, LONGEST_TARGET, make_links

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace

_SYSTEM = "azureml/"
"""In `logs`: what Azure ML itself had to say."""

_PLACE = re.compile(r"azureml://(?:subscriptions/.*?/)?datastores/([^/]+)/paths/(.*)")


def places(document: Mapping[str, Any]) -> dict[str, str]:
    """Where a job's model, output and checkpoints lie, by its request."""
    outputs = document.get("outputs", {})
    return {name: outputs[name]["path"] for name in ("model", "output", "checkpoints") if name in outputs}


def parts(place: str) -> tuple[str, str]:
    """Datastore and path of an address in a datastore. StorageError for any other."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise StorageError(f"{place} is not a datastore path", hint="az ml job download brings what it can")
    return found[1], found[2]


def fetch(
    cloud: Workspace,
    found: Mapping[str, str],
    names: Sequence[str],
    folder: Path,
    progress: Progress | None,
    note: Note,
) -> list[str]:
    """Bring these into `folder/<name>`; returns the names of those that there were. `note`: see `Provider.fetch`."""
    return [name for name in names if name in found and bring_folder(cloud, found[name], folder / name, progress, note)]


def fetch_artifacts(cloud: Workspace, job: str, folder: Path) -> bool:
    """Bring what programs left in ./outputs and ./logs, which Azure ML stores by itself; False if there is nothing."""
    container, found = cloud.container(ARTIFACT_STORE), False
    for kept in KEPT_FOLDERS:
        prefix = f"{artifact_folder(job)}{kept}/"
        for name, _ in container.blobs(prefix):
            if _is_wanted(name) and not name.startswith(f"{prefix}{_SYSTEM}"):
                path = inside(folder / kept, name[len(prefix) :])
                with storing(path):
                    container.download(name, path)
                found = True
    return found


def bring_folder(
    cloud: Workspace, place: str, folder: Path, progress: Progress | None, note: Note = lambda _: None
) -> bool:
    """Bring all blobs below a place (or the one of that very name); False if there is none.

    A blob that the launcher has stored for a symbolic link becomes one again, if it leads to something inside.
    """
    datastore, prefix = parts(place)
    container = cloud.container(datastore)
    blobs = [(name, size) for name, size in container.blobs(prefix) if _is_wanted(name)]
    total, done = sum(size for _, size in blobs), 0
    links = []
    for name, size in blobs:
        path = inside(folder, name[len(prefix) :].lstrip("/") or name.rpartition("/")[2])
        with storing(path):
            container.download(name, path)
            if path.name.endswith(LINK) and size <= LONGEST_TARGET:
                links.append(path)
        done += size
        if progress is not None:
            progress(done, total)
    with storing(folder):
        return make_links(links, folder, note) if blobs else False


def left(cloud: Workspace, job: str, found: Mapping[str, str]) -> list[str] | None:
    """Which of these places hold anything; None where that cannot be told, which is no trouble.

    What Azure ML stores by itself (./outputs, ./logs) is fetched with the output.
    """
    try:
        here = [name for name, place in found.items() if has_any(cloud, place)]
        if "output" in found and "output" not in here and _has_artifacts(cloud, job):
            here.append("output")
        return here
    except (CloudError, StorageError):
        return None


def _has_artifacts(cloud: Workspace, job: str) -> bool:
    container = cloud.container(ARTIFACT_STORE)
    prefixes = [f"{artifact_folder(job)}{kept}/" for kept in KEPT_FOLDERS]
    return any(
        _is_wanted(name) and not name.startswith(f"{prefix}{_SYSTEM}")
        for prefix in prefixes
        for name, _ in container.blobs(prefix)
    )


def has_any(cloud: Workspace, place: str) -> bool:
    """Whether anything lies there."""
    datastore, prefix = parts(place)
    return any(_is_wanted(name) for name, _ in cloud.container(datastore).blobs(prefix))


def _is_wanted(name: str) -> bool:
    return not name.endswith("/") and not name.rpartition("/")[2].startswith(STOP_FILE)
