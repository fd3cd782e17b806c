"""State of listed runs whose provider may know more than their summary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from contextlib import suppress
from typing import Any

from cloudtrain.api.run import Run
from cloudtrain.declaration import declaration_of
from cloudtrain.errors import CloudError, CloudtrainError, StorageError, UsageError
from cloudtrain.runs.files import bytes_of
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.state import RunState
from cloudtrain.runs.state_names import DAMAGED, ENDED, NOT_ASKED
from cloudtrain.runs.store import RunStore
from cloudtrain.runs.summary import summary_of

LATE_START_SECONDS = 86_400
"""Time during which a list asks for a requested job that counts as not started."""


class OpenRuns:
    """Runs of one list. A provider that does not answer is asked once."""

    def __init__(self, store: RunStore, to_clean_up: Set[str], *, ask_clouds: bool) -> None:
        self._store = store
        self._to_clean_up = to_clean_up
        self._ask_clouds = ask_clouds
        self._unreachable: dict[str, str] = {}
        """Error of each provider that has not answered."""

    def updated(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Return the summary of a run after asking its provider, if that may know more."""
        folder = RunFolder(self._store.runs_dir / summary["run"])
        run = Run(folder)
        if summary["run"] in self._to_clean_up and summary["state"] in ENDED:
            with suppress(CloudtrainError):
                run.status()
        if _is_unsettled(run, summary):
            summary = self._asked(run, summary)
        if summary["bytes"] is None:
            summary = {**summary, "bytes": bytes_of(folder.path)}

        return summary

    def _asked(self, run: Run, summary: dict[str, Any]) -> dict[str, Any]:
        where = summary["provider"]
        try:
            if where and not self._ask_clouds and declaration_of(where).is_remote:
                return summary

            if where not in self._unreachable:
                return summary_of(run.status())
        except CloudError as error:
            self._unreachable[where] = error.message
        except UsageError as error:
            return {**summary, "reason": f"{NOT_ASKED}: {error.message}"}
        except StorageError as error:
            return {**summary, "state": DAMAGED, "reason": error.message}

        if summary["state"] in ENDED:
            return summary

        return {**summary, "reason": f"{NOT_ASKED}: {self._unreachable[where]}"}


def _is_unsettled(run: Run, summary: Mapping[str, Any]) -> bool:
    """Return whether a run's provider may know more than its summary."""
    if summary["state"] == DAMAGED or summary["submitted"]:
        return summary["state"] not in (*ENDED, DAMAGED)

    try:
        state = run.cached_status()
    except StorageError:  # just removed or damaged
        return False

    return not state.has_ended or may_start_late(state, time.time())


def may_start_late(state: RunState, now: float) -> bool:
    """Return whether a run that ended as not started may still turn out to have a job."""
    return state.may_have_started and now - state.requested < LATE_START_SECONDS
