"""Driver of drills: run the undisturbed job, then each drill on this machine, and judge them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cloudtrain.diagnosis.rules import hint_for
from cloudtrain.errors import JobFailed, UsageError
from cloudtrain.planning.plan import Plan
from cloudtrain.runs.state import explain
from cloudtrain.submission.drills.scorecard import DrillResult, Scorecard
from cloudtrain.submission.drills.verdict import (
    DRILLED_HANG_SECONDS,
    DrillRun,
    Fault,
    Finding,
    JobFacts,
    Scenario,
    Verdict,
    advice,
    advice_on_all,
    grace_of,
    judge,
)
from cloudtrain.submission.drills.watching import (
    Draw,
    Injected,
    NotPossible,
    TooLate,
    Watched,
    inject,
    tear_newest,
)
from cloudtrain.submission.run import Run
from cloudtrain.submission.submit import submit
from cloudtrain.units import format_duration
from cloudtrain_launcher.events import RankEnded, RankStarted

MIN_SAVES = 3
"""Minimum number of checkpoints before the end; with fewer, drills save more often."""
DRILLED_SAVES = 8
"""Target number of checkpoints during a drill."""

INJECT_AT = 0.6
"""Share of a job without checkpoints that is done before the fault."""

EXTRA_SECONDS = 60.0
TIMES_REFERENCE = 4.0
"""Time limit of a run: a multiple of the undisturbed run, plus these seconds."""

REMEDIED = (Fault.DISK_FULL, Fault.CHECKPOINT_TORN)
"""Faults with a useful remedy in the job's report; for others it names our signal."""

_AT_ITS_END = "the job was at its end; a longer one is needed, such as --set args.epochs=20"

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillOptions:
    """Scenarios of a drill, its time limit and its outputs."""

    scenarios: Sequence[Scenario]
    timeout_seconds: float
    """Maximum seconds of the undisturbed run."""
    tell: Tell
    draw: Draw


class Drill:
    """All drills of one job. `plan`: the job on this machine, in the drills' data folder."""

    def __init__(self, plan: Plan, options: DrillOptions) -> None:
        self.plan = plan
        self.options = options
        self.reference: Watched | None = None
        self.reference_seconds = self.training_seconds = 0.0
        self.finished: DrillRun | None = None
        """Undisturbed run after its end."""
        self.results: list[DrillResult] = []
        self.overrides: tuple[str, ...] = ()
        """Overrides that make the job save more often in its drills."""

    def run(self) -> Scorecard:
        """Run all drills and return the scorecard. An interrupt ends the current run.

        Raise JobFailed if the undisturbed job fails, UsageError if it takes too long.
        """
        self._run_reference()
        for scenario in self.options.scenarios:
            started = time.monotonic()
            result = replace(self._drill(scenario), seconds=time.monotonic() - started)
            self.results.append(result)
            self.options.tell(f"{scenario.name}: {result.finding.verdict.value}")

        return self.scorecard()

    def scorecard(self) -> Scorecard:
        """Return the current results. Raise RuntimeError before the undisturbed run has ended."""
        _, finished = self._undisturbed()
        facts = self._facts()
        advised = [
            replace(
                result,
                advice=advice(
                    result.scenario.fault, result.finding, next(iter(result.runs), None), facts
                ),
            )
            for result in self.results
        ]

        return Scorecard(
            job=self.plan.spec.name,
            folder=self.plan.context.data_dir,
            reference=finished,
            reference_seconds=self.reference_seconds,
            results=advised,
            advice=advice_on_all([result.finding for result in self.results], facts),
        )

    def _undisturbed(self) -> tuple[Watched, DrillRun]:
        """Return the undisturbed run. Raise RuntimeError before it has succeeded."""
        if self.reference is None or self.finished is None:
            raise RuntimeError("the undisturbed job has not run yet")
        return self.reference, self.finished

    def _run_reference(self) -> None:
        started = time.monotonic()
        watched = self.reference = Watched(Run(submit(self.plan)))
        with self._ended_at_last(watched):
            watched.until(None, self.options.timeout_seconds, self.options.draw)

        if watched.overdue:
            raise _too_long(self.options)

        self.reference_seconds = time.monotonic() - started
        self.training_seconds = _training_seconds(watched)

        if watched.state.state != "succeeded":
            why = explain(watched.state)
            raise JobFailed(f"the job fails without any drill: {why}", hint=f"run {watched.run.id}")

        self.finished = watched.finished()
        self.options.tell(f"undisturbed: succeeded in {format_duration(self.reference_seconds)}")

        if watched.saves_in_time < MIN_SAVES:
            self.overrides = self._save_more_often(watched)

    def _save_more_often(self, watched: Watched) -> tuple[str, ...]:
        steps = watched.state.position.steps or watched.step
        if self.plan.spec.entrypoint is None and steps:
            return (f"args.checkpoint-every-steps={max(1, math.ceil(steps / DRILLED_SAVES))}",)
        if self.plan.spec.entrypoint is None or watched.saves:
            return (f"checkpoints.every={max(1, int(self.training_seconds / DRILLED_SAVES))} s",)

        return ()

    def _drill(self, scenario: Scenario) -> DrillResult:
        if scenario.needs_checkpoint and not self._undisturbed()[0].saves:
            return _skipped(scenario, "the job saves no checkpoint")

        if scenario.fault is Fault.LOADER_STALLED and self.plan.spec.launcher == "none":
            return _skipped(scenario, "launcher: none cannot see that processes wait")

        try:
            return self._inject(scenario)
        except NotPossible as reason:
            return _skipped(scenario, str(reason))
        except TooLate as reason:
            finding = Finding(verdict=Verdict.NOT_INJECTED)
            return DrillResult(
                scenario=scenario,
                finding=finding,
                injected=f"nothing: {str(reason) or _AT_ITS_END}",
            )

    def _inject(self, scenario: Scenario) -> DrillResult:
        watched = self._start(scenario)
        with self._ended_at_last(watched):
            if not watched.until(self._is_time(scenario), self._limit(), self.options.draw):
                raise TooLate(_why_not_injected(watched))

            injected = inject(scenario.fault, watched)
            text = injected.text + (f" at step {watched.step:g}" if watched.step else "")
            watched.until(None, self._limit(), self.options.draw, closely=False)

            if watched.overdue:
                watched.abort()

        if scenario.fault is Fault.CHECKPOINT_TORN and watched.state.state == "stopped":
            text += f", then {tear_newest(watched.run, watched)}"

        result = self._judge(scenario, watched, injected, text)
        if scenario.fault is Fault.SIGTERM:
            result = replace(
                result,
                finding=replace(
                    result.finding, saved_at_stop=watched.saved() != injected.saved_before
                ),
            )

        return result

    def _judge(
        self, scenario: Scenario, watched: Watched, injected: Injected, text: str
    ) -> DrillResult:
        """Return the result, after a rerun if the faulty run did not succeed."""
        runs = [watched.finished()]
        if runs[0].state.state == "succeeded" and injected.ends_run:
            finding = Finding(verdict=Verdict.NOT_INJECTED)
            return DrillResult(
                scenario=scenario,
                finding=finding,
                injected=f"{text}, too late",
                runs=runs,
            )

        if runs[0].state.state != "succeeded" and not runs[0].overdue:
            rerun = Watched(watched.run.rerun())
            with self._ended_at_last(rerun):
                rerun.until(None, self._limit(), self.options.draw, closely=False)

            runs.append(rerun.finished())

        finding = judge(self._undisturbed()[1], runs)
        failed = next((run.state.error for run in reversed(runs) if run.state.error), None)
        remedy = hint_for(failed) or "" if failed is not None and scenario.fault in REMEDIED else ""

        return DrillResult(
            scenario=scenario,
            finding=finding,
            injected=text,
            remedy=remedy,
            runs=runs,
        )

    def _start(self, scenario: Scenario) -> Watched:
        """Start a fresh run for a drill."""
        undisturbed, _ = self._undisturbed()
        overrides = list(self.overrides)

        if scenario.fault is Fault.LOADER_STALLED:
            overrides.append(
                f"limits.hang={self._drilled_hang()}{' s' if self._drilled_hang() else ''}"
            )

        return Watched(
            undisturbed.run.rerun(overrides, fresh=True), by_events=undisturbed.reported_saves > 0
        )

    def _is_time(self, scenario: Scenario) -> Callable[[Watched], bool]:
        """Return a test for the moment of the fault: after some checkpoints, or most of the job."""
        last_step = self._undisturbed()[1].history.last_step
        ranks = self.plan.spec.resources.nodes * self.plan.processes

        def is_time(watched: Watched) -> bool:
            if len(watched.ranks()) < ranks:
                return False
            if watched.saves >= scenario.checkpoints:
                return True
            if last_step is not None:
                return watched.step >= INJECT_AT * last_step

            return watched.training_seconds >= INJECT_AT * self.training_seconds

        return is_time

    @contextmanager
    def _ended_at_last(self, watched: Watched) -> Iterator[None]:
        """Make sure that the run has ended afterwards."""
        try:
            yield
        finally:
            if not watched.state.has_ended:
                watched.abort()

    def _drilled_hang(self) -> int:
        """Return limits.hang for the drill of a stalled loader."""
        return min(self.plan.spec.limits.hang, DRILLED_HANG_SECONDS)

    def _limit(self) -> float:
        """Return the maximum seconds of any run of a drill."""
        waits = 2 * DRILLED_HANG_SECONDS + self.plan.target.grace_seconds
        return TIMES_REFERENCE * self.reference_seconds + EXTRA_SECONDS + waits

    def _facts(self) -> JobFacts:
        limits = self.plan.spec.limits
        return JobFacts(
            restarts=None if self.plan.spec.launcher == "none" else limits.restarts,
            retries=limits.retries,
            hang_seconds=limits.hang,
            drilled_hang_seconds=self._drilled_hang(),
            is_trainer=self.plan.spec.entrypoint is None,
            saves=self.reference is not None and self.reference.saves > 0,
            grace=grace_of(self.plan),
            never_loads=any(
                result.finding.began_anew and result.scenario.fault is not Fault.CHECKPOINT_TORN
                for result in self.results
            ),
        )


def _too_long(options: DrillOptions) -> UsageError:
    hint = (
        "make it short for a drill, such as --set args.epochs=1 or --set args.max-steps=50; or"
        " --timeout 1h"
    )
    limit = format_duration(options.timeout_seconds)
    return UsageError(
        f"the undisturbed job has not ended within {limit}, and was stopped", hint=hint
    )


def _why_not_injected(watched: Watched) -> str:
    if watched.overdue:
        return "it took several times as long as undisturbed until then, and was ended"
    return (
        f"it failed before, by itself: {explain(watched.state)}"
        if watched.state.state == "failed"
        else ""
    )


def _training_seconds(watched: Watched) -> float:
    """Return the seconds until the first rank ended."""
    begun = min(
        (event.time for event in watched.events if isinstance(event, RankStarted)), default=0.0
    )
    ended = min(
        (event.time for event in watched.events if isinstance(event, RankEnded)), default=begun
    )
    return max(0.0, ended - begun)


def _skipped(scenario: Scenario, why: str) -> DrillResult:
    return DrillResult(scenario=scenario, finding=Finding(verdict=Verdict.SKIPPED), injected=why)
