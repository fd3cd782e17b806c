"""List of the runs of a data folder, with the state of those that have not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudtrain.runs.state_names import DAMAGED, ENDED
from cloudtrain.runs.store import (
    CLEANUP_MARKS,
    HISTORY_MARKS,
    NOTIFY_MARKS,
    RunStore,
    newest_summaries,
    summaries,
)
from cloudtrain.settings import data_folder

if TYPE_CHECKING:
    from cloudtrain.api.selected_runs import RunFilter


def runs_going_on(*, data_dir: str | None = None) -> list[dict[str, Any]]:
    """Summaries of all runs that have not ended, newest first."""
    return [run for run in list_runs(data_dir=data_dir) if run["state"] not in (*ENDED, DAMAGED)]


def list_runs(
    *,
    data_dir: str | None = None,
    provider: str | None = None,
    ask_clouds: bool = True,
    only: RunFilter | None = None,
) -> list[dict[str, Any]]:
    """Return a summary of every run, newest first; its state is `damaged` if it cannot be read.

    Each unfinished run is queried once, and so is one of the last day that counts as not
    started after its request was sent. A cloud that does not answer is asked once, and `reason`
    says so. `provider`: only runs of this one. `ask_clouds`: False lists runs in a cloud as last
    seen. `only`: a filter by name, time and tags; `best_first` sorts. Each summary has the keys of
    `cloudtrain list --json`; times are Unix timestamps.
    """
    store = RunStore(data_folder(data_dir))
    listed = summaries(store)
    if provider is not None:
        listed = [run for run in listed if run["provider"] == provider]
    if only is not None:
        listed = [run for run in listed if only.fits(run)]

    _update(store, listed, ask_clouds=ask_clouds)
    return listed


def newest_runs(most: int, data_dir: str | None = None) -> tuple[list[dict[str, Any]], int]:
    """Return the newest runs as `list_runs` does, and the number of older ones that were not read.

    None is left out that goes on or keeps machines.
    """
    store = RunStore(data_folder(data_dir))
    listed, left_out = newest_summaries(store, most, _to_clean_up(store))
    _update(store, listed)
    return listed, left_out


def _update(store: RunStore, listed: list[dict[str, Any]], *, ask_clouds: bool = True) -> None:
    """Replace the summary of each run whose provider may know more, newest first."""
    to_clean_up = _to_clean_up(store)
    open_runs = [
        at for at, run in enumerate(listed) if run["run"] in to_clean_up or not _is_final(run)
    ]
    if open_runs:
        from cloudtrain.api.open_runs import OpenRuns  # a list of ended runs needs no provider

        asked = OpenRuns(store, to_clean_up, ask_clouds=ask_clouds)
        for at in open_runs:
            listed[at] = asked.updated(listed[at])

    if store.marked(HISTORY_MARKS):
        from cloudtrain.api.shared_history import mirror  # few users have a server of MLflow

        mirror(store.data_dir, at_once=True)


def _to_clean_up(store: RunStore) -> frozenset[str]:
    """Return the runs whose end is still to be told, or that may have left something."""
    return store.marked(CLEANUP_MARKS) | store.marked(NOTIFY_MARKS)


def _is_final(run: dict[str, Any]) -> bool:
    """Return whether nobody knows more of a run than its summary."""
    return run["submitted"] and run["state"] in ENDED and run["bytes"] is not None
