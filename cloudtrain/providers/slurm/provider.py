"""Jobs on a Slurm cluster, from a machine that has its client and its file system."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from cloudtrain.providers import plugin
from cloudtrain.providers.slurm.checks import cluster_checks
from cloudtrain.providers.slurm.cost import estimate_of
from cloudtrain.providers.slurm.declaration import DECLARATION
from cloudtrain.providers.slurm.discover import discovered_runs
from cloudtrain.providers.slurm.rules import rule_issues
from cloudtrain.providers.slurm.script import (
    SlurmConfig,
    partition_of,
    request_document,
    sbatch,
    start_commands,
    time_limit,
)
from cloudtrain.providers.slurm.section import SlurmSection
from cloudtrain.providers.slurm.status import LOOK_SECONDS, job_status, jobs_of_run

UNUSED = ("resources.gpu", "resources.instance", "resources.disk", "checkpoints.uri")
"""Fields without effect on a cluster."""

LOG_PART = 4_000_000
"""Maximum bytes of a log that are read at once."""


class Slurm(plugin.BatchProvider):
    """A cluster whose sbatch and whose file system this machine has."""

    declaration = DECLARATION

    def target(
        self,
        settings: plugin.Settings,
        spec: plugin.JobSpec,
        *,
        rehearsal: bool = False,  # noqa: ARG002
    ) -> plugin.Target:
        section = spec.section(SlurmSection)
        partition = partition_of(spec)
        estimate, problems = estimate_of(spec, settings["stop_grace"])
        return plugin.Target(
            provider="slurm",
            where=f"partition {partition}" if partition else "the default partition",
            max_nodes=10_000,
            grace_seconds=settings["stop_grace"],
            unused=UNUSED,
            config=SlurmConfig(folder=section.folder),
            cost_estimate=estimate,
            problems=problems,
        )

    def rules(self, plan: plugin.Plan) -> list[plugin.Issue]:
        return [plan.located(issue) for issue in rule_issues(plan)]

    def checks(self, plan: plugin.Plan, *, starting: bool) -> list[plugin.Issue]:
        if not starting:
            return []

        issues = (check.issue() for check in cluster_checks(plan) if check.is_wrong)
        return [plan.located(issue) for issue in issues if issue]

    def checkup(self, plan: plugin.Plan) -> Iterator[plugin.Check]:
        return cluster_checks(plan)

    def poll_seconds(self, run: plugin.RunFolder) -> float:  # noqa: ARG002
        return 10.0  # a controller serves a whole site

    def render(
        self,
        plan: plugin.Plan,
        image: plugin.ResolvedImage | None = None,  # noqa: ARG002
    ) -> plugin.Request:
        job = replace(plugin.plain_job(plan), stop_after_seconds=time_limit(plan))
        return plugin.Request(provider="slurm", document=request_document(plan), job=job)

    def export(self, plan: plugin.Plan) -> plugin.Export:
        request = plan.request
        return plugin.Export(
            files=_files(request),
            archive="source.tar.gz",
            commands=start_commands(request.document),
        )

    def submit_job(self, run: plugin.RunFolder, request: plugin.Request, archive: Path) -> None:
        script = request.document["script"]
        sent = Path(request.document["folder"], "job.sbatch")
        if sent.exists() and plugin.read_regular_text(sent) != script:
            raise plugin.RunExists(f"{sent.parent} belongs to another job of this name")
        if self.job_status(run) is not None:
            return

        with TemporaryDirectory() as folder:
            shutil.copyfile(archive, Path(folder, "source.tar.gz"))
            for name, text in _files(request).items():
                Path(folder, name).write_text(text, encoding="utf-8")
            *steps, send = start_commands(request.document)
            for argv in steps:
                plugin.program_output(argv, folder=folder)

        sbatch(send)

    def job_status(self, run: plugin.RunFolder) -> plugin.JobStatus | None:
        return job_status(run.run_id, Path(self.job_folder(run)))

    def read_log(self, run: plugin.RunFolder, node: int, offset: int) -> bytes:
        path = Path(self.job_folder(run), f"node-{node}.log")
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(LOG_PART)
        except FileNotFoundError:
            return b""

    def stop_job(self, run: plugin.RunFolder) -> None:
        # No launcher of a waiting job sees a file: Slurm takes it out of the queue.
        folder = Path(self.job_folder(run))
        if folder.is_dir():
            (folder / "stop").touch()
        for job in jobs_of_run(run.run_id, folder):
            if job.state == "PENDING":
                argv = ["scancel", "--state=PENDING", job.number]
                plugin.program_output(argv, seconds=LOOK_SECONDS)

    def discover_runs(
        self,
        settings: plugin.Settings,
        run_id: str | None,
        known_runs: plugin.KnownRuns,  # noqa: ARG002
    ) -> list[plugin.DiscoveredRun]:
        return list(discovered_runs(settings, run_id))

    def job_folder(self, run: plugin.RunFolder) -> str:
        return f"{plugin.RunRecord(run).config(SlurmConfig).folder}/{run.run_id}"

    def checkpoints(self, run: plugin.RunFolder, state: plugin.RunState) -> str:  # noqa: ARG002
        return f"{self.job_folder(run)}/checkpoints"

    def download(self, run: plugin.RunFolder, name: str, file: IO[bytes]) -> None:
        folder = Path(self.job_folder(run), name)
        if folder.is_dir():
            plugin.program_output(["tar", "cz", "-C", str(folder), "."], out=file)


def _files(request: plugin.Request) -> dict[str, str]:
    return {
        "job.json": json.dumps(request.job.to_json()),
        "job.sbatch": request.document["script"],
    }


PROVIDER = Slurm
