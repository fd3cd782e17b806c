"""A job for tests, the client's operations in a workspace, and the actions that each requires."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cloudtrain
from cloudtrain.api.run import Run
from cloudtrain.errors import CloudError
from cloudtrain.providers import get_provider
from cloudtrain.providers.azure.account import workspace_of
from cloudtrain.providers.azure.client import workspace
from cloudtrain.providers.azure.rights import READ_BLOBS, WRITE_BLOBS
from cloudtrain.providers.discovered_run import KnownRuns
from cloudtrain.settings import load_settings
from tests.fakes.azure.account import WORKSPACES
from tests.fakes.azure.cloud import IMAGE, AzureCloud
from tests.fakes.azure.jobs import LOG_CONTAINER
from tests.fakes.azure.permissions import PULL, PUSH, check_push
from tests.fakes.azure.storage import Container
from tests.fakes.azure.sweeps import SweepJob
from tests.fakes.azure.tokens import OBJECT_ID
from tests.providers.faults import checks_for, fetch_model
from tests.support.azure_template import LOOKING, ON_WORKSPACE
from tests.support.command_line import CommandLine
from tests.support.native_sweeps import begin

JOB: dict[str, Any] = {
    "name": "faulty",
    "entrypoint": "train.py",
    "image": IMAGE,
    "resources": {"nodes": 2},
    "limits": {"max_runtime": "1 h"},
}
ALWAYS = 200
"""More often than anybody asks."""


def _calls(text: str) -> list[tuple[str, str, int]]:
    """Return first calls: service, operation, and which call of that name it is."""
    words = (word.split(":") for word in text.split())
    return [(service, operation, 1) for service, operation in words]


LOOKUP_CALLS = _calls(
    "arm:GetWorkspace arm:ListVmSizes arm:ListUsages arm:GetDatastore arm:ListSecrets arm:GetJob"
    " blob:PutBlob arm:ListCodes"
)
UPLOAD_CALLS = [
    *_calls("arm:StartPendingUpload blob:HeadBlob"),
    ("blob", "PutBlob", 2),
    ("blob", "PutBlob", 3),
    *_calls("blob:SetBlobMetadata arm:PutCode"),
]
CREATE_CALLS = _calls("arm:PutEnvironment arm:PutJob")
SUBMIT_CALLS = [*LOOKUP_CALLS, *UPLOAD_CALLS, *CREATE_CALLS]
"""The calls of a submit: its source is always sent."""


def submitted(run_id: str, data_dir: str | None = None, **more: Any) -> Run:
    return cloudtrain.submit(
        cloudtrain.plan(cloudtrain.load({**JOB, **more}), "azure", run_id=run_id, data_dir=data_dir)
    )


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


def prepare_stop(cloud: AzureCloud, run_id: str) -> None:
    """Have a job run whose nodes have said their last words already: a stop need not wait."""
    for node in range(2):
        append_outcome(cloud, run_id, node, "stopped")
    cloud.service.jobs[run_id].enter("Running")


def command_line_of(
    cloud: AzureCloud, tmp_path: Path, modules: tuple[str, ...] = ("warm_sdks",)
) -> CommandLine:
    """The real command line in the job's folder."""
    cli = CommandLine(tmp_path / "workspace", env=cloud.environment(), modules=modules)
    cli.write(job_yaml=json.dumps(JOB), train_py=f"print('never run', {str(tmp_path)!r})\n")
    return cli


SMALL: dict[str, Any] = {**JOB, "resources": {"nodes": 2, "gpus": 0}}
"""A job for the cluster of the template."""


class Operation(NamedTuple):
    """One thing that the client does."""

    needs: set[str]
    do: Callable[[AzureCloud, Run], object]
    silent: frozenset[str] = frozenset()
    """Optional actions, skipped if they are denied."""


def submit(cloud: AzureCloud, run: Run, **more: Any) -> Run:
    """A source that is new to the workspace."""
    name = f"again-{time.time_ns()}"
    Path("train.py").write_text(f"print({name!r})\n")
    return cloudtrain.submit(
        cloudtrain.plan(cloudtrain.load({**SMALL, **more}), "azure", run_id=name)
    )


def submit_with_data(cloud: AzureCloud, run: Run) -> None:
    Path("data.txt").write_text(str(time.time_ns()))
    submit(cloud, run, inputs={"data": "data.txt"})


def submit_newest(cloud: AzureCloud, run: Run) -> None:
    """In the newest version of an environment that somebody has registered."""
    cloud.service.assets.put_environment("mine", "1", {"properties": {"image": IMAGE}})
    submit(cloud, run, image="azureml:mine@latest")


def sweep(cloud: AzureCloud, run: Run) -> None:
    """Sweep a source that is new to the workspace."""
    name = f"s-{time.time_ns()}"
    Path("train.py").write_text(f"print({name!r})\n")
    section = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": [1, 2]},
        "method": "grid",
    }
    job = cloudtrain.load({**SMALL, "args": {"x": 1}, "sweep": section})
    begin(cloudtrain.plan(job, "azure", run_id=name))


def follow_sweep(cloud: AzureCloud, run: Run) -> None:
    """Follow an existing sweep with the job as its trial."""
    of_nobody: dict[str, Any] = {
        "samplingAlgorithm": {"samplingAlgorithmType": "Grid"},
        "searchSpace": {},
    }
    trial = {"command": "true", "environmentId": "e"}
    objective = {"primaryMetric": "loss", "goal": "minimize"}
    body = {"properties": {**of_nobody, "jobType": "Sweep", "trial": trial, "objective": objective}}
    cloud.service.sweeps["s"] = SweepJob(
        "s", body, cloud.account, lambda name, _: cloud.service.jobs[name]
    )
    cloud.service.sweeps["s"].trials.append(cloud.service.jobs[run.id])
    place = workspace(*workspace_of(load_settings(Path.cwd())))
    assert place.details("s")
    assert [place.parameters(trial.name) for trial in place.trials("s")] == [{}]


def read_logs(cloud: AzureCloud, run: Run) -> None:
    append_log(cloud, run.id, 0, "a line")
    run.status()
    assert [line.text for line in run.logs()] == ["a line"]


def find_runs(cloud: AzureCloud, run: Run) -> None:
    assert list(get_provider("azure").discover_runs(load_settings(Path.cwd()), None, KnownRuns()))


def stop(cloud: AzureCloud, run: Run) -> None:
    """Stop a running job whose nodes have already printed their last lines."""
    prepare_stop(cloud, run.id)
    run.stop()


def find_own_job(cloud: AzureCloud, run: Run) -> None:
    """As after a lost answer."""
    settings = load_settings(Path.cwd())
    assert workspace(*workspace_of(settings)).job(run.id)


def fetch(cloud: AzureCloud, run: Run) -> None:
    cloud.put(f"cloudtrain/runs/{run.id}/model/weights", b"weights")
    fetch_model("azure", run)


WORDS = {
    "properties": {
        "dataType": "uri_folder",
        "dataUri": "azureml://datastores/workspaceblobstore/paths/words/",
    }
}


MODEL = {
    "name": "1",
    "type": "Microsoft.MachineLearningServices/workspaces/models/versions",
    "properties": {
        "modelType": "custom_model",
        "modelUri": "azureml://datastores/workspaceblobstore/paths/net/",
    },
}


UNCHECKED = ("network", "policies", "capacity")
"""Checks that no call answers."""


def examine(cloud: AzureCloud, run: Run) -> None:
    """`doctor`, where what one may not look at is an error for once."""
    registry, vault = (
        cloud.account.part(part).rpartition("/")[2] for part in ("containerRegistry", "jobsVault")
    )
    more = {
        "image": f"{registry}.azurecr.io/train:1",
        "secrets": {"TOKEN": {"azure": f"keyvault:{vault}/token"}},
        "inputs": {
            "words": {"azure": "azureml:words:1"},
            "net": {"azure": "azureml:net:1", "type": "model"},
        },
    }
    cloud.put("words/a.txt")
    cloud.put("net/weights")
    cloud.service.assets.models["net", "1"] = MODEL
    cloud.service.assets.put_data("words", "1", WORDS)
    unseen = [
        f"{check.name}: {check.verdict}: {check.answer}"
        for check in checks_for("azure", {**SMALL, **more})
        if check.verdict != "found" and check.name not in UNCHECKED
    ]
    if unseen:
        raise CloudError("; ".join(unseen))


def push(cloud: AzureCloud, run: Run) -> None:
    check_push(cloud.account, OBJECT_ID)


SUBMITTING = {
    f"{WORKSPACES}/{operation}"
    for operation in (
        *(
            "read",
            "computes/read",
            "datastores/read",
            "codes/versions/read",
            "codes/versions/write",
        ),
        *("jobs/read", "jobs/write", "environments/versions/write", "environments/build/action"),
        *("environments/readSecrets/action", "environments/write", "metadata/artifacts/write"),
    )
}
REGISTERED = {*SUBMITTING, f"{WORKSPACES}/environments/versions/read"} - {
    f"{WORKSPACES}/environments/versions/write"
}
WORKSPACE = f"{WORKSPACES}/read"
FOLLOWING = {WORKSPACE, f"{WORKSPACES}/experiments/runs/read"}
DATASTORES = f"{WORKSPACES}/datastores/read"
MARKER = frozenset({WRITE_BLOBS})
"""For the marker of the run's folder, without which only `rm --remote` is refused later."""
OPERATIONS: Mapping[str, Operation] = {
    "submit": Operation({*SUBMITTING, WRITE_BLOBS}, submit, MARKER),
    "submit with data": Operation({*SUBMITTING, READ_BLOBS, WRITE_BLOBS}, submit_with_data),
    "submit in a registered environment": Operation(
        {*REGISTERED, WRITE_BLOBS}, submit_newest, MARKER
    ),
    "sweep": Operation({*SUBMITTING, WRITE_BLOBS}, sweep, MARKER),
    "follow a sweep": Operation({*FOLLOWING, f"{WORKSPACES}/jobs/read"}, follow_sweep),
    "status": Operation(FOLLOWING, lambda _, run: run.status()),
    "logs": Operation(FOLLOWING, read_logs),
    "list": Operation({f"{WORKSPACES}/jobs/read"}, find_runs),
    "find one's own job": Operation({f"{WORKSPACES}/jobs/read"}, find_own_job),
    "fetch": Operation({DATASTORES, READ_BLOBS}, fetch),
    "doctor": Operation(
        {
            *(*LOOKING, *ON_WORKSPACE["data asset"], *ON_WORKSPACE["model"]),
            *(WORKSPACE, DATASTORES, f"{WORKSPACES}/computes/read", READ_BLOBS),
        },
        examine,
    ),
    "push an image": Operation({PULL, PUSH}, push),
    "stop": Operation(
        {*FOLLOWING, DATASTORES, READ_BLOBS, WRITE_BLOBS, f"{WORKSPACES}/jobs/cancel/action"}, stop
    ),
}
"""All that the client does with a submitter's rights."""
