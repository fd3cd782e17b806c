"""Starts a sweep: its source is packed and its image built once, for all trials; then its driver
does the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.providers import Progress
from cloudtrain.runs.files import as_text
from cloudtrain.submission.context import pack_source
from cloudtrain.submission.images import resolve_image
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.native import start_native
from cloudtrain.sweeps.sweep import Sweep

if TYPE_CHECKING:
    from cloudtrain.sweeps.planning import SweepPlan


def start_sweep(
    plan: SweepPlan, *, progress: Progress | None = None, pushing: Progress | None = None
) -> Sweep:
    """Make the sweep's folder, pack its source, have its image built, and start its driver; returns
    at once.

    The first trial follows from what the driver finds. RunExists when its id is taken, and as
    `submit` does.
    """
    data_dir = Path(plan.job.context.data_dir)
    archive = pack_source(plan.job, progress)
    image = resolve_image(plan.job, pushing, None)
    if plan.definition.is_native:
        sweep = Sweep(start_native(plan, archive, image))
        sweep.start_driver()
        return sweep
    documents = {"spec.yaml": plan.job.spec_text, "plan.json": as_text(plan.job.to_json())}
    sweep = Sweep(SweepFolder.create(data_dir, plan.definition, documents))
    sweep.start_driver()
    return sweep
