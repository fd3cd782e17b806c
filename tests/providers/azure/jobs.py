"""Shared parts of the fault tests: the job, the kinds of faults, the calls, and the submit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cloudtrain
from cloudtrain.submission.run import Run
from tests.fakes.azure.cloud import IMAGE, AzureCloud
from tests.fakes.azure.jobs import LOG_CONTAINER
from tests.fakes.azure.storage import Container
from tests.support.command_line import CommandLine

JOB: dict[str, Any] = {
    "name": "faulty",
    "entrypoint": "train.py",
    "image": IMAGE,
    "resources": {"nodes": 2},
    "limits": {"max_runtime": "1 h"},
}
ALWAYS = 200
"""More often than anybody asks."""

LOOKUP_CALLS = [
    ("arm", "GetWorkspace", 1),
    ("arm", "ListVmSizes", 1),
    ("arm", "ListUsages", 1),
    ("arm", "GetDatastore", 1),
    ("arm", "ListSecrets", 1),
    ("arm", "GetJob", 1),
    ("arm", "ListCodes", 1),
]
UPLOAD_CALLS = [
    ("arm", "StartPendingUpload", 1),
    ("blob", "HeadBlob", 1),
    ("blob", "PutBlob", 1),
    ("blob", "SetBlobMetadata", 1),
    ("arm", "PutCode", 1),
]
CREATE_CALLS = [("arm", "PutEnvironment", 1), ("arm", "PutJob", 1)]
FIRST_SUBMIT_CALLS = [*LOOKUP_CALLS, *UPLOAD_CALLS, *CREATE_CALLS]
"""The calls of the first submit of a source: service, operation, and which call of that name it is.
"""
REPEATED_SUBMIT_CALLS = [*LOOKUP_CALLS, ("arm", "GetCode", 1), *CREATE_CALLS]
"""Those of the next one."""


def submitted(run_id: str, data_dir: str | None = None, **more: Any) -> Run:
    return cloudtrain.submit(
        cloudtrain.plan(cloudtrain.load({**JOB, **more}), "azure", run_id=run_id, data_dir=data_dir)
    )


def exists(cloud: AzureCloud, run_id: str) -> bool:
    return run_id in cloud.service.jobs


def forget() -> None:
    """Forget the workspace and the tokens, as if another process continued."""
    from cloudtrain.providers.azure.sdk import credential

    reconnect()
    credential.cache_clear()


def reconnect() -> None:
    """Forget the workspace, as if another process continued with the same tokens."""
    from cloudtrain.providers.azure.client import workspace

    workspace.cache_clear()


def log_of(cloud: AzureCloud, run_id: str, node: int) -> tuple[Container, str]:
    """Return the place of a node's log; from now on the run history lists it."""
    job = cloud.service.jobs[run_id]
    file = f"user_logs/std_log_process_{node}.txt"
    blob = f"{job.log_folder}{file}"
    container = cloud.account.storage.create(LOG_CONTAINER)
    if container.properties(blob) is None:
        container.renew(blob)
    job.open_log(file, blob)
    return container, blob


def append_log(cloud: AzureCloud, run_id: str, node: int, *lines: str, end: str = "\n") -> None:
    """Append a node's output, as Azure ML stores it."""
    container, blob = log_of(cloud, run_id, node)
    with (container.folder / blob).open("ab") as file:
        file.write(
            "".join(f"{line}\n" for line in lines).encode().removesuffix(b"\n") + end.encode()
        )


def append_outcome(cloud: AzureCloud, run_id: str, node: int, outcome: str, **more: Any) -> None:
    """The last word of a node's launcher."""
    event = {
        "type": "node_ended",
        "time": 1.0,
        "node": node,
        "rank": -1,
        "seq": 1,
        "outcome": outcome,
        **more,
    }
    append_log(cloud, run_id, node, f"::cloudtrain:: {json.dumps(event)}")


def command_line_of(
    cloud: AzureCloud, tmp_path: Path, modules: tuple[str, ...] = ("warm_sdks",)
) -> CommandLine:
    """The real command line in the job's folder."""
    cli = CommandLine(tmp_path / "workspace", env=cloud.environment(), modules=modules)
    cli.write(job_yaml=json.dumps(JOB), train_py=f"print('never run', {str(tmp_path)!r})\n")
    return cli
