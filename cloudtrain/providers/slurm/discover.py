"""Runs of this user that another machine, or another folder of runs, has started."""

from __future__ import annotations

import time
from collections.abc import Iterator

from cloudtrain.providers import plugin
from cloudtrain.providers.slurm.declaration import DECLARATION
from cloudtrain.providers.slurm.script import SlurmConfig
from cloudtrain.providers.slurm.status import slurm_jobs


def discovered_runs(
    settings: plugin.Settings, run_id: str | None
) -> Iterator[plugin.DiscoveredRun]:
    """Yield the jobs of cloudtrain that the controller still knows, one for each run."""
    names = set()
    for job in slurm_jobs(run_id or ""):
        name = job.tags.get("run", "")
        if not name or name in names or name != job.folder.name:
            continue

        names.add(name)
        yield plugin.DiscoveredRun(
            run_id=name,
            config=SlurmConfig(folder=str(job.folder.parent)),
            instance="",
            grace_seconds=settings["stop_grace"],
            request={"folder": str(job.folder)},
            submitting=plugin.adopted(
                DECLARATION,
                job.tags,
                title=job.tags["name"],
                owner=job.tags.get("owner", ""),
                nodes=int(job.nodes),
                created=float(job.tags["planned"]),
            ),
            ref={"name": name},
            updates=[plugin.Phase(time=time.time(), phase=job.phase)],
        )
