"""Start of a sweep: pack the source and build the image once, then start the driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.providers import Progress
from cloudtrain.providers.docker.images import resolve_image
from cloudtrain.runs.files import as_text
from cloudtrain.submission.context import pack_source
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.native import start_native
from cloudtrain.sweeps.sweep import Sweep

if TYPE_CHECKING:
    from cloudtrain.sweeps.planning import SweepPlan


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
        sweep = Sweep(start_native(plan, archive, image))
        sweep.start_driver()
        return sweep
    documents = {"spec.yaml": plan.job.spec_text, "plan.json": as_text(plan.job.to_json())}
    sweep = Sweep(SweepFolder.create(data_dir, plan.definition, documents))
    sweep.start_driver()
    return sweep
