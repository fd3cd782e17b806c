"""Download a job's model, output and checkpoints from S3; extract untrusted archives."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, UsageError
from cloudtrain.extras import importing
from cloudtrain.planning.sagemaker import ROOT, result_uris
from cloudtrain.providers.aws.config import client_of_run, config_of
from cloudtrain.providers.aws.queue import name_of
from cloudtrain.providers.aws.request import JOB, JOB_FILE, channel_uri, published_uri, uri_parts
from cloudtrain.providers.aws.submit import Bucket, own_tag_values, request_of, require_same_account
from cloudtrain.providers.remote_folder import RemoteFolder
from cloudtrain.providers.shared.downloads import download_all
from cloudtrain.providers.shared.log_attempt import backfill
from cloudtrain.providers.shared.paths import as_folder, run_folder
from cloudtrain.providers.shared.transfers import counter
from cloudtrain.runs.files import storing
from cloudtrain.runs.logs import EVENT_MARK, LogPart, Observation, Positions
from cloudtrain.source.extract import extract

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.progress import Note, Progress
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState

_ROOTS = {"model": f"{ROOT}/model", "output": f"{ROOT}/output/data"}
"""Folder in the container of each archive; absolute links below it are kept."""

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
_CONTROL = r"#(011|015|033(?=\[))"
"""SageMaker's spelling of control characters in CloudWatch (lines observed 2019 to 2025)."""
MAX_PAGES = 50
"""Maximum pages per stream and call, of up to 1 MB each; the rest follows at the next call."""


def artifact_uris(body: dict[str, Any], attempts: Sequence[str] | None = None) -> dict[str, str]:
    """Return the S3 URIs of a job's model, output and checkpoints, by its request.

    `attempts`: the training jobs of a run in a queue, whose last one leaves model and output.
    """
    uris: dict[str, str] = {}
    if attempts is None:
        uris.update(result_uris(body))
    elif attempts:
        uris.update(result_uris({**body, "TrainingJobName": name_of(attempts[-1])}))

    keep = body.get("CheckpointConfig", {}).get("S3Uri")
    if keep:
        uris["checkpoints"] = keep

    return uris


def trial_request(request: dict[str, Any]) -> dict[str, Any]:
    """Return a trial's request with its own checkpoint folder, as the launcher names it."""
    shared = request.get("CheckpointConfig")
    if not shared:
        return request
    trial_uri = f"{as_folder(shared['S3Uri'])}{request['TrainingJobName']}/"
    return {**request, "CheckpointConfig": {**shared, "S3Uri": trial_uri}}


def publish(run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG001
    """Put an object below the run's own prefix, encrypted as the rest of the run is."""
    output = request_of(run)["OutputDataConfig"]
    bucket, key = uri_parts(published_uri(output["S3OutputPath"], run.run_id))
    client_of_run(run).put(bucket, f"{key}/{name}", text.encode(), output.get("KmsKeyId"))


def artifacts(run: RunFolder, state: RunState) -> dict[str, str]:
    """Return S3 URIs; empty for a job that was never started."""
    if state.ref is None:
        return {}

    return artifact_uris(request_of(run), state.attempts if config_of(run).queue else None)


def native(run: RunFolder, state: RunState) -> Any:
    """Return sagemaker.core's TrainingJob, of a run in a queue the last one.

    Raise CloudError for credentials of another account, UsageError if the queue has started none.
    """
    name = run.run_id
    if config_of(run).queue:
        if not state.attempts:
            message = f"{name} has no training job yet: the queue has started none"
            raise UsageError(message, hint=f"cloudtrain status {name}")
        name = name_of(state.attempts[-1])

    cloud = client_of_run(run)
    require_same_account(cloud, request_of(run)["RoleArn"], run.run_id)
    with importing("sagemaker", "Run.native() needs sagemaker-core"):
        return cloud.training_job(name)


def remote_folder(run: RunFolder) -> RemoteFolder:
    """Return the run's prefix in the bucket. Its job document is the marker."""
    body = request_of(run)
    bucket, job = uri_parts(channel_uri(body, JOB))
    config = replace(config_of(run), bucket=bucket, role=body["RoleArn"])
    folder = run_folder(run.run_id)
    owner = own_tag_values(body["Tags"]).get("owner", "")
    storage = Bucket(client_of_run(run), config)
    return RemoteFolder(storage, f"{config.storage}/{folder}", folder, owner, job + JOB_FILE)


def checkpoints(run: RunFolder, state: RunState) -> str:
    """Return the S3 prefix of the checkpoints; empty without any object below it."""
    uri = artifacts(run, state).get("checkpoints", "")
    if not uri or not _has_objects(client_of_run(run), uri):
        return ""

    return uri


def _has_objects(cloud: AwsClient, uri: str) -> bool:
    bucket, prefix = uri_parts(uri)
    return next(cloud.objects(bucket, prefix), None) is not None


def fetch(
    run: RunFolder,
    state: RunState,
    names: Sequence[str],
    folder: Path,
    progress: Progress | None,
    note: Note,
) -> list[str]:
    """Download these into `folder/<name>`; return the existing names.

    `note`: see `Provider.fetch`.
    """
    cloud = client_of_run(run)
    uris = artifacts(run, state)

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
        return [name for name, uri in uris.items() if _has_objects(cloud, uri)]
    except CloudError:
        return None


def download_folder(cloud: AwsClient, uri: str, folder: Path, progress: Progress | None) -> bool:
    """Download all objects below a prefix, or with exactly that name; False without any."""
    bucket, prefix = uri_parts(uri)
    files = [file for file in cloud.objects(bucket, prefix) if not file.name.endswith("/")]
    return bool(download_all(files, prefix, folder, partial(cloud.download, bucket), progress))


def _fetch_archive(
    cloud: AwsClient,
    uri: str,
    folder: Path,
    progress: Progress | None,
    note: Note,
) -> bool:
    bucket, key = uri_parts(uri)
    size = _size_of(cloud, bucket, key)
    if size is None:
        return False
    # Beside the folder: a model may be larger than what fits into /tmp.
    with storing(folder), TemporaryDirectory(dir=folder.parent, prefix=".archive-") as scratch:
        archive = Path(scratch) / "archive.tar.gz"
        cloud.download(bucket, key, size, archive, counter(size, progress))
        rmtree(folder, ignore_errors=True)  # of a download that was cut short
        return extract(archive, folder, [_ROOTS[folder.name]], note, uri)


def _size_of(cloud: AwsClient, bucket: str, key: str) -> int | None:
    """Return the size of an object in bytes; None if there is none."""
    for file in cloud.objects(bucket, key):
        if file.name == key:
            return file.size

    return None


def backfill_logs(run: RunFolder, state: RunState) -> Iterator[Observation]:
    """Yield all log lines of an ended run that another machine started."""
    names = [run.run_id]
    if config_of(run).queue:
        names = [name_of(arn) for arn in state.attempts]

    return backfill(partial(lines_of_attempts, client_of_run(run), names, state.nodes), state)


def lines_of_attempts(
    cloud: AwsClient, jobs: Iterable[str], nodes: int, positions: Positions
) -> Generator[LogPart, None, bool]:
    """Yield new lines of training jobs, one after the other; return True if all were read."""
    complete = True
    for job in jobs:
        complete &= yield from new_lines(cloud, job, nodes, positions)

    return complete


def new_lines(
    cloud: AwsClient,
    job: str,
    nodes: int,
    positions: Positions,
) -> Generator[LogPart, None, bool]:
    """Yield new lines of all nodes; return True if all of them were read."""
    hosts = sorted(f"algo-{number}" for number in range(1, nodes + 1))
    complete = True
    for name in _stream_names(cloud, job):
        host = re.match(r"(algo-\d+)-\d+$", name.rpartition("/")[2])
        if host is not None and host[1] in hosts:
            complete &= yield from _of_stream(
                cloud,
                name,
                hosts.index(host[1]),
                positions.get(name, {}),
            )

    return complete


def _of_stream(
    cloud: AwsClient,
    name: str,
    node: int,
    position: Mapping[str, Any],
) -> Generator[LogPart, None, bool]:
    # The token to continue with, the time of the last line (milliseconds), and the number of lines
    # at that time.
    place = {"token": None, "time": 0, "count": 0, **position}
    for _ in range(MAX_PAGES):
        answer = _page(cloud, name, place)
        lines = _unseen(answer["events"], place)
        token = answer.get("nextForwardToken")
        at_end = token == place["token"]  # an empty page alone does not end the stream
        place["token"] = token
        if lines:
            yield LogPart(
                node=node,
                lines=lines,
                stream=name,
                position=dict(place),
            )
        if at_end:
            return True

    return False


def _page(cloud: AwsClient, name: str, place: dict[str, Any]) -> dict[str, Any]:
    question = {"logGroupName": LOG_GROUP, "logStreamName": name, "startFromHead": True}
    if place["token"]:
        try:
            return cloud.call("logs", "get_log_events", **question, nextToken=place["token"])
        except CloudError as error:
            if error.code != "InvalidParameterException":
                raise
            place["token"] = None  # a token lives 24 hours; the time of the last line lives longer
    if place["time"]:
        question["startTime"] = place["time"]
        place["skip"] = place["count"]

    return cloud.call("logs", "get_log_events", **question)


def _unseen(events: list[Mapping[str, Any]], place: dict[str, Any]) -> list[tuple[float, bytes]]:
    """Return the lines of a page, without those read before a token was lost."""
    skip = 0
    if events:
        skip = place.pop("skip", 0)

    lines = []
    for event in events:
        if skip and event["timestamp"] == place["time"]:
            skip -= 1
            continue
        skip = 0
        if event["timestamp"] == place["time"]:
            place["count"] += 1
        else:
            place["count"] = 1

        place["time"] = event["timestamp"]
        message = with_control_characters(event["message"].rstrip("\n"))
        text = message.encode("utf-8", "backslashreplace")
        lines += [(event["timestamp"] / 1000, part) for part in text.split(b"\n")]

    return lines


def with_control_characters(line: str) -> str:
    """Return a line with its tabs, carriage returns and escapes, which arrive as text.

    Events stay unchanged: their JSON has none, and a value may contain such a text.
    """
    if EVENT_MARK.decode() in line:
        return line
    return re.sub(_CONTROL, lambda match: chr(int(match[1], 8)), line)


def _stream_names(cloud: AwsClient, job: str) -> list[str]:
    """Return the streams of all nodes, `<job>/algo-N-<start>`; empty before the first line.

    A restart begins new streams.
    """
    question = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": f"{job}/"}
    names: list[str] = []
    try:
        for page in cloud.pages("logs", "describe_log_streams", **question):
            names += [stream["logStreamName"] for stream in page.get("logStreams", [])]
    except CloudError as error:
        if error.code == "ResourceNotFoundException":
            return []
        raise

    return sorted(names, key=_age)


def _age(name: str) -> tuple[int, str]:
    start = name.rpartition("-")[2]
    if not start.isdigit():
        return 0, name

    return int(start), name
