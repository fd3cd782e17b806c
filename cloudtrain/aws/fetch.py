"""Bringing what a job left from S3: model, output and checkpoints, extracted as if the archives were anybody's."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cloudtrain.aws.request import uri_parts
from cloudtrain.errors import StorageError
from cloudtrain.provider import Progress
from cloudtrain.remote.names import inside
from cloudtrain.runs.store import storing

if TYPE_CHECKING:
    from cloudtrain.clouds.aws import Aws


def places(body: dict[str, Any]) -> dict[str, str]:
    """Where a job's model, output and checkpoints lie, by its request."""
    output = f"{body['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{body['TrainingJobName']}/output"
    keep = body.get("CheckpointConfig", {}).get("S3Uri")
    return {
        "model": f"{output}/model.tar.gz",
        "output": f"{output}/output.tar.gz",
        **({"checkpoints": keep} if keep else {}),
    }


def fetch(
    cloud: Aws, found: dict[str, str], names: Sequence[str], folder: Path, progress: Progress | None
) -> list[str]:
    """Bring these into `folder/<name>`; returns the names of those that there were."""
    brought = []
    for name in names:
        uri = found.get(name, "")
        if uri.endswith(".tar.gz"):
            done = _fetch_archive(cloud, uri, folder / name, progress)
        else:
            done = bool(uri) and bring_folder(cloud, uri, folder / name, progress)
        if done:
            brought.append(name)
    return brought


def bring_folder(cloud: Aws, uri: str, folder: Path, progress: Progress | None) -> bool:
    """Bring all objects below a prefix (or the one of that very name); False if there is none."""
    bucket, prefix = uri_parts(uri)
    objects = [(key, size) for key, size in cloud.objects(bucket, prefix) if not key.endswith("/")]
    total, done = sum(size for _, size in objects), 0
    for key, size in objects:
        path = inside(folder, key[len(prefix) :].lstrip("/") or key.rpartition("/")[2])
        with storing(path):
            cloud.download(bucket, key, path)
        done += size
        if progress is not None:
            progress(done, total)
    return bool(objects)


def _fetch_archive(cloud: Aws, uri: str, folder: Path, progress: Progress | None) -> bool:
    bucket, key = uri_parts(uri)
    size = next((size for name, size in cloud.objects(bucket, key) if name == key), None)
    if size is None:
        return False
    with storing(folder), TemporaryDirectory(prefix="cloudtrain-") as scratch:
        archive = Path(scratch) / "archive.tar.gz"
        cloud.download(bucket, key, archive, progress, size)
        _extract(archive, folder, uri)
    return any(folder.iterdir())


def _extract(archive: Path, folder: Path, uri: str) -> None:
    """The standard library's own safe way: nothing outside, no devices, no strange modes."""
    if not hasattr(tarfile, "data_filter"):
        hint = f"use Python 3.11.4 or newer, or fetch {uri} yourself"
        raise StorageError("this Python cannot extract archives safely", hint=hint)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        hint = "aws s3 cp brings it as it is"
        raise StorageError(f"{uri}: the archive is damaged or hostile: {error}", hint=hint) from None
