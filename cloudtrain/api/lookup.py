"""Search for a run, also among those of other machines in a cloud."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloudtrain.api.run import Run
from cloudtrain.api.shared_history import expect
from cloudtrain.errors import CloudError, RunExists, RunNotFound
from cloudtrain.providers import get_provider
from cloudtrain.providers.discovered_run import DiscoveredRun, KnownRuns
from cloudtrain.runs.files import replace_text
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.logs import Observation
from cloudtrain.runs.state_names import ENDED
from cloudtrain.runs.store import RunStore, summaries
from cloudtrain.runs.tombstones import tombstones
from cloudtrain.settings import data_folder, load_settings
from cloudtrain_wire.bounded_files import read_regular_file
from cloudtrain_wire.events import Phase

_SYNCED_UNTIL_FILE = "asked.json"


def find_run(
    name: str = "last", *, data_dir: str | None = None, provider: str | None = None
) -> Run:
    """Return the run of that id, the only run whose id begins so, or the `last` submitted one.

    A beginning and `last` match runs of this machine; a run of another machine needs its whole id.
    An unknown id is looked up at `provider` (default: from the settings).

    Raise RunNotFound if none or several match, CloudError if the provider does not answer.
    """
    store = _store(data_dir)
    if name not in store.ids():
        for line in tombstones(store.data_dir):
            if line["run"] == name:
                raise _removed(line)

    try:
        return Run(store.open(name))
    except RunNotFound as unknown:
        try:
            imported = import_remote_runs(provider, run_id=name, data_dir=data_dir)
        except CloudError as error:
            raise CloudError(
                f"{unknown.message}, and {error.message}", hint=error.hint, code=error.code
            ) from error

        if not imported:
            raise

        return Run(store.open(name))


def _removed(line: Mapping[str, Any]) -> RunNotFound:
    """Return the error for a removed run, with what its tombstone knows."""
    removed = datetime.fromtimestamp(line["removed"], UTC)
    facts = f"state {line['state']}, owner {line['owner']}, {line['usd']} USD at list price"
    hint = line.get("remote") and "its folder in the cloud was removed, too"
    return RunNotFound(
        f"run {line['run']} was removed on {removed:%Y-%m-%d %H:%M} UTC: {facts}", hint=hint
    )


def import_remote_runs(
    provider: str | None,
    *,
    run_id: str | None = None,
    data_dir: str | None = None,
    everything: bool = False,
    account: Mapping[str, str] | None = None,
) -> list[str]:
    """Copy a provider's jobs, or the one with that id, to run folders, and return the new ids.

    A job of another machine gets a run folder; a known job gets its current state. `everything`:
    ask for all jobs, not only the changed ones. `account`: settings that choose another account.

    Raise CloudError if the provider does not answer, UsageError for one without a cloud's list of
    jobs.
    """
    flags = {"provider": provider, "data_dir": data_dir, **(account or {})}
    settings = load_settings(Path.cwd(), flags)
    store = _store(data_dir)
    if run_id == "last" or run_id in store.ids():
        return []

    name = settings["provider"]
    known_runs = KnownRuns(states={}, synced_until={})
    if not run_id:
        known_runs = _known_runs(store, name, everything=everything)

    new = []
    removed = {line["run"] for line in tombstones(store.data_dir)}

    for job in get_provider(name).discover_runs(settings, run_id, known_runs):
        if (store.runs_dir / job.run_id).is_dir():
            _update_known_run(RunFolder(store.runs_dir / job.run_id), job)
        elif job.run_id not in removed:
            new += _create_run_folder(store, job)
            expect(store.data_dir, job.run_id, settings)

    if not run_id:
        _write_synced_until(store, known_runs.synced_until)

    return new


def _known_runs(store: RunStore, provider: str, *, everything: bool) -> KnownRuns:
    states = {}
    for line in tombstones(store.data_dir):
        if line["provider"] == provider:
            states[line["run"]] = line["state"]

    for line in summaries(store):
        # A run that ended as not started is left out: the provider may know its job.
        may_have_job = line["submitted"] or line["state"] not in ENDED
        if line["provider"] == provider and may_have_job:
            states[line["run"]] = line["state"]

    if everything:
        return KnownRuns(states=states, synced_until={})

    return KnownRuns(states=states, synced_until=_read_synced_until(store))


def _create_run_folder(store: RunStore, job: DiscoveredRun) -> list[str]:
    try:
        folder = store.create(job.run_id, job.documents(), job.submitting)
    except RunExists:  # made by another process just now
        return []

    History(folder).record(Observation(events=[job.submitted, *job.updates]))
    created = job.submitting.time
    os.utime(folder.path / "plan.json", (created, created))  # `list` and `last` sort by it

    return [job.run_id]


def _update_known_run(folder: RunFolder, job: DiscoveredRun) -> None:
    """Record the state of a known run from a list. A run of this machine is queried itself."""
    run = Run(folder)
    state = run.cached_status()
    if not state.may_have_started and (state.has_ended or not job.updates):
        return

    if not state.adopted:
        with suppress(CloudError):  # then it stays as last seen
            run.status()

        return

    updates = []
    for event in job.updates:
        if not isinstance(event, Phase) or event.phase != state.phase:
            updates.append(event)

    run.take([Observation(events=updates)])


def _read_synced_until(store: RunStore) -> dict[str, float]:
    """Return the time of the last sync of each account as a Unix timestamp."""
    try:
        synced_until = json.loads(read_regular_file(store.data_dir / _SYNCED_UNTIL_FILE))
        return {str(place): float(when) for place, when in synced_until.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _write_synced_until(store: RunStore, until: dict[str, float]) -> None:
    with suppress(OSError):  # the next sync then reads all jobs
        text = json.dumps(_read_synced_until(store) | until)
        replace_text(store.data_dir / _SYNCED_UNTIL_FILE, text)


def _store(data_dir: str | None) -> RunStore:
    return RunStore(data_folder(data_dir))
