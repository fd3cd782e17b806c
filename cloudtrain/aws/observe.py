"""Looking at a job: one Describe, then the new log lines, and from both the events that the run folder lacks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.aws.phases import billing, ended_at, ending, machines_of, phase_of, phase_since
from cloudtrain.aws.pull import pull
from cloudtrain.aws.start import describe, same_account, settle
from cloudtrain.remote.ending import all_told, ended
from cloudtrain.runs.state import RunState, fold
from cloudtrain.runs.store import RunFolder

if TYPE_CHECKING:
    from cloudtrain.clouds.aws import Aws

SETTLING_PAUSES = 3
"""CloudWatch lags: after the end of a job its last lines are waited for, for this many looks."""


def observe(cloud: Aws, run: RunFolder, state: RunState, pause: float) -> list[dict[str, Any]]:
    """The events since the last look. Log lines, and the events in them, are kept as they are read."""
    now = time.time()
    events: list[dict[str, Any]] = []
    if state.ref is None:
        events = settle(cloud, run, now)
        if not any(event["type"] == "submitted" for event in events):
            return events
    described = describe(cloud, run.run_id)
    if described is None:
        same_account(cloud, (state.ref or events[0]["ref"])["arn"], run.run_id)
        reason = "SageMaker does not know this job (any more)"
        return [*events, {"type": "ended", "time": now, "state": "failed", "reason": reason}]
    phase = phase_of(described)
    if phase != state.phase:
        since = phase_since(described) or now
        events.append({"type": "phase", "time": now, "phase": phase, "since": since})
    if described["TrainingJobStatus"] == "Stopping" and not state.stop_requested:
        events.append({"type": "stop_requested", "time": now, "reason": "SageMaker is stopping it"})
    _, count = machines_of(described)
    drained = pull(cloud, run, described["TrainingJobName"], count)
    over = ending(described)
    if over is not None:
        # What has just been read may hold the nodes' last words.
        state = fold(run.run_id, run.events())
        if drained and (all_told(state, count) or _waited(described, state, now, pause)):
            bill = billing(described, _usd_per_hour(described, run))
            events.append(ended(state, over, ended_at(described) or now, bill))
    return events


def _waited(described: Mapping[str, Any], state: RunState, now: float, pause: float) -> bool:
    """Whether the last lines had their time to arrive: since the end, or since we first saw it, as clocks differ."""
    if all(item["Status"] != "Training" for item in described.get("SecondaryStatusTransitions", ())):
        return True  # it never came so far as to print anything
    patience = SETTLING_PAUSES * pause
    seen = state.phase_seen if state.phase == phase_of(described) else now
    return now - min(seen, ended_at(described) or now) > patience


def _usd_per_hour(described: Mapping[str, Any], run: RunFolder) -> float | None:
    """Of all machines of the job, by the prices of its plan; None when that of the one it got is not known."""
    kind, count = machines_of(described)
    price = run.document("plan.json")["target"]["facts"].get("prices", {}).get(kind)
    return price * count if price is not None else None
