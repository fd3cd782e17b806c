"""What the fault tests have in common: the job, the kinds of faults, and how a job is submitted."""

from __future__ import annotations

import cloudtrain
from cloudtrain.api.run import Run
from tests.fakes.aws.cloud import Cloud
from tests.fakes.faults import FaultKind

JOB = {"name": "faulty", "entrypoint": "train.py", "resources": {"nodes": 2}, "limits": {"max_runtime": "1 h"}}
TRANSIENT: tuple[FaultKind, ...] = ("throttle", "error", "lost", "refused_lost", "slow")
PERMANENT: tuple[FaultKind, ...] = ("expired", "denied")
SUBMIT_CALLS = range(3)
CALLS = [("s3", "PutObject", 1), ("s3", "PutObject", 2), ("sagemaker", "CreateTrainingJob", 1)]


def submitted(run_id: str) -> Run:
    return cloudtrain.submit(cloudtrain.plan(cloudtrain.load(JOB), "aws", run_id=run_id))


def exists(cloud: Cloud, run_id: str) -> bool:
    return run_id in cloud.service.jobs
