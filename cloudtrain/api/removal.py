"""Removal of runs from the data folder, and of unused sources and environments.

A removed run leaves a tombstone, written before one rename moves its folder aside: at any moment a
run is there whole, or gone with its tombstone. What was moved aside is deleted last; a removal that
was killed there is finished by the next one.
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
from typing import Any

from cloudtrain.api.costs import cost_of
from cloudtrain.api.lookup import may_start_late
from cloudtrain.api.notification import expected
from cloudtrain.api.shared_history import FOLDER
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.runs.files import bytes_of, make_private_folder, storing
from cloudtrain.runs.fold import fold
from cloudtrain.runs.folder import PLAN, RunFolder
from cloudtrain.runs.in_use import claim
from cloudtrain.runs.state import ENDED
from cloudtrain.runs.store import (
    SWEEPS,
    USED,
    RunStore,
    submitted_at,
    summaries,
    summary_of,
    sweep_ids,
    sweep_of_run,
)
from cloudtrain.runs.tombstones import bury
from cloudtrain_wire.bounded_files import read_regular_file
from cloudtrain_wire.environments import COMPLETE

DAY = 86_400

REMOVED = ".removed"
"""Folder beside what is being deleted."""

_KINDS = {"runs": "run", SWEEPS: "sweep", "sources": "source"}
"""Kind of a thing by its folder."""


@dataclass(frozen=True, slots=True)
class Removable:
    """Run, sweep, source, or all environments, with its size."""

    path: Path
    bytes: int = 0

    @property
    def name(self) -> str:
        """Id of a run or a sweep, or the name of a file."""
        return self.path.name

    @property
    def kind(self) -> str:
        """`run`, `sweep`, `source` or `environments`."""
        return _KINDS.get(self.path.parent.name, "environments")


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
        for folder in self._folders():
            if folder.name in names or sweep_of_run(folder.name, going):
                runs.append(folder)
            else:
                with suppress(OSError):
                    self._plans[folder.name] = read_regular_file(folder / PLAN)

        runs.sort(key=lambda run: (run.name not in going, -submitted_at(RunFolder(run))))
        self.things = [Removable(run) for run in runs]
        self._going = {run.name for run in runs}

    def _folders(self) -> Iterator[Path]:
        """Yield the folders of all runs and sweeps."""
        for run in self._store.ids():
            yield self._store.runs_dir / run
        for sweep in self._sweeps:
            yield self._store.data_dir / SWEEPS / sweep

    def _named_by(self, text: str) -> str:
        """Return a run or sweep that stays and names this text in its plan, or ""."""
        return next((name for name, plan in self._plans.items() if text.encode() in plan), "")

    def why_not(self, thing: Removable) -> str:
        """Return why a thing has to stay; empty if it may go."""
        if not thing.path.resolve().is_relative_to(self._store.data_dir.resolve()):
            return f"a link leads out of {self._store.data_dir}"
        if thing.kind == "source":
            digest = thing.name.strip(".").partition(".")[0]
            return _used_lately(thing.path.with_name(digest + USED)) or self._named_by(digest)
        if thing.kind == "environments":
            goes_on = (run for run in summaries(self._store) if run["state"] not in ENDED)
            return str(next(goes_on, {"run": ""})["run"])
        if owner := self._named_by(f"runs/{thing.name}/"):
            return f"{owner} continues from it"
        if thing.kind == "run" and (reason := self._why_run_stays(thing)):
            return reason

        with storing(thing.path):
            lock = claim(thing.path)

        if lock is None:
            return "another process uses it"

        lock.release()
        return ""

    def _why_run_stays(self, thing: Removable) -> str:
        state = fold(thing.name, RunFolder(thing.path).each_event())
        sweep = sweep_of_run(thing.name, self._sweeps)
        now = time.time()
        if not state.created:
            return "its events do not tell whether it runs"
        if not state.has_ended:
            return f"it is {state.state}; cloudtrain stop {thing.name}"
        if may_start_late(state, now):
            return "its job may still appear"
        if state.kept_until > now:
            return f"its machines are kept; cloudtrain stop --release {thing.name}"
        if thing.name in self._store.runs_to_clean_up() | expected(self._store.data_dir):
            return f"its end is not settled; cloudtrain status {thing.name}"
        if sweep and sweep not in self._going:
            return f"it is a trial of {sweep}; cloudtrain rm {sweep}"

        return ""


def removable(
    store: RunStore, names: Sequence[str], unended_sweeps: Collection[str]
) -> list[Removable]:
    """Return these runs and sweeps, and the trials of the sweeps. Raise UsageError for one in use."""
    removal = Removal(store, names)
    for thing in removal.things:
        reason = removal.why_not(thing)
        if thing.name in unended_sweeps:
            reason = f"it has not ended; cloudtrain stop {thing.name}"
        if reason:
            raise UsageError(f"{thing.name} is in use: {reason}", hint="nothing was removed")

    return _measured(removal.things)


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
        staying = {thing.name for thing in removal.things if removal.why_not(thing)}
        if not staying:
            break

        going -= {sweep_of_run(name, going) or name for name in staying}

    unneeded = [Removable(path) for path in _unneeded(store.data_dir, before)]
    unneeded = [thing for thing in unneeded if not removal.why_not(thing)]
    return _measured([*removal.things, *unneeded])


def _old(
    store: RunStore, runs: Sequence[Mapping[str, Any]], before: float, keep: int
) -> Iterator[str]:
    """Yield the ids of single runs and sweeps that ended before a time, except the newest."""
    sweeps = sweep_ids(store.data_dir)
    members: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        members.setdefault(sweep_of_run(run["run"], sweeps) or run["run"], []).append(run)

    newer: dict[str, int] = {}
    for name, parts in members.items():  # newest first
        job = parts[0]["name"]
        newer[job] = newer.get(job, 0) + 1
        have_ended = all(run["state"] in ENDED and (run["ended"] or 0) < before for run in parts)
        if have_ended and newer[job] > keep:
            yield name


def _unneeded(data_dir: Path, before: float) -> Iterator[Path]:
    """Yield sources and environments that were made before a time, links excepted."""
    sources = data_dir / "sources"
    if not sources.is_symlink():
        for path in sources.glob("*.*"):
            # A submit may not have written the plan of a new one yet.
            is_old = path.lstat().st_mtime < min(before, time.time() - DAY)
            if is_old and path.name != REMOVED:
                yield path

    packages = data_dir / "packages"
    complete = (*packages.glob(f"*/{COMPLETE}"), *packages.glob(f"images/*/*/{COMPLETE}"))
    made = [path.stat().st_mtime for path in complete]
    if made and max(made) < before:
        yield packages


def _used_lately(mark: Path) -> str:
    """Return why a source stays that a submit has used, whose run may not exist yet, or ""."""
    with suppress(OSError):
        if mark.lstat().st_mtime > time.time() - DAY:
            return "a submit has just used it"

    return ""


def _measured(things: Sequence[Removable]) -> list[Removable]:
    return [replace(thing, bytes=bytes_of(thing.path)) for thing in things]


def remove(store: RunStore, things: Sequence[Removable]) -> list[Removable]:
    """Remove these things and return the removed ones. What is used by now stays.

    Raise StorageError if the disk refuses; what was removed before stays removed.
    """
    with store.unchanged(alone=True):
        names = [thing.name for thing in things if thing.kind in ("run", "sweep")]
        removal = Removal(store, names)
        removed = [thing for thing in things if not removal.why_not(thing) and _take(store, thing)]

    _delete(store.data_dir)
    return removed


def _take(store: RunStore, thing: Removable) -> bool:
    """Move a thing aside, a run with its tombstone. Return False if it is used, or gone."""
    if not thing.path.exists():
        return False
    if thing.path.is_file():
        return _move_aside(thing.path)

    with storing(thing.path):
        lock = claim(thing.path)

    if lock is None:
        return False

    try:
        if thing.kind == "run":
            bury(store.data_dir, _tombstone(thing))
            (store.data_dir / FOLDER / thing.name).unlink(missing_ok=True)

        if sys.platform != "win32":  # which moves no folder with an open file
            return _move_aside(thing.path)
    finally:
        lock.release()

    return _move_aside(thing.path)


def _tombstone(thing: Removable) -> dict[str, Any]:
    """Return what is kept of a run: its end, its tags and its cost."""
    folder = RunFolder(thing.path)
    summary = summary_of(fold(thing.name, folder.each_event()))
    fields = {field: summary[field] for field in ("reason", "ended", "tags")}
    now = time.time()
    return {**fields, **cost_of(folder, summary, now), "bytes": thing.bytes, "removed": now}


def _move_aside(path: Path) -> bool:
    target = path.parent / REMOVED / f"{path.name}.{os.urandom(4).hex()}"
    with storing(path):
        make_private_folder(target.parent)
        path.rename(target)

    return True


def _delete(data_dir: Path) -> None:
    """Delete what was moved aside, by a removal that was killed, too. Links are not followed."""
    failed = []
    for parent in (data_dir, *(data_dir / name for name in _KINDS)):
        folder = parent / REMOVED
        if not folder.is_dir() or not folder.resolve().is_relative_to(data_dir.resolve()):
            continue

        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
                if path.exists():
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
