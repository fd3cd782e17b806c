"""What the fault tests have in common: the job, the kinds of faults, and how a job is submitted."""

from __future__ import annotations

import json
from pathlib import Path

import cloudtrain
from cloudtrain.api.run import Run
from tests.fakes.aws.cloud import Cloud
from tests.fakes.faults import FaultKind
from tests.support.command_line import CommandLine

JOB = {
    "name": "faulty",
    "entrypoint": "train.py",
    "resources": {"nodes": 2},
    "limits": {"max_runtime": "1 h"},
}
TRANSIENT: tuple[FaultKind, ...] = ("throttle", "error", "lost", "refused_lost", "slow")
PERMANENT: tuple[FaultKind, ...] = ("expired", "denied")
SUBMIT_CALLS = range(3)
CALLS = [("s3", "PutObject", 1), ("s3", "PutObject", 2), ("sagemaker", "CreateTrainingJob", 1)]


def command_line_of(cloud: Cloud, tmp_path: Path) -> CommandLine:
    """The real command line in the job's folder."""
    cli = CommandLine(tmp_path / "workspace", env=cloud.environment(), modules=("warm_sdks",))
    cli.write(job_yaml=json.dumps(JOB), train_py="print('never run')\n")
    return cli


def submitted(run_id: str, data_dir: str | None = None) -> Run:
    return cloudtrain.submit(
        cloudtrain.plan(cloudtrain.load(JOB), "aws", run_id=run_id, data_dir=data_dir)
    )


def exists(cloud: Cloud, run_id: str) -> bool:
    return run_id in cloud.service.jobs
