"""Plan of one run of a trial: the job with its values and caps, and the sweep's source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudtrain.planning.plan import Plan, TrialRules
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import RunRecord
from cloudtrain.spec.load import override
from cloudtrain.spec.varied_settings import override_of
from cloudtrain.spec.yaml_document import parse_document
from cloudtrain.submission.rerun import replan
from cloudtrain.sweeps.definition import Definition, Parameters
from cloudtrain.sweeps.events import Launching
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.state import Trial

if TYPE_CHECKING:
    from cloudtrain.runs.record import PlanRecord


class TrialPlans:
    """Plans of a sweep's trials, all with the source of the sweep's start."""

    def __init__(self, folder: SweepFolder, definition: Definition) -> None:
        record = RunRecord(RunFolder(folder.path))
        self.definition = definition
        self._data_dir = folder.path.parents[1]
        self._old: PlanRecord = record.plan()
        text = RunFolder(folder.path).text("spec.yaml")
        self._document = override(
            parse_document(text, name=f"{folder.sweep_id}/spec.yaml"), self._old.overrides
        )

    def plan(self, trial: Trial, launching: Launching, resume_from: str) -> Plan:
        """Return the plan of a new run. Raise SpecError if its values are not valid for the job.

        `resume_from`: checkpoints of an earlier run of the trial; empty for none.
        """
        document = override(self._document, self._overrides(trial.parameters, launching))
        if "name" not in document.values:
            document = replace(document, values={"name": self._old.name, **document.values})
        return replan(
            self._old,
            document,
            self._data_dir,
            run_id=launching.run,
            resume_run=launching.resumes if resume_from else "",
            resume_from=resume_from,
            trial=self._rules(trial, launching, resumes=bool(resume_from)),
            trials_at_once=self.definition.parallel,
        )

    def _overrides(self, parameters: Parameters, launching: Launching) -> list[str]:
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
        if definition.is_batch_size_search:
            return TrialRules.of_measurement(trial.number, definition.metric, definition.goal)
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
