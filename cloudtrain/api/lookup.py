"""Which run is meant, and which runs there are: those of this machine, and those that others started in a cloud."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudtrain.api.run import Run
from cloudtrain.declaration import declaration_of
from cloudtrain.errors import CloudError, CloudtrainError, RunExists, RunNotFound, StorageError, UsageError
from cloudtrain.providers import DiscoveredRun, KnownRuns, get_provider
from cloudtrain.runs.events import Phase
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.index import DAMAGED, summaries
from cloudtrain.runs.observation import Observation
from cloudtrain.runs.state import ENDED
from cloudtrain.runs.store import RunStore
from cloudtrain.settings import load_settings

_SYNCED_UNTIL_FILE = "asked.json"


def find_run(name: str = "last", *, data_dir: str | None = None, provider: str | None = None) -> Run:
    """The run of that id, of that unique beginning, or the last one. RunNotFound otherwise.

    Beginnings and `last` mean runs that this machine has started; any other run is meant by its whole id. An id that
    this machine does not know is looked for at `provider` (by default that of the settings), which knows the jobs
    that other machines have started.
    """
    store = _store(data_dir)
    try:
        return Run(store.open(name))
    except RunNotFound as unknown:
        try:
            found = import_remote_runs(provider, run_id=name, data_dir=data_dir)
        except CloudError as error:
            raise CloudError(f"{unknown.message}, and {error.message}", hint=error.hint, code=error.code) from error
        if not found:
            raise
        return Run(store.open(name))


def import_remote_runs(
    provider: str | None, *, run_id: str | None = None, data_dir: str | None = None, everything: bool = False
) -> list[str]:
    """Take up what is new at a provider, or the job of that id; returns the runs that are new here.

    Jobs that other machines have started get a run folder; of those known already, how they stand now is written
    down. `everything`: all jobs are asked for again, also those that have not changed since the last time.
    """
    settings = load_settings(Path.cwd(), {"provider": provider, "data_dir": data_dir})
    store = _store(data_dir)
    if run_id == "last" or run_id in store.ids():
        return []
    name = settings["provider"]
    states = {} if run_id else {line["run"]: line["state"] for line in summaries(store) if line["provider"] == name}
    known = KnownRuns(states=states, synced_until={} if run_id or everything else _read_synced_until(store))
    new = []
    for job in get_provider(name).discover_runs(settings, run_id, known):
        if (store.runs_dir / job.run_id).is_dir():
            _update_known_run(RunFolder(store.runs_dir / job.run_id), job)
        else:
            new += _create_run_folder(store, job)
    if not run_id:
        _write_synced_until(store, known.synced_until)
    return new


def _create_run_folder(store: RunStore, job: DiscoveredRun) -> list[str]:
    try:
        folder = store.create(job.run_id, job.documents(), job.submitting)
    except RunExists:  # by another process, in this moment
        return []
    History(folder).record(Observation(events=[job.submitted, *job.updates]))
    created = job.submitting.time
    os.utime(folder.path / "plan.json", (created, created))  # the list and `last` go by it
    return [job.run_id]


def _update_known_run(folder: RunFolder, job: DiscoveredRun) -> None:
    """What a list says of a run that is known here: of one of this machine it is a reason to look at it."""
    run = Run(folder)
    state = run.cached_status()
    if state.has_ended or not job.updates:
        return
    if not state.adopted:
        with suppress(CloudError):  # as last seen, then
            run.status()
        return
    updates = [event for event in job.updates if not (isinstance(event, Phase) and event.phase == state.phase)]
    run.take([Observation(events=updates)])


def _read_synced_until(store: RunStore) -> dict[str, float]:
    """Up to when each account was asked. Without the file all is asked for again."""
    try:
        kept = json.loads((store.data_dir / _SYNCED_UNTIL_FILE).read_text(encoding="utf-8"))
        return {str(place): float(when) for place, when in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_synced_until(store: RunStore, until: dict[str, float]) -> None:
    draft = store.data_dir / f".{_SYNCED_UNTIL_FILE}.{os.urandom(4).hex()}"
    with suppress(OSError):  # then all is asked for again
        draft.write_text(json.dumps({**_read_synced_until(store), **until}), encoding="utf-8")
        draft.replace(store.data_dir / _SYNCED_UNTIL_FILE)


def list_runs(*, data_dir: str | None = None, asking: str | None = None) -> list[dict[str, Any]]:
    """A summary of every run, newest first; `damaged` where it cannot be read.

    The state of those still open is looked up, in a cloud only where `asking` names it: else it is as last seen. A
    cloud that does not answer is asked once, and `reason` says so.
    """
    store = _store(data_dir)
    found = []
    left = store.runs_to_clean_up()
    silent: dict[str, str] = {}
    for summary in summaries(store):
        where = summary["provider"]
        if summary["run"] in left and summary["state"] in ENDED:
            with suppress(CloudtrainError):
                Run(RunFolder(store.runs_dir / summary["run"])).status()
        is_open = summary["state"] not in (*ENDED, DAMAGED)
        if is_open and where not in silent:
            try:
                if where in ("", asking) or not declaration_of(where).is_remote:
                    state = Run(RunFolder(store.runs_dir / summary["run"])).status()
                    summary = {key: state.to_json()[key] for key in summary}
            except CloudError as error:
                silent[where] = error.message
            except UsageError as error:
                summary = {**summary, "reason": f"not asked: {error.message}"}
            except StorageError as error:
                summary = {**summary, "state": DAMAGED, "reason": error.message}
        if is_open and summary["state"] not in ENDED and where in silent:
            summary = {**summary, "reason": f"not asked: {silent[where]}"}
        found.append(summary)
    return found


def _store(data_dir: str | None) -> RunStore:
    return RunStore(Path(load_settings(Path.cwd(), {"data_dir": data_dir})["data_dir"]).absolute())
