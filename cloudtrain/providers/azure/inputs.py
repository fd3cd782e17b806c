"""Upload local inputs completely, into a folder of the datastore named by their digest.

The SDK could upload them too, but leaves out files that a .gitignore or .amlignore in the folder
lists, and data folders often have a .gitignore with `*`, so that they are not committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, Outcome, SourceError
from cloudtrain.providers import Progress
from cloudtrain.providers.shared.paths import PREFIX
from cloudtrain.source.hashes import stamp
from cloudtrain.source.inputs import InputFile, digest_input, list_input

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.providers.azure.storage import BlobContainer

UPLOADS_AT_ONCE = 8


def with_uploaded_inputs(
    cloud: Workspace,
    document: Mapping[str, Any],
    datastore: str,
    cache_dir: Path,
    progress: Progress | None,
) -> dict[str, Any]:
    """Return the request with local paths replaced by URIs of uploads.

    Existing uploads are not repeated. `progress` is called with bytes. Raise SourceError if a file
    cannot be read or changes meanwhile; CloudError, with `Outcome.NOT_STARTED`, if an upload fails.
    """
    inputs = {}
    try:
        for name, item in document.get("inputs", {}).items():
            is_local = os.path.isabs(item.get("path", ""))  # noqa: PTH117
            inputs[name] = dict(item)
            if is_local:
                inputs[name]["path"] = _uploaded(
                    cloud, item["path"], datastore, cache_dir, progress
                )
    except CloudError as error:
        # the job was not requested, whether or not the blob was stored
        error.outcome = Outcome.NOT_STARTED
        raise
    return {**document, "inputs": inputs}


def _uploaded(
    cloud: Workspace, path: str, datastore: str, cache_dir: Path, progress: Progress | None
) -> str:
    files = list_input(path).files
    digest, _ = digest_input(files, path, cache_dir)
    container = cloud.container(datastore)
    folder = f"{PREFIX}/inputs/{digest}"
    complete_mark = f"{folder}.complete"
    if not any(name == complete_mark for name, _ in container.blobs(complete_mark)):
        total = sum(file.info.st_size for file in files)
        sent_bytes = 0
        for size in _upload(container, folder, files):
            sent_bytes += size
            if progress is not None:
                progress(sent_bytes, total)
        container.put(complete_mark, b"")
    single = os.path.isfile(path)  # noqa: PTH113
    return f"azureml://datastores/{datastore}/paths/{folder}/{files[0].path if single else ''}"


def _upload(container: BlobContainer, folder: str, files: list[InputFile]) -> Iterator[int]:
    """Upload all files, several at once; yield the size in bytes of each one."""

    def upload_one(file: InputFile) -> int:
        try:
            container.upload(f"{folder}/{file.path}", Path(file.place))
            unchanged = stamp(os.stat(file.place)) == stamp(file.info)  # noqa: PTH116
        except FileNotFoundError:
            unchanged = False
        if not unchanged:
            raise SourceError(
                f"{file.place} changed while it was uploaded",
                hint="wait until it is written, then run again",
            )
        return file.info.st_size

    with ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
        try:
            yield from pool.map(upload_one, files)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
