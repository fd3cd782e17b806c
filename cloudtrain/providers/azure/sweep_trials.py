"""Translate a sweep job and its trials of Azure ML into a sweep and its trials. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cloudtrain.planning.tuned import parameters_of
from cloudtrain.providers import DiscoveredRun
from cloudtrain.providers.azure.config import AzureConfig, config_of, request_of
from cloudtrain.providers.azure.phases import ended_at, final_state, started_at, status_of
from cloudtrain.providers.azure.sweep_documents import trial_document
from cloudtrain.providers.native_sweep import NativeSweepState, NativeTrial
from cloudtrain.providers.shared.tags import own_tags
from cloudtrain.runs.record import RunRecord
from cloudtrain_launcher.events import Submitted, Submitting

if TYPE_CHECKING:
    from cloudtrain.providers.azure.resources import TrialInfo
    from cloudtrain.runs.folder import RunFolder

State = Literal["running", "stopping", "succeeded", "failed", "stopped"]

BEST = "best_child_run_id"
"""Property of a sweep job with its best trial; azure-ai-ml downloads by it."""

_TRIAL_STATES: Mapping[str, Literal["completed", "failed", "stopped"]] = {
    "Completed": "completed",
    "Failed": "failed",
    "Canceled": "stopped",
}
"""Status -> state of a trial; any other is `running`. A sweep job ends no trial early."""


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
    trials: list[NativeTrial] = []
    for trial in sorted(listed, key=_number):
        if _number(trial) != len(trials):  # the list may lag: each keeps its number
            break
        texts = parameters.get(trial.name, {})
        # a trial that has ended has all its values: from the service, or the launcher
        if len(texts) < len(rules) and not trial.has_ended:
            break
        document = trial_document(request, trial.name, texts)
        trials.append(
            NativeTrial(
                number=len(trials),
                name=trial.name,
                parameters=parameters_of(rules, texts),
                state=_TRIAL_STATES.get(trial.status, "running"),
                run=_run_of(
                    record.name,
                    config,
                    record.grace_seconds,
                    document,
                    trial,
                    _url(url, folder.run_id, trial.name),
                ),
            )
        )
    state, reason = _state_of(request, details, stop_requested=stop_requested)
    return NativeSweepState(state=state, reason=reason, trials=trials, url=url)


def _state_of(
    request: Mapping[str, Any], details: Mapping[str, Any], *, stop_requested: bool
) -> tuple[State, str]:
    final = final_state(details)
    if final is None:
        is_stopping = stop_requested or status_of(details) == "CancelRequested"
        return ("stopping" if is_stopping else "running"), ""
    if final.state == "stopped" and not stop_requested and _is_late(request, details):
        return "succeeded", "the time of the budget is over"
    if final.state == "succeeded" and not (details.get("properties") or {}).get(BEST):
        return (
            "failed",
            f"Azure ML was told no {request['objective']['primary_metric']} by any trial",
        )
    return final.state, final.reason


def _is_late(request: Mapping[str, Any], details: Mapping[str, Any]) -> bool:
    limit = request["limits"].get("timeout")
    return limit is not None and (ended_at(details) or time.time()) - started_at(details) >= limit


def _number(trial: TrialInfo) -> int:
    """Return the N of `<sweep job>_N`."""
    number = trial.name.rpartition("_")[2]
    return int(number) if number.isdecimal() else -1


def _url(url: str, sweep: str, trial: str) -> str:
    """Return the trial's page in the studio, from its sweep job's page."""
    return url.replace(f"/runs/{sweep}", f"/runs/{trial}", 1)


def _run_of(
    title: str,
    config: AzureConfig,
    grace: int,
    document: Mapping[str, Any],
    trial: TrialInfo,
    url: str,
) -> DiscoveredRun:
    """Return an ordinary run of a trial; its request follows the sweep job's template."""
    tags = own_tags(document["tags"])
    resources = document["resources"]
    submitting = Submitting(
        adopted=True,
        time=trial.created or time.time(),
        name=title,
        provider="azure",
        contract="azureml",
        nodes=int(resources["instance_count"]),
        processes=int(tags["processes"]) if tags.get("processes", "").isdecimal() else 1,
    )
    return DiscoveredRun(
        run_id=trial.name,
        config=config,
        instance=str(resources.get("instance_type") or ""),
        grace_seconds=grace,
        request=document,
        submitting=submitting,
        submitted=Submitted(
            time=trial.created or time.time(), ref={"name": trial.name, "url": url}
        ),
    )
