"""Events of a sweep, and its files.

`sweep.json` and `spec.yaml` are fixed; `journal.jsonl` grows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from cloudtrain.errors import StorageError, UsageError
from cloudtrain.runs.files import (
    append_lines,
    as_text,
    new_folder,
    read_lines,
    storing,
    strict_json,
)
from cloudtrain.runs.store import SWEEPS
from cloudtrain.spec.search_space import Scalar
from cloudtrain.sweeps.definition import Definition, read_checked
from cloudtrain_wire.bounded_files import open_regular_file, read_regular_file, read_regular_text
from cloudtrain_wire.event_record import Timestamp
from cloudtrain_wire.file_locks import acquire, is_locked
from cloudtrain_wire.process_identity import ProcessIdentity

SWEEP = "sweep.json"
JOURNAL = "journal.jsonl"
DRIVER_LOCK = "driver.lock"
RAY_DASHBOARD = "ray-dashboard"
"""File with the address of Ray's dashboard, if a cluster was started for the sweep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepEvent:
    """Event of a sweep."""

    TYPE: ClassVar[str] = ""
    time: Timestamp

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON with the `type`."""
        return {"type": self.TYPE, **asdict(self)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggested(SweepEvent):
    """Suggestion of a trial: it has values, and no run yet."""

    TYPE: ClassVar[str] = "suggested"
    trial: int
    """Number from 0, in the order of suggestion."""
    parameters: Mapping[str, Scalar]


@dataclass(frozen=True, kw_only=True, slots=True)
class Launching(SweepEvent):
    """Announcement of a run, which may exist from now on under this id."""

    TYPE: ClassVar[str] = "launching"
    trial: int
    run: str
    until: int | None = None
    """Report that pauses the run for its promotion; None: it trains to its end."""
    resumes: str = ""
    """Run whose checkpoints it continues from; empty for a new start."""
    cap_usd: float | None = None
    """Maximum cost of this run; None without costs."""
    cap_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported(SweepEvent):
    """Report of the metric by a trial."""

    TYPE: ClassVar[str] = "reported"
    trial: int
    report: int
    """Number of this report of the trial, from 1, over all of its runs."""
    value: float | None
    """None if it is not a finite number."""
    position: float | None = None
    """Training step, or else the epoch; None if the program reported neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded(SweepEvent):
    """End of a run of a trial."""

    TYPE: ClassVar[str] = "run_ended"
    trial: int
    run: str
    outcome: Literal[
        "completed", "pruned", "paused", "failed", "too_large", "interrupted", "stopped", "refused"
    ]
    """Outcome of the run.

     completed: it trained to its end; pruned: it was behind at a rung; paused: it waits at its rung
    for promotion; too_large: its batch did not fit, in searches of earlier versions; interrupted: the
    platform took its machine away; stopped: on request; refused: it was never started.
    """
    reason: str = ""
    cause: str = ""
    """Exception of the program, such as ModuleNotFoundError; empty if unknown."""
    usd: float | None = None
    """Cost; None if unknown: then its cap counts."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Extended(SweepEvent):
    """Extension of the sweep by more trials."""

    TYPE: ClassVar[str] = "extended"
    trials: int
    """Number of all trials, earlier ones included."""
    parallel: int | None = None
    """New number of trials at once; None: unchanged."""
    budget_usd: float | None = None
    """New budget of all trials in US dollars; None: unchanged."""
    budget_seconds: float | None = None
    """New budget of all trials in seconds; None: unchanged."""
    resumes: bool = False
    """True if trials that a stop interrupted continue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRequested(SweepEvent):
    """Request to stop: running trials are stopped, and no trial is started."""

    TYPE: ClassVar[str] = "stop_requested"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepEnded(SweepEvent):
    """End of the sweep."""

    TYPE: ClassVar[str] = "ended"
    state: Literal["succeeded", "failed", "stopped"]
    reason: str = ""


EVENT_TYPES: Mapping[str, type[SweepEvent]] = {
    kind.TYPE: kind
    for kind in (Suggested, Launching, Reported, RunEnded, Extended, StopRequested, SweepEnded)
}


def parse(line: bytes) -> SweepEvent | None:
    """Return the event of a journal line, or None if the line is invalid."""
    try:
        document = json.loads(line)
        return read_checked(EVENT_TYPES[document["type"]], document)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class SweepFolder:
    """One sweep on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep_id = path.name

    @staticmethod
    def create(data_dir: Path, definition: Definition, documents: Mapping[str, str]) -> SweepFolder:
        """Create the folder of a sweep, complete or not at all.

        `documents`: `spec.yaml` and `plan.json` of the job without values of a trial, by name.
        Raise RunExists if the id is taken, StorageError if writing fails.
        """
        folder = SweepFolder(data_dir / SWEEPS / definition.sweep_id)
        with new_folder(folder.path, {SWEEP: as_text(definition.to_json()), **documents}, "sweep"):
            pass
        return folder

    def definition(self) -> Definition:
        """Return the definition. Raise StorageError if it cannot be read."""
        try:
            return Definition.from_json(json.loads(read_regular_file(self.path / SWEEP)))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._damaged(f"{SWEEP} cannot be read: {error}") from None

    def append(self, *events: SweepEvent) -> None:
        """Append events and flush them to the disk. Raise StorageError if that fails."""
        lines = "".join(
            strict_json(event.to_json(), separators=(",", ":")) + "\n" for event in events
        )
        append_lines(self.path / JOURNAL, lines, durable=True)

    def events_from(self, offset: int = 0) -> Iterator[tuple[SweepEvent | None, int]]:
        """Yield events from a byte offset, each with the offset after it.

        An invalid line gives None. Raise StorageError if the journal cannot be read.
        """
        try:
            with open_regular_file(self.path / JOURNAL) as file:
                for line, behind in read_lines(file, offset):
                    yield parse(line) if line else None, behind
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._damaged(f"{JOURNAL} cannot be read: {error.strerror or error}") from None

    def is_driven(self) -> bool:
        """Return True if a process drives the sweep."""
        return bool(is_locked(self.path / DRIVER_LOCK))

    def last_driver(self) -> int:
        """Return the process id of the last driver; 0 without a driver on this machine."""
        try:
            return int(json.loads(read_regular_text(self.path / DRIVER_LOCK))["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Hold the lock of the driver of the sweep; the kernel releases it if the process dies.

        Raise UsageError if another process holds it.
        """
        with storing(self.path):
            lock = acquire(self.path / DRIVER_LOCK, wait=False)
        if lock is None:
            hint = f"cloudtrain attach {self.sweep_id} watches it"
            raise UsageError(
                f"sweep {self.sweep_id} is driven by another process already", hint=hint
            )
        try:
            with storing(self.path):
                os.ftruncate(lock.file, 0)
                os.write(lock.file, ProcessIdentity.own_text().encode())
            yield
        finally:
            lock.release()

    def _damaged(self, problem: str) -> StorageError:
        return StorageError(
            f"sweep {self.sweep_id}: {problem}",
            hint="its folder was changed by hand, or its disk failed",
        )
