"""Driver of drills: runs the job undisturbed, then each case on this machine, and judges them."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cloudtrain.api.drills.cases import (
    HANG_SECONDS,
    LOADER_STALLED,
    SIGTERM,
    Case,
    NotDrilled,
    advice,
    short_hang,
)
from cloudtrain.api.drills.verdict import EndedRun, Result, Trained, Verdict, judge, trained
from cloudtrain.api.drills.watched_run import Draw, WatchedRun
from cloudtrain.api.run import Run
from cloudtrain.api.submit import submit
from cloudtrain.diagnosis.rules import hint_for
from cloudtrain.errors import CloudtrainError, JobFailed, RefusedError, UsageError
from cloudtrain.planning.plan import Plan
from cloudtrain.runs.files import make_private_folder, storing
from cloudtrain.runs.state import explain
from cloudtrain.runs.store import RunStore
from cloudtrain.units import format_duration
from cloudtrain_wire.file_locks import acquire

MIN_SAVES = 4
"""Minimum number of checkpoints of a job; with fewer, drills save more often."""
DRILLED_SAVES = 8
"""Target number of checkpoints during a drill."""
INJECT_AT = 0.6
"""Share of a job without checkpoints that is done before the fault."""
EXTRA_SECONDS = 60.0
TIMES_REFERENCE = 4.0
"""Time limit of a run: a multiple of the undisturbed run, plus these seconds."""

LOCK = "drill.lock"
KEPT = (LOCK, "packages")
"""Entries of the folder that stay from drill to drill: installing packages takes minutes."""

AT_ITS_END = "nothing: the job was at its end; a longer one is needed, such as --set args.epochs=20"
SAVES_NOTHING = (
    "the program saves no checkpoint, so every run starts over: torch.save(state, …) into"
    " $CLOUDTRAIN_CHECKPOINT_DIR now and then, and load what is there at the start"
    " (docs/guides/spot.md)"
)
LEAVES_NOTHING = (
    "it is unknown whether it resumed from its checkpoint or started over: report its steps "
    "(cloudtrain_job.log_progress), or write what it has learnt into $CLOUDTRAIN_MODEL_DIR"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorecard:
    """Results of all drills of a job."""

    job: str
    folder: str
    """Data folder of its runs."""
    reference: EndedRun
    results: Sequence[Result]

    @property
    def is_fine(self) -> bool:
        """True if every drill ran and the job recovers or names the cause each time."""
        return all(result.verdict.is_fine for result in self.results)

    @property
    def change(self) -> list[str]:
        """Changes that do not depend on the drill."""
        if not self.reference.saves:
            return [SAVES_NOTHING]

        for result in self.results:
            if result.verdict is Verdict.NOT_COMPARED and result.steps_lost is None:
                return [LEAVES_NOTHING]

        return []

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "job": self.job,
            "ok": self.is_fine,
            "reference": {
                "run": self.reference.run,
                "seconds": round(self.reference.seconds, 1),
                "steps": max(self.reference.steps, default=None),
                "compared_by": self.reference.trained.by or None,
            },
            "drills": [result.to_json() for result in self.results],
            "change": self.change,
            "data_dir": self.folder,
        }


class Drill:
    """Drills of one job. `plan`: the job on this machine, in the drills' data folder."""

    def __init__(self, plan: Plan, *, tell: Callable[[str], None], draw: Draw) -> None:
        self.plan = plan
        self.undisturbed: Run | None = None
        """Undisturbed run, once it was started."""
        self._tell = tell
        self._draw = draw

    def run(self, cases: Sequence[Case], timeout_seconds: float) -> Scorecard:
        """Run the drills and return the scorecard. An interrupt ends the current run.

        `timeout_seconds`: maximum time of the undisturbed run. Raise JobFailed if it fails,
        UsageError if it takes longer.
        """
        run = Run(submit(self.plan))
        self.undisturbed = run
        reference = self._reference(run, timeout_seconds)
        overrides = self._save_more_often(reference)
        results = []

        for case in cases:
            try:
                result = self._drill(case, reference, run, overrides)
            except NotDrilled as reason:
                result = Result(drill=case.name, verdict=reason.verdict, injected=str(reason))

            results.append(result)
            self._tell(f"{case.name}: {result.verdict.value}")

        return Scorecard(
            job=self.plan.spec.name,
            folder=self.plan.context.data_dir,
            reference=reference,
            results=results,
        )

    def _reference(self, run: Run, timeout_seconds: float) -> EndedRun:
        with WatchedRun(run, self._draw) as watched:
            watched.until_end(timeout_seconds)

        if watched.is_overdue:
            limit = format_duration(timeout_seconds)
            hint = (
                "make it short for a drill, such as --set args.epochs=1 or --set args.max-steps=50;"
                " or --timeout 1h"
            )
            message = f"the undisturbed job has not ended within {limit}, and was stopped"
            raise UsageError(message, hint=hint)
        if watched.state.state != "succeeded":
            why = explain(watched.state)
            raise JobFailed(f"the job fails without any drill: {why}", hint=f"run {run.id}")

        reference = _ended(watched)
        self._tell(f"undisturbed: succeeded in {format_duration(reference.seconds)}")
        return reference

    def _save_more_often(self, reference: EndedRun) -> list[str]:
        """Return changes of the job that make it save often enough for drills."""
        is_trainer = self.plan.spec.entrypoint is None
        steps = max(reference.steps, default=0)
        if reference.saves >= MIN_SAVES:
            return []
        if is_trainer and steps:
            return [f"args.checkpoint-every-steps={math.ceil(steps / DRILLED_SAVES)}"]
        if is_trainer or reference.saves:
            return [f"checkpoints.every={max(1, int(reference.seconds / DRILLED_SAVES))} s"]

        return []

    def _drill(self, case: Case, reference: EndedRun, run: Run, overrides: Sequence[str]) -> Result:
        """Run the job with a fault, and again if it did not succeed. May raise NotDrilled."""
        self._require_sense(case, reference)
        if case is LOADER_STALLED:
            overrides = list(overrides) + short_hang(self.plan)

        again = run.rerun(overrides, fresh=True)
        seconds = self._limit(reference)
        with WatchedRun(again, self._draw, reports_saves=reference.reports_saves) as watched:
            if not watched.until(seconds, partial(self._is_time, case, reference)):
                raise NotDrilled(Verdict.NOT_INJECTED, _why_not_injected(watched))

            saved_before = watched.saved()
            injected = _inject(case, watched)
            watched.until_end(seconds)

        state = watched.state
        saved_at_stop = watched.saved() != saved_before
        if case.after_stop is not None and state.state == "stopped":
            injected += f", then {case.after_stop(watched)}"

        runs = [_ended(watched)]
        if state.state == "succeeded" and not state.restarts and case.kills:
            result = Result(drill=case.name, verdict=Verdict.NOT_INJECTED, runs=runs)
            result.injected = f"{injected}, too late"
            return result

        if state.state != "succeeded" and not watched.is_overdue:
            with WatchedRun(again.rerun(), self._draw) as rerun:
                rerun.until_end(seconds)
            runs.append(_ended(rerun))

        result = judge(case.name, reference, runs, injected)
        result.saved_at_stop = saved_at_stop or not reference.saves or case is not SIGTERM
        causes = [ended.state.error for ended in reversed(runs) if ended.state.error]
        if causes and case.has_remedy:
            result.remedy = hint_for(causes[0]) or ""

        result.change = advice(case, result, self.plan)
        return result

    def _require_sense(self, case: Case, reference: EndedRun) -> None:
        """Raise NotDrilled for a drill that makes no sense for the job."""
        if case.needs_checkpoint and not reference.saves:
            raise NotDrilled(Verdict.SKIPPED, "the job saves no checkpoint")
        if case is LOADER_STALLED and self.plan.spec.launcher == "none":
            why = "launcher: none cannot see that processes wait"
            raise NotDrilled(Verdict.SKIPPED, why)

    def _is_time(self, case: Case, reference: EndedRun, watched: WatchedRun) -> bool:
        """Return whether the fault is due: after some checkpoints, or most of the job."""
        if len(watched.ranks()) < self.plan.spec.resources.nodes * self.plan.processes:
            return False
        if watched.saves >= case.checkpoints:
            return True
        if reference.steps:
            return watched.step >= INJECT_AT * max(reference.steps)

        return watched.state.seconds(time.time()) >= INJECT_AT * reference.state.seconds(0)

    def _limit(self, reference: EndedRun) -> float:
        """Return the maximum seconds of any run of a drill."""
        waits = 2 * HANG_SECONDS + self.plan.target.grace_seconds
        return TIMES_REFERENCE * reference.seconds + EXTRA_SECONDS + waits


def _inject(case: Case, watched: WatchedRun) -> str:
    try:
        injected = case.inject(watched)
    except ProcessLookupError:
        raise NotDrilled(Verdict.NOT_INJECTED, AT_ITS_END) from None

    if not watched.step:
        return injected

    return f"{injected} after step {watched.step:g}"


def _ended(watched: WatchedRun) -> EndedRun:
    folder = watched.run.folder.path
    result = Trained()
    if watched.state.state == "succeeded":
        result = trained(folder, watched.state)

    return EndedRun(
        run=watched.run.id,
        state=watched.state,
        events=watched.events,
        trained=result,
        saves=watched.saves,
        reports_saves=watched.reported_saves > 0,
        is_overdue=watched.is_overdue,
    )


def _why_not_injected(watched: WatchedRun) -> str:
    if watched.is_overdue:
        return "nothing: it took several times as long as undisturbed until then, and was ended"
    if watched.state.state == "failed":
        return f"nothing: it failed before, by itself: {explain(watched.state)}"
    return AT_ITS_END


def drill_folder(data_dir: Path, job: str) -> Path:
    """Return the data folder of a job's drills."""
    return data_dir / "drills" / job


@contextmanager
def workplace(folder: Path) -> Iterator[None]:
    """Lock and empty the folder. Raise RefusedError during another drill; or StorageError."""
    with storing(folder):
        make_private_folder(folder)
        lock = acquire(folder / LOCK, wait=False)
        if lock is None:
            owner = (folder / LOCK).read_text(errors="replace")[:20]
            hint = f"wait for it, or end it: kill -INT {owner}"
            raise RefusedError(
                f"a drill of this job goes on already, in process {owner}", hint=hint
            )

    try:
        with storing(folder):
            os.ftruncate(lock.file, 0)
            os.pwrite(lock.file, str(os.getpid()).encode(), 0)
            _clear(folder)

        yield
    finally:
        lock.release()


def _clear(folder: Path) -> None:
    """End and remove the runs of an earlier drill."""
    store = RunStore(folder)
    for run_id in store.ids():
        with suppress(CloudtrainError), WatchedRun(Run(store.open(run_id))) as watched:
            watched.look()

    for entry in folder.iterdir():
        if entry.name in KEPT:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
