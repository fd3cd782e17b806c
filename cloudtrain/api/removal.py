"""Removal of runs from the data folder, and of unused sources and environments.

A removed run leaves a tombstone, written before one rename moves its folder aside: at any moment a
run is there whole, or gone with its tombstone. The deletion comes last; the next removal
finishes one killed there.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.api.context import submitter
from cloudtrain.api.costs import cost_of, is_billed
from cloudtrain.api.lookup import import_remote_runs
from cloudtrain.api.open_runs import may_start_late
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.providers import get_provider
from cloudtrain.providers.progress import Note
from cloudtrain.runs.files import bytes_of, make_private_folder, storing
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import PLAN, REQUEST, RunFolder
from cloudtrain.runs.in_use import claimed
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state_names import ENDED
from cloudtrain.runs.store import (
    CLEANUP_MARKS,
    HISTORY_MARKS,
    NOTIFY_MARKS,
    SWEEPS,
    USED,
    RunStore,
    submitted_at,
    summaries,
    sweep_ids,
    sweep_of_run,
)
from cloudtrain.runs.summary import summary_of
from cloudtrain.runs.tombstones import bury
from cloudtrain_wire.bounded_files import read_regular_file
from cloudtrain_wire.environments import COMPLETE

if TYPE_CHECKING:
    from cloudtrain.providers.remote_folder import RemoteFolder

DAY = 86_400

REMOVED = ".removed"
"""Folder of things that wait for their deletion."""

_KINDS = {"runs": "run", SWEEPS: "sweep", "sources": "source"}
"""Kind of a thing by its folder."""


@dataclass(frozen=True, slots=True)
class Removable:
    """Run, sweep, source, or all environments."""

    path: Path
    remote: RemoteFolder | None = None
    """Folder of a run in a cloud that goes, too."""
    remote_sizes: Sequence[int] = ()

    @property
    def name(self) -> str:
        """Id of a run or a sweep, or the name of a file."""
        return self.path.name

    @property
    def kind(self) -> str:
        """`run`, `sweep`, `source` or `environments`."""
        return _KINDS.get(self.path.parent.name, "environments")

    @property
    def bytes(self) -> int:
        """Size now."""
        return bytes_of(self.path)


class Removal:
    """Runs and sweeps that go together, held against the others.

    `names`: ids; a sweep goes with its trials, and before them, a run before those it continues.
    """

    def __init__(self, store: RunStore, names: Collection[str]) -> None:
        self._store = store
        self._sweeps = sweep_ids(store.data_dir)
        going = self._sweeps.intersection(names)
        runs = []
        self._plans: dict[str, bytes] = {}
        folders = [store.runs_dir / run for run in store.ids()]
        for folder in (*folders, *(store.data_dir / SWEEPS / sweep for sweep in self._sweeps)):
            if folder.name in names or sweep_of_run(folder.name, going):
                runs.append(folder)
            else:
                for document in (PLAN, REQUEST):  # a run of another machine has its request alone
                    with suppress(OSError):
                        plan = self._plans.get(folder.name, b"")
                        self._plans[folder.name] = plan + read_regular_file(folder / document)

        runs.sort(key=lambda run: (run.name not in going, -submitted_at(RunFolder(run))))
        self.things = [Removable(run) for run in runs]
        self._going = {run.name for run in runs}

    def named_by(self, text: str) -> str:
        """Return a run or sweep that stays and names this text in its plan, or ""."""
        return next((name for name, plan in self._plans.items() if text.encode() in plan), "")

    def why_not(self, thing: Removable) -> str:
        """Return why a thing has to stay; empty if it may go, unless a process uses it."""
        name = thing.name
        if not thing.path.resolve().is_relative_to(self._store.data_dir.resolve()):
            return f"a link leads out of {self._store.data_dir}"
        if thing.kind == "source":
            digest = name.strip(".").partition(".")[0]
            return _used_lately(thing.path.with_name(digest + USED)) or self.named_by(digest)
        if thing.kind == "environments":
            goes_on = (run for run in summaries(self._store) if run["state"] not in ENDED)
            return str(next(goes_on, {"run": ""})["run"])
        if owner := self.named_by(f"runs/{name}/"):
            return f"{owner} continues from it"
        if thing.kind == "sweep":
            return ""

        state = fold(name, RunFolder(thing.path).each_event())
        sweep = sweep_of_run(name, self._sweeps)
        now = time.time()
        unsettled = self._store.marked(CLEANUP_MARKS) | self._store.marked(NOTIFY_MARKS)
        reasons = {
            "its events do not tell whether it runs": not state.created,
            f"it is {state.state}; cloudtrain stop {name}": not state.has_ended,
            "its job may still appear": may_start_late(state, now),
            f"its machines are kept; cloudtrain stop --release {name}": state.kept_until > now,
            f"its end is not settled; cloudtrain status {name}": name in unsettled,
            f"it is a trial of {sweep}; cloudtrain rm {sweep}": sweep not in {"", *self._going},
        }
        return next((reason for reason, holds in reasons.items() if holds), "")


def _used_lately(mark: Path) -> str:
    """Return why a source stays that a submit has used, whose run may not exist yet, or ""."""
    with suppress(OSError):
        if mark.lstat().st_mtime > time.time() - DAY:
            return "a submit has just used it"

    return ""


def _why_not(removal: Removal, thing: Removable) -> str:
    """Return why a thing has to stay; empty if it may go now."""
    if reason := removal.why_not(thing):
        return reason

    with claimed(thing.path) as is_free:
        return "" if is_free else "another process uses it"


def removable(
    store: RunStore, names: Sequence[str], unended_sweeps: Collection[str]
) -> list[Removable]:
    """Return these runs and sweeps, and the trials of the sweeps. Raise UsageError for one in use."""
    removal = Removal(store, names)
    for thing in removal.things:
        reason = _why_not(removal, thing)
        if thing.name in unended_sweeps:
            reason = f"it has not ended; cloudtrain stop {thing.name}"
        if reason:
            raise UsageError(f"{thing.name} is in use: {reason}", hint="nothing was removed")

    return removal.things


def prunable(
    store: RunStore,
    runs: Sequence[Mapping[str, Any]],
    unended_sweeps: Collection[str],
    *,
    older: float,
    keep: int,
) -> list[Removable]:
    """Return what may go: ended runs and sweeps, unused sources and environments.

    `runs`: all runs, as `list_runs` returns them. `older`: seconds since their end; `keep`: the
    newest runs and sweeps of each job that stay. What others use, continue from or search with
    stays, too.
    """
    before = time.time() - older
    going = set(_old(store, runs, before, keep)) - set(unended_sweeps)
    while True:
        removal = Removal(store, going)
        staying = {thing.name for thing in removal.things if _why_not(removal, thing)}
        if not staying:
            break

        going -= {sweep_of_run(name, going) or name for name in staying}

    unneeded = map(Removable, _unneeded(store.data_dir, before))
    return [*removal.things, *(thing for thing in unneeded if not _why_not(removal, thing))]


def with_remote(
    store: RunStore, things: Sequence[Removable], note: Note | None = None
) -> list[Removable]:
    """Return these things, runs with their folders in a cloud.

    Jobs of other machines are looked up first. Raise UsageError for a folder that has to stay; with
    `note`, that gets the reason, and only the folder stays.
    """
    folders = {}
    for thing in things:
        if thing.kind == "run":
            run = RunFolder(thing.path)
            record = RunRecord(run)
            folders[thing] = get_provider(record.provider).remote_folder(run)
            if folders[thing] is not None:
                account = record.account
                import_remote_runs(
                    record.provider, data_dir=str(store.data_dir), everything=True, account=account
                )

    removal = Removal(store, [thing.name for thing in things])
    complete = []
    for thing in things:
        try:
            if folder := folders.get(thing):
                for text in (f"runs/{thing.name}/", f'runs/{thing.name}"', f'"{thing.name}"'):
                    if user := removal.named_by(text):
                        raise UsageError(f"{folder.uri} is in use: {user} refers to it")

                thing = replace(thing, remote=folder, remote_sizes=folder.sizes(submitter()))
        except UsageError as error:
            if note is None:
                raise UsageError(error.message, hint="no run was removed") from None
            note(f"{error.message}; it stays there")

        complete.append(thing)

    return complete


def _old(
    store: RunStore, runs: Sequence[Mapping[str, Any]], before: float, keep: int
) -> Iterator[str]:
    """Yield the ids of single runs and sweeps that ended before a time, except the newest."""
    sweeps = sweep_ids(store.data_dir)
    recent = set()
    newer: dict[str, list[str]] = {}
    for run in runs:  # newest first
        name = sweep_of_run(run["run"], sweeps) or run["run"]
        of_job = newer.setdefault(run["name"], [])
        if name not in of_job:
            of_job.append(name)
        if run["state"] not in ENDED or (run["ended"] or 0) >= before:
            recent.add(name)

    for names in newer.values():
        yield from (name for name in names[keep:] if name not in recent)


def _unneeded(data_dir: Path, before: float) -> Iterator[Path]:
    """Yield sources and environments that were made before a time, links excepted."""
    sources = data_dir / "sources"
    for path in () if sources.is_symlink() else sources.glob("*.*"):
        # A submit may not have written the plan of a new one yet.
        if path.lstat().st_mtime < min(before, time.time() - DAY):
            yield path

    packages = data_dir / "packages"
    complete = (*packages.glob(f"*/{COMPLETE}"), *packages.glob(f"images/*/*/{COMPLETE}"))
    made = [path.stat().st_mtime for path in complete]
    if made and max(made) < before:
        yield packages


def remove(
    store: RunStore, things: Sequence[Removable], note: Note = lambda _: None
) -> list[Removable]:
    """Remove these things and return the removed ones. What is used by now stays.

    `note` gets the number of deleted files kept by a cloud. Raise StorageError if the disk refuses,
    CloudError if a cloud does; what was removed before stays removed.
    """
    removed = []
    with store.unchanged(alone=True):
        removal = Removal(store, [thing.name for thing in things])
        for thing in things:
            if not thing.path.exists() or removal.why_not(thing):
                continue

            with claimed(thing.path) as is_free, storing(thing.path):
                if is_free:
                    _delete_remote(thing, note)
                    _bury(store.data_dir, thing)
                    if sys.platform != "win32":
                        _move_aside(store.data_dir, thing)

            if is_free and sys.platform == "win32":  # which moves no folder with an open file
                _move_aside(store.data_dir, thing)
            if is_free:
                removed.append(thing)

    _delete(store.data_dir / REMOVED)
    return removed


def _delete_remote(thing: Removable, note: Note) -> None:
    """Delete the folder of a run in a cloud. The next removal of the run completes a killed one."""
    if thing.remote is None or not thing.remote_sizes:
        return

    versions = thing.remote.delete()
    if versions != 0:
        note(
            f"{thing.remote.uri}: the account keeps {'perhaps' if versions is None else versions} deleted"
            " files or versions, and bills them, until a rule of the account deletes them"
        )


def _bury(data_dir: Path, thing: Removable) -> None:
    """Keep a line of a run that is removed: its end, its tags and its cost."""
    if thing.kind == "run":
        folder = RunFolder(thing.path)
        summary = summary_of(fold(thing.name, folder.each_event()))
        line = {field: summary[field] for field in ("reason", "ended", "tags")}
        now = time.time()
        line |= {**cost_of(folder, summary, now), "bytes": thing.bytes, "removed": now}
        bury(data_dir, {**line, "remote": thing.remote is not None if is_billed(line) else None})
        (data_dir / HISTORY_MARKS / thing.name).unlink(missing_ok=True)


def _move_aside(data_dir: Path, thing: Removable) -> None:
    with storing(thing.path):
        make_private_folder(data_dir / REMOVED)
        thing.path.rename(data_dir / REMOVED / f"{thing.name}.{os.urandom(4).hex()}")


def _delete(folder: Path) -> None:
    """Delete things moved aside, also by a killed removal. Links are not followed."""
    failed = []
    for path in folder.glob("*"):
        if path.is_dir() and not path.is_symlink():
            _make_writable(path)
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()

        if os.path.lexists(path):
            failed.append(str(path))

    if failed:
        raise StorageError(
            f"{', '.join(failed)}: some files could not be deleted; all others are",
            hint="if they are another user's, such as a container's: sudo rm -r deletes them",
        )


def _make_writable(path: Path) -> None:
    """Let the owner delete what is in this folder and in those below. Links are not followed."""
    if sys.platform == "win32":
        return

    with suppress(OSError):
        path.chmod(0o700)
        for _, folders, _, parent in os.fwalk(path):
            for name in folders:
                is_link = stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode)
                if not is_link:
                    with suppress(OSError):
                        os.chmod(name, 0o700, dir_fd=parent)
