"""Shared parts of an imitated account: storage, logs, machines, quotas, and timing."""

from __future__ import annotations

import io
import os
import re
import tarfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from tests.fakes.aws.policies import Statement
from tests.fakes.aws.service_models import check_request, service_model
from tests.fakes.messages import ServiceError


class Storage:
    """S3 as the service itself sees it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def has_bucket(self, uri: str) -> bool:
        """Return whether the bucket of an address exists."""
        try:
            self._client.head_bucket(Bucket=_parts(uri)[0])
        except ClientError:
            return False
        return True

    def about(self, bucket: str, key: str) -> dict[str, Any] | None:
        """Return HeadObject's answer for an object; None if it is missing."""
        try:
            head: dict[str, Any] = self._client.head_object(Bucket=bucket, Key=key)
        except ClientError:
            return None
        return head

    def download(self, uri: str, folder: Path) -> int:
        """Every object whose name begins with the prefix (S3Prefix), below the folder; returns how
        many there were.
        """
        bucket, prefix = _parts(uri)
        count = 0
        for key in self._keys(bucket, prefix):
            count += 1
            path = folder / inside(key, prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._client.get_object(Bucket=bucket, Key=key)["Body"].read())
        return count

    def store(self, content: bytes, uri: str) -> None:
        """One object."""
        bucket, key = _parts(uri)
        self._client.put_object(Bucket=bucket, Key=key, Body=content)

    def remove(self, uri: str) -> None:
        """One object, if it is there."""
        bucket, key = _parts(uri)
        self._client.delete_object(Bucket=bucket, Key=key)

    def _keys(self, bucket: str, prefix: str) -> Iterator[str]:
        for page in self._client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix
        ):
            yield from (
                item["Key"] for item in page.get("Contents", []) if not item["Key"].endswith("/")
            )


class Checkpoints:
    """The checkpoint folders of all nodes on their way to one prefix in S3, whoever of them wrote
    last.

    As strict as "Use checkpoints in Amazon SageMaker AI" in the developer guide allows: S3 is kept
    like the folder, so what is deleted there is deleted in S3; nothing says that a new file is
    stored before an old one goes. Deleting is quick and storing takes its time, so the one is done
    at the first look and the other at the second.
    """

    def __init__(self, storage: Storage, uri: str, folders: Sequence[Path]) -> None:
        self._storage = storage
        self._uri = uri
        self._folders = folders
        self._seen: dict[Path, tuple[int, int]] = {}
        self._found: dict[Path, tuple[int, int]] = {}

    def restore(self) -> None:
        """Download what an earlier job or attempt stored to every node."""
        for folder in self._folders if self._uri else ():
            self._storage.download(self._uri, folder)
        self._seen = dict(self._files())

    def sync(self, *, last: bool = False) -> None:
        """Delete what was deleted, store what has changed. `last`: all of it, the containers are
        over.
        """
        before = self._found
        self._found = dict(self._files())
        for path in self._seen.keys() - self._found.keys():
            del self._seen[path]
            self._storage.remove(f"{self._uri.rstrip('/')}/{self._name(path)}")
        for path, sign in self._found.items():
            if self._seen.get(path) == sign or not (last or before.get(path) == sign):
                continue
            # It may be renamed or deleted while we look: the next look finds what became of it.
            with suppress(FileNotFoundError):
                self._storage.store(
                    path.read_bytes(), f"{self._uri.rstrip('/')}/{self._name(path)}"
                )
                self._seen[path] = sign

    def _files(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        for top in self._folders if self._uri else ():
            # One that is renamed or deleted meanwhile is passed over.
            for folder, _, names in os.walk(top):
                for path in (Path(folder, name) for name in sorted(names)):
                    with suppress(FileNotFoundError):
                        status = path.stat()
                        if path.is_file():
                            yield path, (status.st_mtime_ns, status.st_size)

    def _name(self, path: Path) -> str:
        return next(
            path.relative_to(folder).as_posix()
            for folder in self._folders
            if path.is_relative_to(folder)
        )


def merged(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the content of these folders by name; the first node wins where names clash."""
    files: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            files.setdefault(path.relative_to(folder).as_posix(), path)
    return files


def packed(files: Mapping[str, Path]) -> bytes:
    """Return a .tar.gz of these."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, path in sorted(files.items()):
            tar.add(path, name, recursive=False)
    return content.getvalue()


def inside(key: str, prefix: str) -> str:
    """Return an object's path in the folder that its prefix becomes.

    `data/train` is taken for a folder if a slash follows in the name; otherwise names count from
    the last slash.
    """
    if key.startswith(prefix.rstrip("/") + "/"):
        return key[len(prefix.rstrip("/")) + 1 :]
    return key[prefix.rfind("/") + 1 :]


def _parts(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key


# Sends the lines that containers print to CloudWatch in batches.

GROUP = "/aws/sagemaker/TrainingJobs"
BATCH_SECONDS = 0.05
MAX_EVENTS = 1000
MAX_CHARACTERS = 200_000
"""Limits of one batch, and of one event: well below CloudWatch's limits in bytes."""
CONTROL_CHARACTERS = {9: "#011", 13: "#015", 27: "#033"}
"""Control characters arrive as text, as lines of 2019 to 2025 show."""


class Line(NamedTuple):
    """One line, and when it was printed."""

    stream: str
    milliseconds: int
    text: str


class LogGroup:
    """The log group of all training jobs. Lines arrive in their order.

    As in the cloud nothing waits for them: a job may be over before its last lines are there.
    """

    def __init__(self, client: Any, unexpected_errors: list[str]) -> None:
        self.listeners: list[Callable[[str, str], None]] = []
        """Called with the stream and each line of it, at once: tuning jobs read metrics there."""
        self._client = client
        self._unexpected_errors = unexpected_errors
        self._lines: deque[Line] = deque()
        self._streams: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._ship, name="loopback-logs", daemon=True)
        self._thread.start()

    def write_line(self, stream: str, line: bytes) -> None:
        """Take one line. CloudWatch holds no empty ones."""
        text = line.decode("utf-8", "replace").translate(CONTROL_CHARACTERS)
        for listener in list(self.listeners):
            listener(stream, text)
        moment = int(time.time() * 1000)
        for start in range(0, len(text), MAX_CHARACTERS):
            self._lines.append(Line(stream, moment, text[start : start + MAX_CHARACTERS]))

    def close(self) -> None:
        """Send what is left."""
        self._closing.set()
        self._thread.join()

    def _ship(self) -> None:
        more = True
        while more:
            more = not self._closing.wait(BATCH_SECONDS)
            try:
                self._send()
            except Exception:  # noqa: BLE001  (whatever it is: the other jobs' lines must still arrive)
                self._unexpected_errors.append(traceback.format_exc())

    def _send(self) -> None:
        due = [self._lines.popleft() for _ in range(len(self._lines))]
        due.sort(key=lambda line: line.stream)  # stable: the order within a stream stays
        for stream, lines in groupby(due, key=lambda line: line.stream):
            events: list[dict[str, Any]] = [
                {"timestamp": line.milliseconds, "message": line.text} for line in lines
            ]
            self._begin(stream)
            for start in range(0, len(events), MAX_EVENTS):
                batch = events[start : start + MAX_EVENTS]
                self._client.put_log_events(
                    logGroupName=GROUP, logStreamName=stream, logEvents=batch
                )

    def _begin(self, stream: str) -> None:
        if not self._streams:
            # A stack may have made it.
            with suppress(self._client.exceptions.ResourceAlreadyExistsException):
                self._client.create_log_group(logGroupName=GROUP)
        if stream not in self._streams:
            self._client.create_log_stream(logGroupName=GROUP, logStreamName=stream)
            self._streams.add(stream)


# Shared parts of an imitated account: its region, storage, logs, machines, quotas, and timing.


@dataclass(kw_only=True)
class Account:
    """Tests set some of it while jobs run; it is read each time it matters."""

    region: str
    account: str
    storage: Storage
    logs: LogGroup
    folder: Path
    """The folder of the containers' trees."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the platform adds to every container: credentials, and the address of AWS."""
    phase_seconds: float = 0.02
    """Length of each idle phase of a job."""
    quotas: dict[str, int] = field(default_factory=dict)
    """Instance type -> number that may be used at once; other types are unlimited."""
    training_plans: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Descriptions of training plans, by name; `AvailableInstanceCount` counts if it is there."""
    file_systems: dict[str, Path] = field(default_factory=dict)
    """Id of a file system -> the folder with its content."""
    longest_run: int = 432_000  # seconds
    denied_actions: set[str] = field(default_factory=set)
    """IAM actions that are denied, such as `logs:GetLogEvents`, or all of a service as `logs:*`."""
    foreign_buckets: set[str] = field(default_factory=set)
    """Buckets of other accounts, which let everybody in."""
    caller_policy: Sequence[Statement] | None = None
    """Rights of the caller; None: everything."""
    tags: Callable[[str], Mapping[str, str]] = lambda arn: {}  # noqa: ARG005
    """The tags of a job, by its ARN, as policies see them."""
    tag_delay_seconds: float = 0
    """Age of a job after which policies see its tags."""
    attempted: set[str] = field(default_factory=set)
    """The actions that were held against it."""
    job_policy: Sequence[Statement] | None = None
    """Rights of the role of jobs; None: everything."""
    has_warm_pools: bool = False
    """True if the account has a quota of warm pools.

    A new account's is 0: AWS silently keeps no machine.
    """
    closing: threading.Event = field(default_factory=threading.Event)
    """The whole imitation is being taken down: jobs end by force."""
    unexpected_errors: list[str]
    """Tracebacks of the imitation's own mistakes; a test that leaves one here has found one."""

    def arn(self, name: str) -> str:
        """The address of a training job."""
        return f"arn:aws:sagemaker:{self.region}:{self.account}:training-job/{name}"


# Service Quotas of SageMaker, read-only: what an account has, and what all have.
# After the API reference of Service Quotas (ListServiceQuotas, ListAWSDefaultServiceQuotas) and
# "Amazon SageMaker AI endpoints and quotas" (AWS General Reference): the names of the quotas.

TARGET = "ServiceQuotasV20190624."
DEFAULT = 0
LONGEST_RUN = "Longest run time for a training job"
"""Quota L-33A961FD, in seconds; 5 days by default."""
ACROSS = "Number of instances across training jobs"
"""Quota of an account for all types together."""
USUAL = 20
"""Quotas of other types: AWS's default, and this account's value."""
PAGE = 100
"""MaxResults is 1 to 100 (API reference)."""
_LISTED = re.compile(r"ml\.(m5\.|p|trn|g4|g5)")
"""Types whose quotas are listed: two pages, where AWS has seven."""
NEVER_RAISED = "ml.m5."
"""Types whose quotas are AWS's own defaults here: ListServiceQuotas leaves these out."""


class Quotas:
    """The quotas of one account.

    `Account.quotas` holds the values that a test sets, by instance type.
    """

    def __init__(self, account: Account) -> None:
        self.account = account

    def call(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One call; ServiceError is what it answers instead."""
        known = ("ListServiceQuotas", "ListAWSDefaultServiceQuotas")
        check_request("servicequotas", operation, body, known, "IllegalArgumentException")
        if body["ServiceCode"] != "sagemaker":
            raise ServiceError(
                "NoSuchResourceException", "The request failed because the service does not exist."
            )
        start = int(body.get("NextToken", 0))
        size = int(body.get("MaxResults", PAGE))
        names = [
            name
            for name in _names()
            if operation != "ListServiceQuotas" or not name.startswith(NEVER_RAISED)
        ]
        page: dict[str, Any] = {
            "Quotas": [self._quota(name, operation) for name in names[start : start + size]]
        }
        return page | ({"NextToken": str(start + size)} if start + size < len(names) else {})

    def _quota(self, name: str, operation: str) -> dict[str, Any]:
        kind = name.partition(" ")[0]
        if "warm pool" in name:
            value = USUAL if self.account.has_warm_pools else 0
        elif name == LONGEST_RUN:
            value = self.account.longest_run
        elif name == ACROSS:
            value = self.account.quotas.get(ACROSS, USUAL)
        elif operation == "ListServiceQuotas" or kind.startswith(NEVER_RAISED):
            value = self.account.quotas.get(kind, USUAL)
        else:
            value = DEFAULT
        code = f"L-{sha256(name.encode()).hexdigest()[:8].upper()}"
        if name == LONGEST_RUN:
            code = "L-33A961FD"
        return {
            "ServiceCode": "sagemaker",
            "QuotaCode": code,
            "QuotaName": name,
            "Value": float(value),
        }


@cache
def _names() -> tuple[str, ...]:
    model = service_model("sagemaker")
    usages = ("training job usage", "spot training job usage", "training warm pool usage")
    kinds = filter(_LISTED.match, model.shape_for("TrainingInstanceType").enum)
    of_types = (f"{kind} for {usage}" for kind in kinds for usage in usages)
    return (LONGEST_RUN, ACROSS, *of_types)
