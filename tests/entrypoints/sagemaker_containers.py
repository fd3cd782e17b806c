"""The folders of a SageMaker container, filled as the service fills /opt/ml."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

from cloudtrain_launcher.host import free_port
from tests.entrypoints.test_launcher import ENTRYPOINTS, document


def resources(
    here: str = "algo-1", hosts: tuple[str, ...] = ("algo-1",), **changes: Any
) -> dict[str, Any]:
    """resourceconfig.json as the service writes it."""
    group = {
        "instance_group_name": "homogeneousCluster",
        "instance_type": "ml.c5.large",
        "hosts": list(hosts),
    }
    return {
        "current_host": here,
        "current_instance_type": "ml.c5.large",
        "current_group_name": "homogeneousCluster",
        "hosts": list(hosts),
        "instance_groups": [group],
        "network_interface_name": "lo",
    } | changes


def container(base: Path, job: dict[str, Any] | None = None, **nodes: Any) -> dict[str, str]:
    """Fill the folder `base`; returns the variables of a rehearsal on this machine."""
    for folder in (
        "input/config",
        "input/data/cloudtrain-job",
        "model",
        "output/data",
        "checkpoints",
        "code",
    ):
        (base / folder).mkdir(parents=True, exist_ok=True)
    (base / "input/config/resourceconfig.json").write_text(json.dumps(resources(**nodes)))
    (base / "input/config/hyperparameters.json").write_text("{}")
    (base / "input/data/cloudtrain-job/job.json").write_text(json.dumps(document(**(job or {}))))
    return {
        "SAGEMAKER_BASE_DIR": str(base),
        "CLOUDTRAIN_PLATFORM": "sagemaker",
        "CLOUDTRAIN_MASTER_ADDR": "127.0.0.1",
        "CLOUDTRAIN_MASTER_PORT": str(free_port()),
        "CLOUDTRAIN_NODE_ADDR": "127.0.0.1",
        "TRAINING_JOB_NAME": "job-1",
        "TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/job-1",
    }


def clean(**variables: str) -> dict[str, str]:
    """The environment of this process without variables of a job around it, and with `variables`."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("CLOUDTRAIN_", "PET_", "AWS_"))
    }
    return inherited | variables


def put_source(base: Path, **files: str) -> None:
    """Fill the source channel with these files and the launcher."""
    channel = base / "input/data/cloudtrain-source"
    channel.mkdir(parents=True, exist_ok=True)
    with tarfile.open(channel / "source.tar.gz", "w:gz") as tar:
        for path in sorted(ENTRYPOINTS.rglob("*.py")):
            tar.add(path, f".cloudtrain/{path.relative_to(ENTRYPOINTS).as_posix()}")
        for name, text in files.items():
            member = tarfile.TarInfo(f"{name}.py")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
