"""The only module that calls boto3. Translates its errors."""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import botocore
import botocore.session
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import ProgressCallbackInvoker, TransferConfig, create_transfer_manager
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserError
from s3transfer.exceptions import RetriesExceededError
from s3transfer.subscribers import BaseSubscriber

from cloudtrain.errors import CloudError, unreadable
from cloudtrain.providers.aws.errors import NOT_CONNECTED, refuse_foreign_answers, translated
from cloudtrain.providers.progress import Progress
from cloudtrain.providers.shared.downloads import StoredFile, draft_of
from cloudtrain.providers.shared.idempotent_create import Attempt
from cloudtrain.providers.shared.recording import recording
from cloudtrain.providers.shared.transfers import Count, counter
from cloudtrain.source.inputs import SentFile
from cloudtrain.version import __version__

_ATTEMPT: ContextVar[Attempt | None] = ContextVar("attempt", default=None)
"""Attempt to create a job in this thread."""

ONE_REQUEST_BYTES = 8 * 2**20
"""Maximum size for one request; larger objects go in parts (boto3's own threshold)."""

_PART_BYTES = 8 * 2**20
"""Size of a part: S3's checksum of an object depends on it."""

_MAX_PARTS = 10_000
"""Maximum parts of an object ("Amazon S3 multipart upload limits")."""

_CONNECTIONS = 20
"""Maximum connections per service that are kept: ten files at once, and ten parts of a large one."""


ATTEMPTS = 3
"""Attempts per call by default, as boto3 makes in its mode `standard`."""


_TRANSFERS = TransferConfig(preferred_transfer_client="classic")


class _KnownSize(BaseSubscriber):  # type: ignore[misc]
    """Size of a small object, which saves the request for it."""

    def __init__(self, size: int) -> None:
        self._size = size

    def on_queued(self, future: Any, **_: Any) -> None:
        """Tell boto3 the size. A large object is read in parts, which must be of one object."""
        if self._size < _TRANSFERS.multipart_threshold:
            future.meta.provide_transfer_size(self._size)
            future.meta.provide_object_etag("")


class Answer(dict[str, Any]):
    """Object in an answer. A member that it lacks is an error of the answer, not of ours."""

    def __init__(self, members: Mapping[str, Any], where: str) -> None:
        super().__init__((name, _checked(value, where)) for name, value in members.items())
        self._where = where

    def __missing__(self, name: str) -> Any:
        raise unreadable(self._where, f"it lacks {name}")


def _checked(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return Answer(value, where)
    if not isinstance(value, list):
        return value

    return [_checked(item, where) for item in value]


class AwsClient:
    """One region of one account, with the user's credentials. Every method may raise CloudError."""

    def __init__(self, region: str, profile: str = "") -> None:
        self.region = region
        self.profile = profile
        self._session: boto3.session.Session | None = None
        self._clients: dict[str, Any] = {}

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Call an operation of a service, with boto3's retries. May raise CloudError."""
        return self._answer(self._client(service), operation, parameters)

    def create(
        self,
        attempt: Attempt,
        service: str,
        operation: str,
        parameters: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Call an operation that creates a resource, without retries. May raise CloudError.

        Each request on the wire and its answer is reported to the attempt.
        """
        client = self._client(service, attempts=1)
        token = _ATTEMPT.set(attempt)
        try:
            return self._answer(client, operation, dict(parameters))
        except CloudError as error:
            if isinstance(error.__cause__, NOT_CONNECTED):
                attempt.not_sent()
            raise
        finally:
            _ATTEMPT.reset(token)

    @property
    def attempts(self) -> int:
        """Number of boto3's attempts per call, by the user's variable or configuration."""
        try:
            number = int(_setting(self.profile, "max_attempts") or ATTEMPTS)
        except (BotoCoreError, ValueError):
            return ATTEMPTS

        return max(1, number)

    def pages(self, service: str, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Call a paginated operation; yield its pages. Raise CloudError if one fails."""
        with self._calling(operation):
            pages = iter(self._client(service).get_paginator(operation).paginate(**parameters))
        while True:
            with self._calling(operation):
                page = next(pages, None)
            if page is None:
                return
            yield Answer(page, f"{operation} in {self.region}")

    def store(
        self,
        bucket: str,
        key: str,
        path: Path,
        kms_key: str | None,
        progress: Progress | None,
    ) -> bool:
        """Store a file with a content-derived key; return True if it was sent.

        Its name alone proves nothing of its content. A small file is sent again, in one call. A large one
        is sent, in parts, unless S3's own checksum equals the file's.
        """
        size = path.stat().st_size
        if size <= ONE_REQUEST_BYTES:
            self.put(bucket, key, path.read_bytes(), kms_key)
            return True
        if self._holds(bucket, key, path):
            return False
        with self._calling("put_object", f"s3://{bucket}/{key}"):
            self._client("s3").upload_file(
                str(path),
                bucket,
                key,
                ExtraArgs={"ChecksumAlgorithm": "SHA256", **_encryption(kms_key)},
                Callback=counter(size, progress),
                Config=TransferConfig(multipart_chunksize=_PART_BYTES),
            )

        return True

    def put(
        self, bucket: str, key: str, content: bytes, kms_key: str | None, **options: str
    ) -> None:
        """Store an object in one call. `options`: further parameters of it."""
        with self._calling("put_object", f"s3://{bucket}/{key}"):
            self._client("s3").put_object(
                Bucket=bucket,
                Key=key,
                Body=content,
                **_encryption(kms_key),
                **options,
            )

    def send(
        self, bucket: str, key: str, file: SentFile, kms_key: str | None, **options: str
    ) -> None:
        """Store a file, a large one in parts. `options`: further parameters of the calls."""
        if file.size <= ONE_REQUEST_BYTES:
            self.put(bucket, key, file.read(), kms_key, **options)
            return

        part_bytes = max(_PART_BYTES, -(-file.size // _MAX_PARTS))
        with self._calling("put_object", f"s3://{bucket}/{key}"):
            self._client("s3").upload_fileobj(
                file,
                bucket,
                key,
                ExtraArgs={**_encryption(kms_key), **options},
                Config=TransferConfig(multipart_chunksize=part_bytes),
            )

    def _holds(self, bucket: str, key: str, path: Path) -> bool:
        """Return whether an object is a file that was sent in parts. Raise CloudError without answer.

        S3 computes the checksum of its copy; who stores an object cannot choose it.
        """
        try:
            with self._calling("head_object", f"s3://{bucket}/{key}"):
                head = self._client("s3").head_object(
                    Bucket=bucket, Key=key, ChecksumMode="ENABLED"
                )
        except CloudError as failure:
            if failure.code in ("404", "NoSuchKey", "NotFound") or failure.is_denied:
                return False
            raise

        checksum = str(head.get("ChecksumSHA256", "")).partition("-")[0]
        return head.get("ContentLength") == path.stat().st_size and checksum == _checksum(path)

    def objects(self, bucket: str, prefix: str, **options: str) -> Iterator[StoredFile]:
        """Yield all objects with a prefix."""
        for page in self.pages("s3", "list_objects_v2", Bucket=bucket, Prefix=prefix, **options):
            for item in page.get("Contents", []):
                yield StoredFile(item["Key"], item["Size"], item["LastModified"].timestamp())

    def download(self, bucket: str, key: str, size: int, path: Path, count: Count) -> None:
        """Download one object of a size in bytes; the file appears only when it is complete."""
        subscribers = [ProgressCallbackInvoker(count), _KnownSize(size)]
        client = self._client("s3")
        with (
            draft_of(path) as draft,
            self._calling("get_object", f"s3://{bucket}/{key}"),
            create_transfer_manager(client, _TRANSFERS) as manager,
        ):
            manager.download(bucket, key, str(draft), subscribers=subscribers).result()

    def training_job(self, name: str) -> Any:
        """Return a job as sagemaker.core's TrainingJob, whose own calls have these credentials."""
        from sagemaker.core.resources import TrainingJob
        from sagemaker.core.utils.utils import SageMakerClient

        with self._calling("describe_training_job"):
            # Its first client of a process serves later calls without a session. Those calls are
            # the user's: they follow the default credentials.
            if boto3.session.Session().region_name:
                SageMakerClient()
            else:
                SageMakerClient(region_name=self.region)

            return TrainingJob.get(name, session=self._own_session(), region=self.region)

    def _own_session(self) -> boto3.session.Session:
        self._session = self._session or new_session(self.region, self.profile)
        return self._session

    def _answer(self, client: Any, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        with self._calling(operation):
            answer: dict[str, Any] = getattr(client, operation)(**parameters)
        return Answer(answer, f"{operation} in {self.region}")

    @contextmanager
    def _calling(self, operation: str, place: str = "") -> Iterator[None]:
        """Translate errors of boto3, also about unreadable answers."""
        try:
            yield
        except (ClientError, BotoCoreError, Boto3Error, ResponseParserError) as error:
            raise translated(error, operation, self.region, place=place) from error
        except RetriesExceededError as error:
            cause = error.last_exception
            raise translated(cause, operation, self.region, place=place) from error

    def _client(self, service: str, attempts: int | None = None) -> Any:
        name = f"{service} {attempts or ''}"
        if name not in self._clients:
            try:
                session = self._own_session()
                retries: Any = {}
                if not _setting(self.profile, "retry_mode"):
                    retries["mode"] = "standard"
                if attempts is not None:
                    retries["total_max_attempts"] = attempts
                config = Config(
                    retries=retries,
                    connect_timeout=10,
                    read_timeout=60,
                    max_pool_connections=_CONNECTIONS,
                    user_agent_extra=f"cloudtrain/{__version__}",
                )
                client = session.client(service, config=config)
                client.meta.events.register("before-send", _sending)
                client.meta.events.register("response-received", _received)
                self._clients[name] = client
            except (BotoCoreError, Boto3Error, ValueError) as error:
                raise translated(error, f"a client for {service}", self.region) from error

        return self._clients[name]


@cache
def aws(region: str, profile: str = "") -> AwsClient:
    """Return the client of a region; one per process, so that credentials are read once.

    `profile`: of the AWS CLI; empty to follow the variables.
    """
    return AwsClient(region, profile)


def _checksum(path: Path) -> str:
    """Return S3's checksum of a file that is sent in parts: of the checksums of the parts."""
    parts = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_PART_BYTES):
            parts.update(hashlib.sha256(part).digest())

    return b64encode(parts.digest()).decode()


def new_session(region: str, profile: str = "") -> boto3.session.Session:
    """Return a session that reads service models once per process: they are most of the cost."""
    core = botocore.session.Session(profile=profile or None)
    loader = _loader(core.get_config_variable("data_path"))
    core.register_component("data_loader", loader)
    events = core.get_component("event_emitter")
    refuse_foreign_answers(events)

    if os.environ.get("CLOUDTRAIN_RECORD"):
        events.register("before-parameter-build", _keep_parameters)
        events.register("response-received", _record)

    session = boto3.session.Session(region_name=region, botocore_session=core)
    # boto3 adds its own folder each time
    loader.search_paths[:] = dict.fromkeys(loader.search_paths)
    return session


def _setting(profile: str, name: str) -> Any:
    """Return a setting of botocore by its variable or the user's configuration; None without one."""
    if value := os.environ.get(f"AWS_{name.upper()}"):
        return value

    return botocore.session.Session(profile=profile or None).get_scoped_config().get(name)


@cache
def _loader(data_path: str | None) -> Loader:
    return create_loader(data_path)


def _sending(**_: Any) -> None:
    """Report to the attempt of this thread, if any, that a request is about to be sent."""
    attempt = _ATTEMPT.get()
    if attempt is not None:
        attempt.sending()


def _received(parsed_response: Mapping[str, Any] | None, **_: Any) -> None:
    """Report an answer to the attempt of this thread, if any."""
    attempt = _ATTEMPT.get()
    if attempt is None or parsed_response is None:
        return

    metadata = parsed_response.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode", 0) or 0)
    code = str(parsed_response.get("Error", {}).get("Code", ""))
    # Without a code in the body botocore puts the status there: that is a page of a proxy.
    if code.isdecimal():
        code = ""
    retry_after = str(metadata.get("HTTPHeaders", {}).get("retry-after", ""))
    attempt.answered(status, code, retry_after)


def _keep_parameters(params: Mapping[str, Any], context: dict[str, Any], **_: Any) -> None:
    context["recorded_parameters"] = dict(params)


def _record(
    event_name: str,
    parsed_response: Mapping[str, Any] | None,
    context: Mapping[str, Any],
    **_: Any,
) -> None:
    """Record an answer for CLOUDTRAIN_RECORD."""
    recorder = recording("aws", Path(botocore.__file__).parent / "data" / "sagemaker")
    if recorder is None or parsed_response is None:
        return

    operation = event_name.rpartition(".")[2]
    value = {name: item for name, item in parsed_response.items() if name != "ResponseMetadata"}

    kind = re.sub(r"(?<!^)([A-Z])", r"_\1", operation).lower()
    if "Error" in value:
        kind = "error"
        status = parsed_response["ResponseMetadata"]["HTTPStatusCode"]
        value = {**value["Error"], "HTTPStatusCode": status, "Operation": operation}

    recorder.observation(kind, context.get("recorded_parameters"), value)


def _encryption(kms_key: str | None) -> dict[str, str]:
    if not kms_key:
        return {}

    return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key}
