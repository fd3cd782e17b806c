"""Uploads inputs of this machine whole, into a place of the datastore that is named by their content.

The SDK would upload them, too, but leaves out what a .gitignore or .amlignore inside the folder says, and data folders
often hold a .gitignore of `*`, so that they are not committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, Outcome, SourceError
from cloudtrain.providers import Progress
from cloudtrain.providers.cloud.paths import PREFIX
from cloudtrain.source.hashes import stamp
from cloudtrain.source.inputs import InputFile, digest_input, list_input

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.providers.azure.storage import BlobContainer

UPLOADS_AT_ONCE = 8


def with_uploaded_inputs(
    cloud: Workspace, document: Mapping[str, Any], datastore: str, cache_dir: Path, progress: Progress | None
) -> dict[str, Any]:
    """The request with each path of this machine replaced by its place in the datastore; what is new is uploaded.

    SourceError if a file cannot be read or changes meanwhile.
    """
    inputs = {}
    try:
        for name, item in document.get("inputs", {}).items():
            here = os.path.isabs(item.get("path", ""))  # noqa: PTH117
            place = {"path": _uploaded(cloud, item["path"], datastore, cache_dir, progress)} if here else {}
            inputs[name] = {**item, **place}
    except CloudError as error:
        error.outcome = Outcome.NOT_STARTED  # whatever became of the blob: the job was not asked for
        raise
    return {**document, "inputs": inputs}


def _uploaded(cloud: Workspace, place: str, datastore: str, cache_dir: Path, progress: Progress | None) -> str:
    files = list_input(place).files
    digest, _ = digest_input(files, place, cache_dir)
    container, folder = cloud.container(datastore), f"{PREFIX}/inputs/{digest}"
    mark = f"{folder}.complete"
    if not any(name == mark for name, _ in container.blobs(mark)):
        total, done = sum(file.about.st_size for file in files), 0
        for size in _upload(container, folder, files):
            done += size
            if progress is not None:
                progress(done, total)
        container.put(mark, b"")
    single = os.path.isfile(place)  # noqa: PTH113
    return f"azureml://datastores/{datastore}/paths/{folder}/{files[0].path if single else ''}"


def _upload(container: BlobContainer, folder: str, files: list[InputFile]) -> Iterator[int]:
    """Store all files; yields the bytes of each that is there."""

    def one(file: InputFile) -> int:
        try:
            container.upload(f"{folder}/{file.path}", Path(file.place))
            unchanged = stamp(os.stat(file.place)) == stamp(file.about)  # noqa: PTH116
        except FileNotFoundError:
            unchanged = False
        if not unchanged:
            raise SourceError(
                f"{file.place} changed while it was uploaded",
                hint="wait until it is written, then run again",
            )
        return file.about.st_size

    with ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
        try:
            yield from pool.map(one, files)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
