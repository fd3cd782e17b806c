"""Download a job's model, output and checkpoints from S3; extract untrusted archives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError
from cloudtrain.planning.sagemaker import ROOT
from cloudtrain.providers import Note, Progress
from cloudtrain.providers.aws.request import uri_parts
from cloudtrain.providers.shared.paths import as_folder, safe_join
from cloudtrain.runs.files import storing
from cloudtrain.source.extract import extract

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient


_ROOTS = {"model": f"{ROOT}/model", "output": f"{ROOT}/output/data"}
"""Folder in the container of each archive; absolute links below it are kept."""


def artifact_uris(body: dict[str, Any]) -> dict[str, str]:
    """Return the S3 URIs of a job's model, output and checkpoints, by its request."""
    output = (
        f"{body['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{body['TrainingJobName']}/output"
    )
    keep = body.get("CheckpointConfig", {}).get("S3Uri")
    return {
        "model": f"{output}/model.tar.gz",
        "output": f"{output}/output.tar.gz",
        **({"checkpoints": keep} if keep else {}),
    }


def trial_request(request: dict[str, Any]) -> dict[str, Any]:
    """Return a trial's request with its own checkpoint folder, as the launcher names it."""
    shared = request.get("CheckpointConfig")
    if not shared:
        return request
    trial_uri = f"{as_folder(shared['S3Uri'])}{request['TrainingJobName']}/"
    return {**request, "CheckpointConfig": {**shared, "S3Uri": trial_uri}}


def fetch(
    cloud: AwsClient,
    uris: dict[str, str],
    names: Sequence[str],
    folder: Path,
    progress: Progress | None,
    note: Note,
) -> list[str]:
    """Download these into `folder/<name>`; return the existing names.

    `note`: see `Provider.fetch`.
    """
    fetched = []
    for name in names:
        uri = uris.get(name, "")
        if uri.endswith(".tar.gz"):
            is_fetched = _fetch_archive(cloud, uri, folder / name, progress, note)
        else:
            is_fetched = bool(uri) and download_folder(cloud, uri, folder / name, progress)
        if is_fetched:
            fetched.append(name)
    return fetched


def existing_artifacts(cloud: AwsClient, uris: Mapping[str, str]) -> list[str] | None:
    """Return the names of existing artifacts; None if S3 refuses to list them."""
    try:
        return [
            name for name, uri in uris.items() if any(True for _ in cloud.objects(*uri_parts(uri)))
        ]
    except CloudError:
        return None


def download_folder(cloud: AwsClient, uri: str, folder: Path, progress: Progress | None) -> bool:
    """Download all objects below a prefix, or with exactly that name; False without any."""
    bucket, prefix = uri_parts(uri)
    objects = [(key, size) for key, size in cloud.objects(bucket, prefix) if not key.endswith("/")]
    total = sum(size for _, size in objects)
    loaded_bytes = 0
    for key, size in objects:
        path = safe_join(folder, key[len(prefix) :].lstrip("/") or key.rpartition("/")[2])
        with storing(path):
            cloud.download(bucket, key, path)
        loaded_bytes += size
        if progress is not None:
            progress(loaded_bytes, total)
    return bool(objects)


def _fetch_archive(
    cloud: AwsClient, uri: str, folder: Path, progress: Progress | None, note: Note
) -> bool:
    bucket, key = uri_parts(uri)
    size = next((size for name, size in cloud.objects(bucket, key) if name == key), None)
    if size is None:
        return False
    # Beside the folder: a model may be larger than what fits into /tmp.
    with storing(folder), TemporaryDirectory(dir=folder.parent, prefix=".archive-") as scratch:
        archive = Path(scratch) / "archive.tar.gz"
        cloud.download(bucket, key, archive, progress, size)
        return extract(archive, folder, [_ROOTS[folder.name]], note, uri)
