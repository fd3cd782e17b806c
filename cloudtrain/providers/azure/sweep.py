"""Azure ML's own service for sweeps: a sweep job, by the protocol of native sweeps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, StorageError
from cloudtrain.planning.azureml import STOP_FILE
from cloudtrain.planning.tuned import named_texts, parameters_of
from cloudtrain.providers.azure.config import client_of_run, config_of, request_of
from cloudtrain.providers.azure.declaration import DECLARATION
from cloudtrain.providers.azure.discover import adopted_run, nodes_of
from cloudtrain.providers.azure.phases import ended_at, final_state, started_at, status_of
from cloudtrain.providers.azure.request import EARLY_TERMINATION, section_of
from cloudtrain.providers.azure.results import datastore_path
from cloudtrain.providers.azure.stop import NOTICE_SECONDS, cancel
from cloudtrain.providers.azure.submit import reconcile, start
from cloudtrain.providers.azure.sweep_request import (
    render,
    render_trial,
    sampling_words,
    trial_document,
)
from cloudtrain.providers.azure.sweep_rules import sweep_job_issues
from cloudtrain.providers.discovered_run import adopted
from cloudtrain.providers.native_sweep import NativeSweepState, NativeTrial, State, TrialState
from cloudtrain.providers.shared.idempotent_create import is_new, own_tags, settle
from cloudtrain.runs.logs import Observation
from cloudtrain.runs.record import RunRecord
from cloudtrain_wire.events import Ended, StopRequested

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.azure.client import TrialInfo, Workspace
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.logs import Record
    from cloudtrain.runs.state import RunState

_GONE = "Azure ML does not know this sweep job (any more)"


BEST = "best_child_run_id"
"""Property of a sweep job with its best trial; azure-ai-ml downloads by it."""

_TRIAL_STATES: Mapping[str, TrialState] = {
    "Completed": "completed",
    "Failed": "failed",
    "Canceled": "stopped",
}
"""Status -> state of a trial; any other is `running`."""


class AzureSweeps:
    """Sweep jobs."""

    rules = staticmethod(sweep_job_issues)
    method = staticmethod(sampling_words)
    render = staticmethod(render)
    render_trial = staticmethod(render_trial)
    start = staticmethod(start)

    def __init__(self) -> None:
        self._parameters: dict[str, Mapping[str, str]] = {}
        """Trial -> its values by setting."""
        self._complete = set[str]()
        """Trials with final values: each is requested once."""

    def stopping(self, plan: Plan) -> str:
        """Say which policy ends bad trials early."""
        policy = section_of(plan).early_termination
        if not policy:
            return ""

        return f"Azure ML's policy {policy.type} ends bad trials early"

    def observe(
        self,
        folder: RunFolder,
        state: RunState,
        record: Record,
    ) -> NativeSweepState | None:
        """Read the sweep job's run history, its trials, and once for each trial its values.

        After a stop was requested, the sweep job is cancelled as soon as its trials have saved.
        """
        cloud = client_of_run(folder)
        events = partial(reconcile, cloud, folder, time.time())
        if (ref := settle(state, record, events)) is None:
            return None

        details = cloud.details(folder.run_id)
        if details is None:
            if is_new(state, time.time()):
                return None
            record(Observation(events=[Ended(time=time.time(), state="failed", reason=_GONE)]))
            return None

        trials = cloud.trials(folder.run_id)
        rules = folder.document("job.json", {"tuned": dict})["tuned"]
        for trial in trials:
            if trial.name not in self._complete:
                values = named_texts(rules, cloud.parameters(trial.name))
                self._parameters[trial.name] = values
                # otherwise the service may report them in a moment
                if trial.has_ended or len(values) == len(rules):
                    self._complete.add(trial.name)
        if state.stop_requested:
            _cancel_when_saved(cloud, folder, details, trials)

        url = ref.get("url", "")
        stop_requested = bool(state.stop_requested)
        return sweep_state(
            folder,
            details,
            trials,
            self._parameters,
            stop_requested=stop_requested,
            url=url,
        )

    def stop(self, folder: RunFolder, state: RunState, record: Record) -> bool:
        """Ask running trials to save and end, by a file in their folders; `observe` cancels."""
        cloud = client_of_run(folder)
        if settle(state, record, partial(reconcile, cloud, folder, time.time())) is None:
            return state.has_ended

        reason = "stop requested"
        try:
            datastore, path = datastore_path(request_of(folder)["outputs"]["output"]["path"])
            for trial in cloud.trials(folder.run_id):
                if trial.is_running:
                    cloud.container(datastore).put(f"{path}{trial.name}/{STOP_FILE}", b"")
        except (CloudError, StorageError) as error:
            if isinstance(error, CloudError) and error.transient:
                raise
            reason += f"; its trials could not be told to save: {error.message}"

        record(Observation(events=[StopRequested(time=time.time(), reason=reason)]))
        return True


def _cancel_when_saved(
    cloud: Workspace,
    folder: RunFolder,
    details: Mapping[str, Any],
    trials: list[TrialInfo],
) -> None:
    """Cancel the sweep job once no trial with a stop file runs, or the grace period is over.

    Trials that it has started since then have not trained yet.
    """
    if final_state(details) is not None or status_of(details) == "CancelRequested":
        return

    stopped = folder.last_event(StopRequested)
    since = stopped.time if stopped is not None else 0.0
    is_over = time.time() > since + NOTICE_SECONDS + RunRecord(folder).grace_seconds
    if is_over or not any(trial.is_running and trial.created <= since for trial in trials):
        cancel(cloud, folder.run_id)


def sweep_state(
    folder: RunFolder,
    details: Mapping[str, Any],
    listed: Sequence[TrialInfo],
    parameters: Mapping[str, Mapping[str, str]],
    *,
    stop_requested: bool,
    url: str,
) -> NativeSweepState:
    """Return the sweep and its trials.

    `details`: its run history; `listed`: its trials; `parameters`: of each, by setting.
    """
    rules = folder.document("job.json", {"tuned": dict})["tuned"]
    config = config_of(folder)
    record = RunRecord(folder)
    request = request_of(folder)
    state, reason = _state_of(request, details, stop_requested=stop_requested)
    states = dict(_TRIAL_STATES)
    if EARLY_TERMINATION in request and state in ("running", "succeeded") and not reason:
        states["Canceled"] = "pruned"

    trials: list[NativeTrial] = []
    for trial in sorted(listed, key=_number):
        if _number(trial) != len(trials):  # the list may lag: each keeps its number
            break
        texts = parameters.get(trial.name, {})
        # a trial that has ended has all its values: from the service, or the launcher
        if len(texts) < len(rules) and not trial.has_ended:
            break
        document = trial_document(request, trial.name, texts)
        submitting = adopted(
            DECLARATION,
            own_tags(document["tags"]),
            title=record.name,
            nodes=nodes_of(document),
            created=trial.created,
        )
        run = adopted_run(
            document,
            config,
            submitting,
            grace_seconds=record.grace_seconds,
            ref={
                "name": trial.name,
                "url": url.replace(f"/runs/{folder.run_id}", f"/runs/{trial.name}", 1),
            },
        )
        trials.append(
            NativeTrial(
                number=len(trials),
                name=trial.name,
                parameters=parameters_of(rules, texts),
                state=states.get(trial.status, "running"),
                run=run,
            )
        )

    return NativeSweepState(state=state, reason=reason, trials=trials)


def _state_of(
    request: Mapping[str, Any],
    details: Mapping[str, Any],
    *,
    stop_requested: bool,
) -> tuple[State, str]:
    final = final_state(details)
    if final is None:
        is_stopping = stop_requested or status_of(details) == "CancelRequested"
        if is_stopping:
            return "stopping", ""
        return "running", ""
    if final.state == "stopped" and not stop_requested and _is_late(request, details):
        return "succeeded", "the time of the budget is over"
    if final.state == "succeeded" and not (details.get("properties") or {}).get(BEST):
        metric = request["objective"]["primary_metric"]
        return "failed", f"Azure ML was told no {metric} by any trial"

    return final.state, final.reason


def _is_late(request: Mapping[str, Any], details: Mapping[str, Any]) -> bool:
    limit = request["limits"].get("timeout")
    return limit is not None and (ended_at(details) or time.time()) - started_at(details) >= limit


def _number(trial: TrialInfo) -> int:
    """Return the N of `<sweep job>_N`."""
    number = trial.name.rpartition("_")[2]
    if not number.isdecimal():
        return -1

    return int(number)
