"""Trials of a sweep as runs: start each once, follow its events, publish the values of others."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from cloudtrain.api.context import archive_of
from cloudtrain.api.monitor import RunMonitor
from cloudtrain.api.run import Run
from cloudtrain.api.submit import replan, submit
from cloudtrain.errors import CloudError, CloudtrainError, Outcome, RunExists
from cloudtrain.planning.plan import Plan, TrialRules
from cloudtrain.providers import get_provider
from cloudtrain.providers.shared.idempotent_create import may_appear
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import PlanRecord, RunRecord
from cloudtrain.runs.state import RunState, explain
from cloudtrain.spec.load import override
from cloudtrain.spec.search_space import Scalar
from cloudtrain.spec.varied_settings import override_of
from cloudtrain.spec.yaml_document import Document, mapping_of, parse_document
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.journal import Launching, Reported, RunEnded, SweepEvent, SweepFolder
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain_wire.events import Metrics, RungReached
from cloudtrain_wire.rungs import MetricReports

RUNGS_FILE = "rungs.json"
"""File that tells a job the values of other trials."""
REMOVED = {"learn_from"}
"""Fields of the section `sweep` in earlier versions, which sweeps that have them do without."""


Ending = Literal[
    "completed", "pruned", "paused", "failed", "too_large", "interrupted", "stopped", "refused"
]


class TrialPlans:
    """Plans of a sweep's trials, all with the source of the sweep's start."""

    def __init__(self, folder: SweepFolder, definition: Definition) -> None:
        record = RunRecord(RunFolder(folder.path))
        self.definition = definition
        self._data_dir = folder.path.parents[1]
        self._old: PlanRecord = record.plan()
        text = RunFolder(folder.path).text("spec.yaml")
        document = override(
            parse_document(text, name=f"{folder.sweep_id}/spec.yaml"), self._old.overrides
        )
        self._document = _without_removed(document)

    def plan(self, trial: Trial, launching: Launching, resume_from: str) -> Plan:
        """Return the plan of a new run. Raise SpecError if its values are not valid for the job.

        `resume_from`: checkpoints of an earlier run of the trial; empty for none.
        """
        document = override(self._document, self._overrides(trial.parameters, launching))
        if "name" not in document.values:
            document = replace(document, values={"name": self._old.name, **document.values})

        rules = self._rules(trial, launching, resumes=bool(resume_from))
        plan = replan(
            self._old,
            document,
            self._data_dir,
            run_id=launching.run,
            resume_run=launching.resumes if resume_from else "",
            resume_from=resume_from,
            trial=rules,
            trials_at_once=self.definition.parallel,
        )
        # Trials of a native sweep run here only in a rehearsal; ours alone end early at rungs.
        if self.definition.engine == "native" and rules is None:
            native = get_provider(plan.target.provider).native_sweeps()
            return replace(plan, renderer=native.render_trial)

        return plan

    def _overrides(self, parameters: Mapping[str, Scalar], launching: Launching) -> list[str]:
        overrides = [override_of(key, value) for key, value in parameters.items()]
        if launching.cap_seconds is not None:  # never more than the job's own limit
            overrides.append(f"limits.max_runtime={max(1, int(launching.cap_seconds))} s")

        if self._old.checkpoints_uri:  # a folder for each run: trials must not share checkpoints
            overrides.append(
                f"checkpoints.uri={self._old.checkpoints_uri.rstrip('/')}/{launching.run}/"
            )

        return overrides

    def _rules(self, trial: Trial, launching: Launching, *, resumes: bool) -> TrialRules | None:
        definition = self.definition
        if not definition.rungs:
            return None

        return TrialRules(
            trial=trial.number,
            metric=definition.metric,
            goal=definition.goal,
            rungs=definition.rungs,
            eta=definition.eta,
            until=launching.until,
            reports=trial.reports if resumes else 0,
            position=trial.position if resumes else None,
        )


def _without_removed(document: Document) -> Document:
    """Return the job of a sweep without fields that an earlier version had."""
    section = mapping_of(document.values, "sweep")
    if not REMOVED & section.keys():
        return document

    section = {name: value for name, value in section.items() if name not in REMOVED}
    return replace(document, values={**document.values, "sweep": section})


class _TrialRun:
    """Run of a trial, and how far its events were read."""

    def __init__(self, folder: RunFolder, reports: MetricReports) -> None:
        self.monitor = RunMonitor(folder)
        self.reports = reports
        self.offset = 0
        self.stop_requested = False
        self.is_decided = False
        """True after its last rung: later reports do not count."""


class RunTrials:
    """Trials as ordinary runs on any provider."""

    def __init__(self, folder: SweepFolder, definition: Definition) -> None:
        self._definition = definition
        self._data_dir = folder.path.parents[1]
        self._plans = TrialPlans(folder, definition)
        self._provider = get_provider(definition.provider)
        self._runs: dict[str, _TrialRun] = {}
        self._published: dict[str, str] = {}

    def has_run(self, trial: Trial) -> bool:
        """Return True if the latest run of a trial was submitted."""
        return self._folder(trial.run).path.is_dir()

    def plan(self, trial: Trial) -> Plan:
        """Return the plan of a trial's latest run. Raise SpecError if its values are invalid."""
        launching = trial.runs[-1]
        return self._plans.plan(trial, launching, self._checkpoints(launching.resumes))

    def start(self, trial: Trial) -> RunEnded | None:
        """Submit the latest run of a trial once: its folder shows whether that was done."""
        if self.has_run(trial):
            return None

        try:
            plan = self.plan(trial)
            submit(plan, archive=archive_of(plan))
        except RunExists:
            return None
        except CloudtrainError as error:
            if error.outcome is Outcome.UNKNOWN:  # the next `observe` asks the provider
                return None

            may_pass = isinstance(error, CloudError) and error.transient
            return run_ended(trial, "interrupted" if may_pass else "refused", error.message)

        return None

    def observe(self, trial: Trial) -> list[SweepEvent]:
        """Return new reports and the end of a trial. Skip a cloud that does not answer."""
        run = self._run(trial)
        with suppress(CloudError):
            run.monitor.refresh()

        state = run.monitor.state
        # Before reading events: the end is the last one.
        ended = state.has_ended and not may_appear(state, time.time())
        events, run.offset = run.monitor.folder.events_since(run.offset)
        sweep_events: list[SweepEvent] = list(_reports(trial, run, events))

        if ended:
            sweep_events.append(_end_of(trial, state, self._definition))

        return sweep_events

    def publish(self, state: SweepState) -> None:
        """Write the values at all rungs to each running job if they changed."""
        self._definition = self._plans.definition = state.definition  # an extension may change it
        if not self._definition.rungs or self._definition.promotes:
            return

        text = rungs_document(state)
        for trial in state.trials:
            if trial.state != "running" or self._published.get(trial.run) == text:
                continue
            if not self.has_run(trial):  # a worker of a cluster has not started it yet
                continue

            run = self._run(trial)
            with suppress(CloudError):  # the next round repeats it
                self._provider.publish(run.monitor.folder, run.monitor.state, RUNGS_FILE, text)
                self._published[trial.run] = text

    def request_stop(self, trial: Trial) -> None:
        """Send the stop once; ask again if the run is just being submitted."""
        run = self._run(trial)
        if not run.stop_requested:
            with suppress(CloudError):
                run.stop_requested = Run(run.monitor.folder).request_stop(run.monitor.refresh())

    def failure(self, state: SweepState) -> str:  # noqa: ARG002
        """Return an empty text: a failed start is the end of its trial alone."""
        return ""

    def _run(self, trial: Trial) -> _TrialRun:
        if trial.run not in self._runs:
            folder = self._folder(trial.run)
            # The job's own record of reports of earlier runs of the trial.
            rules = RunRecord(folder).trial
            reports = MetricReports(
                self._definition.metric, rules.get("reports", 0), rules.get("position")
            )
            self._runs[trial.run] = _TrialRun(folder, reports)

        return self._runs[trial.run]

    def _checkpoints(self, run_id: str) -> str:
        """Return the place of the checkpoints of an earlier run; empty if there are none."""
        if not run_id or not self._folder(run_id).path.is_dir():
            return ""
        folder = self._folder(run_id)
        return self._provider.checkpoints(folder, RunMonitor(folder).history.read())

    def _folder(self, run_id: str) -> RunFolder:
        return RunFolder(self._data_dir / "runs" / run_id)


def rungs_document(state: SweepState) -> str:
    """Return the content of `rungs.json`: the values of all trials at each rung."""
    rungs = []
    for at, values in zip(state.definition.rungs, state.rungs, strict=True):
        written = {str(trial): _finite(value) for trial, value in values.items()}
        rungs.append({"at": at, "values": written})

    return json.dumps({"version": 1, "rungs": rungs})


def _finite(value: float) -> float | None:
    """Return a value for JSON, which lacks infinity and NaN."""
    if math.isfinite(value):
        return value

    return None


def _reports(trial: Trial, run: _TrialRun, events: Iterable[object]) -> Iterable[Reported]:
    """Yield reports that the journal does not have yet."""
    for event in events:
        if isinstance(event, RungReached):
            run.is_decided |= event.outcome != "goes_on"
        if run.is_decided or not isinstance(event, Metrics) or event.rank > 0:
            continue

        value = run.reports.add(event)
        if value is not None and run.reports.count > trial.reports:
            yield Reported(
                time=event.time or time.time(),
                trial=trial.number,
                report=run.reports.count,
                value=_finite(value),
                position=run.reports.position,
            )


def _end_of(trial: Trial, state: RunState, definition: Definition) -> RunEnded:
    """Return the end of a run as an event of the sweep."""
    decision = state.trial_outcome
    billing = state.billing
    seconds = state.seconds(time.time())
    usd = billing.usd if billing else None
    if usd is None and definition.trial_cap.usd is None:
        usd = 0.0

    if state.state == "succeeded":
        outcome: Ending = "completed"
        if decision == "pruned":
            outcome = "pruned"
        elif decision == "paused":
            outcome = "paused"

        return run_ended(trial, outcome, "", usd, seconds)

    if state.ref is None:  # its submission was interrupted before the start
        return run_ended(trial, "interrupted", state.reason, 0.0, 0.0)

    if state.state == "stopped":
        ending: Ending = "stopped"
        for node in state.nodes_ended.values():
            if node.why in ("preempted", "peer_preempted"):
                ending = "interrupted"

        return run_ended(trial, ending, state.reason, usd, seconds)

    ended = run_ended(trial, "failed", explain(state), usd, seconds)
    if state.error:
        ended = replace(ended, cause=state.error.exception)

    return ended


def run_ended(
    trial: Trial, outcome: Ending, reason: str, usd: float | None = 0.0, seconds: float = 0.0
) -> RunEnded:
    """Return the end of the latest run of a trial, now."""
    return RunEnded(
        time=time.time(),
        trial=trial.number,
        run=trial.run,
        outcome=outcome,
        reason=reason,
        usd=usd,
        seconds=seconds,
    )
