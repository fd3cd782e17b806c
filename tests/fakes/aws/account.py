"""Shared parts of an imitated account: storage, logs, machines, quotas, and timing."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import botocore.session

from cloudtrain.errors import dotted
from cloudtrain.providers.aws.validate import violations
from tests.fakes.aws.policies import Statement
from tests.fakes.aws.storage import Storage
from tests.fakes.messages import ServiceError

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
    denied_actions: set[str] = field(default_factory=set)
    """IAM actions that are denied, such as `logs:GetLogEvents`, or all of a service as `logs:*`."""
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
USUAL = 20
"""Quotas of other types: AWS's default, and this account's value."""
PAGE = 100
"""MaxResults is 1 to 100 (API reference)."""
NEVER_RAISED = "ml.m5."
"""Types whose quotas are AWS's own defaults here: ListServiceQuotas leaves these out."""


class Quotas:
    """The quotas of one account.

    `Account.quotas` holds the values that a test sets, by instance type.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self._model = botocore.session.get_session().get_service_model("service-quotas")

    def call(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One call; ServiceError is what it answers instead."""
        if operation not in ("ListServiceQuotas", "ListAWSDefaultServiceQuotas"):
            raise ServiceError(
                "UnknownOperationException", f"The requested operation {operation} is not known."
            )
        problems = violations(self._model.operation_model(operation).input_shape, dict(body))
        if problems:
            message = "; ".join(
                f"'{dotted(problem.path)}': {problem.message}" for problem in problems
            )
            raise ServiceError("IllegalArgumentException", message)
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
        elif operation == "ListServiceQuotas" or kind.startswith(NEVER_RAISED):
            value = self.account.quotas.get(kind, USUAL)
        else:
            value = DEFAULT
        code = f"L-{sha256(name.encode()).hexdigest()[:8].upper()}"
        return {
            "ServiceCode": "sagemaker",
            "QuotaCode": code,
            "QuotaName": name,
            "Value": float(value),
        }


@cache
def _names() -> tuple[str, ...]:
    model = botocore.session.get_session().get_service_model("sagemaker")
    usages = ("training job usage", "spot training job usage", "training warm pool usage")
    return tuple(
        f"{kind} for {usage}"
        for kind in model.shape_for("TrainingInstanceType").enum
        for usage in usages
    )
