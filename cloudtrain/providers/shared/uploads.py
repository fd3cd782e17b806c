"""Inputs of this machine in a cloud's storage: their place there, their upload, and its cost.

A copy is `inputs/DIGEST/`, known by its content, so that jobs share it. Its manifest is written last,
and a copy without it is not complete.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cloudtrain.errors import Issue, SourceError, warning
from cloudtrain.planning.plan import json_digest
from cloudtrain.planning.target import CloudConfig
from cloudtrain.providers.shared.paths import PREFIX
from cloudtrain.providers.shared.transfers import Count, counter, transfer_all
from cloudtrain.runs.files import make_private_folder, replace_text
from cloudtrain.source.inputs import InputFile, SentFile, digest_input, list_input
from cloudtrain_wire.bounded_files import read_regular_text
from cloudtrain_wire.sizes import format_size

if TYPE_CHECKING:
    from cloudtrain.planning.plan import LocalInput, Plan
    from cloudtrain.providers.progress import Progress
    from cloudtrain.providers.shared.downloads import StoredFile

LARGE_BYTES = 20_000_000_000
"""Minimum size for a plan to name the cloud's own tool, which resumes inside a large file."""


class Storage(Protocol):
    """Storage of a cloud."""

    def blobs(self, prefix: str) -> Iterable[StoredFile]:
        """Yield all objects with a prefix."""
        ...

    def upload(self, name: str, file: SentFile) -> None:
        """Store a file, completely or not at all."""
        ...

    def put(self, name: str, content: bytes) -> None:
        """Store an object."""
        ...


class PastUpload(NamedTuple):
    """The last upload of a folder from this machine."""

    digest: str
    run: str
    time: float
    """A Unix timestamp."""


def upload_uri(plan: Plan, item: LocalInput) -> str:
    """Return the URI of an input's copy; a folder's ends in a slash."""
    storage = plan.target.config_as(CloudConfig).storage
    return f"{storage}/{_folder(item)}/{item.file}"


def upload_issues(plan: Plan) -> Iterator[Issue]:
    """Yield why inputs cannot be uploaded, and a warning about large ones."""
    if plan.is_rehearsal:  # it reads them in place
        return

    terms = plan.target.declaration.uploads
    for name, item in plan.context.uploads.items():
        if item.problem:
            yield Issue(("inputs", name), item.problem)
        elif item.bytes > LARGE_BYTES and terms and past_upload(plan, item) is None:
            provider = plan.target.provider
            place = plan.target.declaration.input_example
            message = f"{format_size(item.bytes)} are uploaded, file by file"
            hint = (
                f"or copy it by `{terms.tool}`, which shows what it would send, then name the copy:"
                f" inputs: {{{name}: {{{provider}: '{place}', local: {item.path}}}}}"
            )
            yield warning(message, hint, path=("inputs", name))


def past_upload(plan: Plan, item: LocalInput) -> PastUpload | None:
    """Return the last upload of an input's folder to this storage, by this machine's record."""
    try:
        fields = json.loads(read_regular_text(_record(plan, item)))
        return PastUpload(str(fields["digest"]), str(fields["run"]), float(fields["time"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def upload_inputs(plan: Plan, storage: Storage, progress: Progress | None) -> None:
    """Upload the inputs of a plan as far as the storage lacks them.

    The storage's own list decides. `progress` is called with bytes. Raise SourceError if a file
    cannot be read or differs from the plan, CloudError if an upload fails; the next call continues.
    """
    cache_dir = Path(plan.context.data_dir) / "cache"
    for item in plan.context.uploads.values():
        listed = time.time_ns()
        files = list_input(item.path).files
        digest, digests = digest_input(files, item.path, cache_dir)
        if digest != item.digest:
            raise SourceError(
                f"the input {item.path} changed after it was planned", hint="run the command again"
            )

        _upload(storage, _folder(item), files, digests, listed, progress)
        _remember(plan, item)


def _upload(
    storage: Storage,
    folder: str,
    files: list[InputFile],
    digests: dict[str, str],
    listed: int,
    progress: Progress | None,
) -> None:
    manifest = f"{folder}.json"
    stored = {file.name: file.size for file in storage.blobs(folder)}
    missing = [file for file in files if stored.get(f"{folder}/{file.path}") != file.info.st_size]
    if not missing and manifest in stored:
        return

    def send(file: InputFile, count: Count) -> None:
        with closing(SentFile(file, digests[file.path], listed, count)) as content:
            storage.upload(f"{folder}/{file.path}", content)

    total = sum(file.info.st_size for file in files)
    before = total - sum(file.info.st_size for file in missing)
    transfer_all(send, missing, counter(total, progress, before))

    rows = [[file.path, file.info.st_size, digests[file.path]] for file in files]
    storage.put(manifest, json.dumps({"files": rows}, separators=(",", ":")).encode())


def _folder(item: LocalInput) -> str:
    return f"{PREFIX}/inputs/{item.digest}"


def _record(plan: Plan, item: LocalInput) -> Path:
    """Return the file that remembers the last upload of a folder to this storage."""
    config = plan.target.config_as(CloudConfig)
    name = json_digest([item.path, config.account, config.storage])[:32]
    return Path(plan.context.data_dir) / "uploads" / f"{name}.json"


def _remember(plan: Plan, item: LocalInput) -> None:
    past = PastUpload(item.digest, plan.run_id, time.time())
    before = past_upload(plan, item)
    if before is not None and before.digest == item.digest:
        return

    path = _record(plan, item)
    with suppress(OSError):  # without it, a plan does not say who uploaded it
        make_private_folder(path.parent)
        replace_text(path, json.dumps({**past._asdict(), "path": item.path}))
