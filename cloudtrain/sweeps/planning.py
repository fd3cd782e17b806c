"""Plan of a sweep: definition, job and maximum cost; and its start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloudtrain.api.context import pack_source, with_read_uploads
from cloudtrain.api.jobs import Job, plan
from cloudtrain.declaration import declaration_of
from cloudtrain.errors import UsageError
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.docker.images import resolve_image
from cloudtrain.providers.progress import Progress
from cloudtrain.runs.files import as_text
from cloudtrain.runs.folder import new_run_id
from cloudtrain.runs.store import SWEEPS
from cloudtrain.settings import load_settings
from cloudtrain.spec.load import override, spec_from_document
from cloudtrain.spec.sweep import EarlyStopping, default_rungs
from cloudtrain.spec.sweep import Sweep as Search
from cloudtrain.spec.varied_settings import REPORTED, VARIED
from cloudtrain.spec.yaml_document import parse_scalar
from cloudtrain.sweeps.definition import Caps, Definition
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.rules import billed, last_report
from cloudtrain.sweeps.sweep import Sweep
from cloudtrain_wire.rungs import rungs_of

_RANGE = re.compile(r"\s*[A-Za-z_]+\s*\(.*\)\s*", re.DOTALL)
DEFAULT_METRIC = "val_accuracy"
"""Metric that all built-in tasks of the shared trainer report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """Definition and job of a sweep before its first trial."""

    definition: Definition
    job: Plan
    """Job of all trials without their values; its run id is the sweep's."""

    @property
    def worst_usd(self) -> float | None:
        """Maximum cost of all trials; None without costs or with an unknown price."""
        return self.definition.worst_usd(self.definition.trials)

    @property
    def is_billed(self) -> bool:
        """True if its trials cost money."""
        return billed(self.job) is not None


def plan_sweep(
    job: Job,
    provider: str | None = None,
    *,
    as_: str | None = None,
    sweep_id: str | None = None,
    data_dir: str | None = None,
    progress: Progress | None = None,
    preview: bool = False,
) -> SweepPlan:
    """Plan a sweep without starting anything.

    Share a budget in money equally among the trials if the job limits neither cost nor time.
    `preview`: show placeholders for missing settings of the account. Raise UsageError for a job
    without `sweep`, SpecError as for any plan.
    """
    sweep = job.spec.sweep
    if sweep is None:
        hint = "add a section sweep, or vary a setting here: --set args.lr=1e-4,1e-3"
        raise UsageError(f"{job.document.name} leaves nothing to vary", hint=hint)

    if sweep_id is None:
        sweep_id = _new_sweep_id(job, provider, data_dir)

    job_plan = plan(
        job,
        provider,
        as_=as_,
        run_id=sweep_id,
        data_dir=data_dir,
        progress=progress,
        preview=preview,
    )
    limits = job.spec.limits
    if (
        billed(job_plan)
        and sweep.budget.max_cost
        and limits.max_cost is None
        and limits.max_runtime is None
    ):
        share = f"{sweep.budget.max_cost / sweep.trial_count:.2f} USD"
        spec, document = spec_from_document(
            override(job.document, [f"limits.max_cost={share}"]), job.folder
        )
        capped = Job(spec=spec, document=document, folder=job.folder)
        job_plan = plan(
            capped, provider, as_=as_, run_id=sweep_id, data_dir=data_dir, preview=preview
        )

    return planned(job_plan, sweep)


def planned(job_plan: Plan, sweep: Search) -> SweepPlan:
    """Return the plan of a sweep for the plan of its job, whose run id is the sweep's."""
    return SweepPlan(definition=_definition(job_plan, sweep, job_plan.run_id), job=job_plan)


def _new_sweep_id(job: Job, provider: str | None, data_dir: str | None) -> str:
    folder = Path(
        load_settings(job.folder, {"provider": provider, "data_dir": data_dir})["data_dir"]
    ).absolute()
    while True:
        sweep_id = new_run_id(folder, job.spec.name)
        if not (folder / SWEEPS / sweep_id).exists():
            return sweep_id


def _definition(job_plan: Plan, sweep: Search, sweep_id: str) -> Definition:
    stopping = sweep.stopping
    last = last_report(job_plan.spec, sweep)
    grace, eta = default_rungs(sweep.trial_count, last)

    if stopping is not None:
        grace = stopping.grace or grace
        eta = stopping.eta or eta

    estimate = billed(job_plan)
    sampler: Any = sweep.chosen_sampler
    budget = Caps(seconds=sweep.budget.max_time)
    trial_cap = Caps(seconds=job_plan.spec.limits.max_runtime)
    if estimate:
        budget = replace(budget, usd=sweep.budget.max_cost)
        trial_cap = replace(trial_cap, usd=estimate.worst_usd)

    definition = Definition(
        sweep_id=sweep_id,
        name=job_plan.spec.name,
        provider=job_plan.provider,
        as_=job_plan.target.provider if job_plan.is_rehearsal else "",
        engine=sweep.engine,
        metric=sweep.objective.metric,
        goal=sweep.objective.goal,
        space=sweep.space,
        sampler=sampler,
        seed=sweep.seed,
        ray_cpus=sweep.ray.cpus,
        ray_gpus=sweep.ray.gpus,
        target=sweep.objective.target,
        try_first=tuple(sweep.try_first),
        trials=sweep.trial_count,
        parallel=sweep.parallel,
        retries=sweep.retries,
        eta=eta,
        last_report=last,
        budget=budget,
        trial_cap=trial_cap,
    )
    if stopping is None:
        return definition

    return replace(
        definition,
        rungs=tuple(rungs_of(grace, eta, last)),
        promotes=sweep.engine != "ray" and _promotes(job_plan, stopping, last),
    )


def _promotes(job_plan: Plan, stopping: EarlyStopping, last: int | None) -> bool:
    """Return True if trials are promoted: if a start is cheap and there are checkpoints."""
    if stopping.promote != "auto":
        return stopping.promote == "always"
    is_here = not declaration_of(job_plan.provider).is_remote
    return is_here and last is not None and job_plan.spec.entrypoint is None


def start_sweep(
    plan: SweepPlan, *, progress: Progress | None = None, pushing: Progress | None = None
) -> Sweep:
    """Create the sweep's folder, pack its source, build its image, start its driver, and return.

    Raise RunExists if the id is taken, and errors as `submit` does.
    """
    data_dir = Path(plan.job.context.data_dir)
    archive = pack_source(plan.job, progress)
    image = resolve_image(plan.job, pushing, None)

    if plan.definition.is_native:
        from cloudtrain.sweeps.native import start_native  # few sweeps run in a cloud's service

        plan = replace(plan, job=with_read_uploads(plan.job, progress))
        sweep = Sweep(start_native(plan, archive, image))
        sweep.start_driver()
        return sweep

    documents = {"spec.yaml": plan.job.spec_text, "plan.json": as_text(plan.job.to_json())}
    sweep = Sweep(SweepFolder.create(data_dir, plan.definition, documents))
    sweep.start_driver()

    return sweep


def split_overrides(overrides: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Split overrides into the `space` of a sweep and ordinary overrides.

    `args.lr=1e-4,1e-3` is a choice, `args.lr=loguniform(1e-4, 1e-1)` a range. Text in quotes is
    one value, and so is a list in brackets. Overrides of the section, such as `sweep.space.lr=…`,
    are ordinary ones.
    """
    space: dict[str, Any] = {}
    ordinary: list[str] = []
    for word in overrides:
        path, equals, text = word.partition("=")
        key = path.strip()
        values = None
        if equals and key.partition(".")[0] in VARIED:
            values = _several(text)

        if values is None:
            ordinary.append(word)
        else:
            space[key] = values

    return space, tuple(ordinary)


def _several(text: str) -> str | list[Any] | None:
    """Return the dimension of a setting; None for one value."""
    if _RANGE.fullmatch(text):
        return text.strip()
    if "," not in text or text.strip()[:1] in ("[", "{", "'", '"') or "(" in text:
        return None

    values = parse_scalar(f"[{text}]")
    if not isinstance(values, list) or len(values) < 2:
        return None

    return values


def sweep_values(
    space: Mapping[str, Any], *, trials: int | None = None, objective: str = ""
) -> dict[str, Any]:
    """Return a section `sweep` over a space: a grid if all settings are lists without `trials`.

    `objective`: `val_accuracy:maximize`; a metric of the shared trainer needs no goal. Raise
    UsageError if it is invalid.
    """
    section: dict[str, Any] = {"objective": read_objective(objective), "space": dict(space)}
    has_choices = [isinstance(item, list) or "choice" in item for item in space.values()]
    if trials is None and all(has_choices):
        section["method"] = "grid"
        return section

    section["method"] = "bayesian"
    section["trials"] = 20 if trials is None else trials
    return section


def read_objective(text: str) -> dict[str, str]:
    """Return `{metric, goal}` of a text such as `val_accuracy:maximize`.

    The default is the accuracy of the shared trainer. Raise UsageError for another metric without a
    goal, or an unknown goal.
    """
    if ":" in text:
        metric, _, goal = text.rpartition(":")
    else:
        metric = text or DEFAULT_METRIC
        goal = ""

    goal = goal or REPORTED.get(metric, "")
    if not metric or goal not in ("minimize", "maximize"):
        message = f"{text!r} does not say whether less or more of it is better"
        raise UsageError(message, hint="--objective val_accuracy:maximize, or val_loss:minimize")

    return {"metric": metric, "goal": goal}
