"""Early end of a sweep's trial, at the report that falls behind. Standard library only.

The client publishes the values of all trials at each rung; at a rung the launcher reads and
compares them. Without polling or requests, a trial that is behind costs no extra step.

Only the first node counts reports and decides. Its peers must learn of the end even without a
shared folder and while their ranks wait for each other: each connects to the first node over TCP.
Data from peers is not read.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from cloudtrain_launcher.stored_secrets import aws_client, region_of
from cloudtrain_wire.events import Event, Metrics, RungReached, Warned
from cloudtrain_wire.rungs import MetricReports, goes_on

Outcome = Literal["goes_on", "pruned", "paused"]

RUNGS_FILE = "rungs.json"
"""File of the client: {"version": 1, "rungs": [{"at": 1, "values": {"0": 0.91, "3": null}}]}.

`at` is the report; `values` are by the trials' numbers; null: not a number.
"""

READ_TIMEOUT_SECONDS = 10.0
"""Time limit of a mount's answer, during which the job's output waits."""

SCHEME = "s3://"

FILE_NAME = ".cloudtrain-trial.json"

PORT_OFFSET = 1
"""Offset from the rendezvous port, which all nodes know."""

CONNECT_SECONDS = 0.5
"""Delay between a peer's connection attempts, and time limit of each."""

MAX_BYTES = 64


@dataclass(frozen=True)
class Trial:
    """`Job.trial`: the rules of a job's early end as a trial."""

    trial: int
    """Its number, which tells its values from other trials'."""
    metric: str
    goal: str
    """minimize or maximize."""
    rungs: Sequence[int]
    """Numbers of the reports to compare, from 1."""
    eta: int
    until: int | None = None
    """Report before a wait for promotion; None: it only ends at a rung if it is behind."""
    reports: int = 0
    """Number of reports in earlier runs of the trial."""
    position: float | None = None
    """Step of the latest of them, or else the epoch."""

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Trial:
        """Return the trial in a job document; ignore fields of a newer version."""
        known = {item.name for item in fields(Trial)}
        return Trial(**{name: value for name, value in document.items() if name in known})


class TrialWatch:
    """Counter of a trial's reports that decides at its rungs; later reports are ignored.

    `published`: see `NodeContext`. `report` is called with events, and `end` with `pruned`
    or `paused` to end the job here.
    """

    def __init__(
        self,
        trial: Trial,
        published: str,
        report: Callable[[Event], None],
        end: Callable[[str], None],
        memory: TrialMemory,
    ) -> None:
        self._trial = trial
        self._published = published
        self._report = report
        self._end = end
        self._memory = memory
        self._reports: MetricReports | None = (
            None  # until the first one: checkpoints must be restored by then
        )
        self._is_over = False
        self._has_warned = False

    def on_metrics(self, event: Metrics) -> None:
        """Process metrics that the first rank has reported or printed."""
        reports = self._reports or self._begin()
        trial = self._trial
        value = reports.add(event)
        count = reports.count
        if value is None or self._is_over:
            return

        self._memory.write(count, reports.position)
        is_last = trial.until is not None and count >= trial.until
        if not is_last and count not in trial.rungs:
            return

        outcome = self._outcome(count, value, is_last=is_last)
        self._report(RungReached(report=count, value=value, outcome=outcome))
        if outcome != "goes_on":
            self._is_over = True
            self._end(outcome)

    def _begin(self) -> MetricReports:
        before = (self._trial.reports, self._trial.position)
        memory = self._memory.read()
        self._reports = MetricReports(
            self._trial.metric, *(memory if memory[0] > before[0] else before)
        )
        return self._reports

    def _outcome(self, count: int, value: float, *, is_last: bool) -> Outcome:
        trial = self._trial
        if math.isnan(value):
            return "pruned"
        if trial.until is not None:
            return "paused" if is_last else "goes_on"

        if goes_on(value, self._peer_values(count), trial.eta, trial.goal):
            return "goes_on"

        return "pruned"

    def _peer_values(self, count: int) -> list[float]:
        """Return the other trials' published values at this report; empty if unreadable."""
        try:
            text = read_published(self._published, RUNGS_FILE)
            rungs = _values_by_report(text) if text is not None else {}
        except (OSError, RuntimeError) as error:
            self._warn(str(error))
            return []

        values = dict(rungs.get(count, {}))
        values.pop(self._trial.trial, None)

        return list(values.values())

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._report(
                Warned(
                    message=f"the values of other trials cannot be read, so this trial continues: {why}"
                )
            )


def _values_by_report(text: str) -> dict[int, dict[int, float]]:
    """Return report -> trial -> value from the published text. Raise RuntimeError if invalid."""
    try:
        document = json.loads(text)
        if document["version"] != 1:
            raise RuntimeError(
                f"{RUNGS_FILE} is of version {document['version']!r}, this launcher knows version 1"
            )

        rungs = {}
        for rung in document["rungs"]:
            values = {}
            for number, value in rung["values"].items():
                values[int(number)] = math.nan if value is None else float(value)

            rungs[int(rung["at"])] = values

        return rungs
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RuntimeError(
            f"{RUNGS_FILE} is not what it should be: {type(error).__name__}: {error}"
        ) from None


def read_published(place: str, name: str) -> str | None:
    """Return the text of a file at `NodeContext.published`; None if it does not exist yet.

    Raise RuntimeError or OSError if that cannot be determined.
    """
    if not place:
        raise RuntimeError(
            "this platform has no place at which a job reads what its client publishes"
        )

    if place.startswith(SCHEME):
        data = _read_object(place, name)
    else:
        data = _read_file(Path(place, name))

    try:
        if data is None:
            return data

        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RuntimeError(f"{name} is not text: {error}") from None


def _read_file(path: Path) -> bytes | None:
    """Read a file in a separate thread, since a mount may hang."""
    answers: list[bytes | OSError | None] = []

    def read() -> None:
        try:
            os.listdir(path.parent)  # noqa: PTH208  (a mount may cache for long that a file was not there)
            answers.append(path.read_bytes())
        except FileNotFoundError:
            answers.append(None)
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=read, daemon=True, name="published file")
    thread.start()
    thread.join(READ_TIMEOUT_SECONDS)
    if not answers:
        raise RuntimeError(f"{path} could not be read within {READ_TIMEOUT_SECONDS:g} s")
    if isinstance(answers[0], OSError):
        raise answers[0]

    return answers[0]


def _read_object(place: str, name: str) -> bytes | None:
    bucket, _, prefix = place[len(SCHEME) :].partition("/")
    key = f"{prefix.rstrip('/')}/{name}"

    try:
        region = region_of("", os.environ)
        client = aws_client("s3", region, connect_seconds=5, read_seconds=5, attempts=2)
    except Exception as error:  # noqa: BLE001  (a broken installation fails in many ways)
        raise RuntimeError(
            f"{place}/{name} is read with boto3, which does not work here: {error}"
        ) from None

    try:
        data: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    except Exception as error:  # noqa: BLE001  (also of what lies below boto3)
        code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
        if code in ("NoSuchKey", "404"):
            return None

        hint = (
            "the job's role needs s3:GetObject there, and the job a way to S3 (no network"
            " isolation)"
        )
        raise RuntimeError(f"{place}/{name}: {code or error}; {hint}") from None

    return data


class TrialMemory:
    """File of one run among its checkpoints. `folder`: None if the platform never restarts jobs."""

    def __init__(self, folder: Path | None, run_id: str) -> None:
        self._folder = folder
        self._run_id = run_id

    def read(self) -> tuple[int, float | None]:
        """Return the number and position of the reports; 0 and None without this run's file."""
        if self._folder is not None:
            with suppress(OSError, ValueError, LookupError, TypeError):
                document = json.loads((self._folder / FILE_NAME).read_text(encoding="utf-8"))
                if document["run"] == self._run_id:
                    return int(document["reports"]), document["position"]

        return 0, None

    def write(self, reports: int, position: float | None) -> None:
        """Store the count. Ignore errors: only a restarted job needs it."""
        with suppress(OSError):
            if self._folder is None or not any(self._folder.iterdir()):
                return

            text = json.dumps({"run": self._run_id, "reports": reports, "position": position})
            draft = self._folder / f"{FILE_NAME}.{os.getpid()}"
            draft.write_text(text, encoding="utf-8")
            # Whole at once: it may be uploaded at any moment.
            draft.replace(self._folder / FILE_NAME)


class Announcer:
    """The first node's end of the channel. Raise RuntimeError if the port is in use."""

    def __init__(self, address: str, port: int) -> None:
        """`address`: this node's, for its peers."""
        self._lock = threading.Lock()
        self._outcome = b""
        self._peers: list[socket.socket] = []

        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            self._server = socket.create_server((address, port), family=family)
        except OSError as error:
            raise RuntimeError(
                f"port {port} of {address} cannot be used: {error.strerror or error}"
            ) from None

        threading.Thread(target=self._accept, daemon=True, name="peers of the trial").start()

    def announce(self, outcome: str) -> None:
        """Send the outcome to all peers, later ones included."""
        with self._lock:
            self._outcome = f"{outcome}\n".encode()
            for peer in self._peers:
                _send(peer, self._outcome)

    def close(self) -> None:
        """Close the channel: peers that have heard of no end hear of none any more."""
        with self._lock:
            for connection in (self._server, *self._peers):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts

                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:  # no file descriptor is left
                return

            with self._lock:
                self._peers.append(peer)
                if self._outcome:
                    _send(peer, self._outcome)


def listen(address: str, port: int, on_outcome: Callable[[str, float], None]) -> None:
    """Call `on_outcome` on a peer with the first node's word and its time, in a thread."""
    threading.Thread(
        target=_listen, args=(address, port, on_outcome), daemon=True, name="first node"
    ).start()


def _listen(address: str, port: int, on_outcome: Callable[[str, float], None]) -> None:
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
        except OSError:  # the first node does not listen yet
            time.sleep(CONNECT_SECONDS)
            continue

        with connection:
            connection.settimeout(None)
            try:
                data = connection.recv(MAX_BYTES)
            except OSError:
                data = b""

        if data:
            on_outcome(data.decode("ascii", "replace").strip(), time.time())

        return  # the first node ended without a word


def _send(peer: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        peer.sendall(data)
