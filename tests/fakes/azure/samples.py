"""Jobs for the imitation's own tests, the genuine client that submits them, and how to wait for
what they do.
"""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fakes.azure.cloud import AzureCloud
from tests.support.waiting import eventually

CURATED = "azureml:AzureML-acpt-pytorch-2.8-cuda12.6@latest"
Document = dict[str, Any]


def client(cloud: AzureCloud, **names: str) -> Any:
    """The SDK's own client of the workspace, or of one with other names."""
    from azure.ai.ml import MLClient
    from azure.identity import DefaultAzureCredential

    account = cloud.account
    return MLClient(
        DefaultAzureCredential(),
        names.get("subscription", account.subscription),
        names.get("resource_group", account.resource_group),
        names.get("workspace", account.workspace),
        enable_telemetry=False,
        show_progress=False,
    )


def document(cloud: AzureCloud, name: str, folder: Path, **changes: Any) -> Document:
    """Return a command job that prints a line; its outputs lie below `out/NAME` in the blob store."""
    (folder / "code").mkdir(parents=True, exist_ok=True)
    (folder / "code" / "own.txt").write_text("own")
    cloud.put("train/part/a.txt", b"data")
    store = "azureml://datastores/workspaceblobstore/paths"
    return {
        "type": "command",
        "name": name,
        "display_name": name,
        "experiment_name": "loopback",
        "code": str(folder / "code"),
        "command": "echo ${{outputs.out}}",
        "environment": {"image": cloud.image},
        "compute": "azureml:gpu-cluster",
        "resources": {"instance_count": 1, "shm_size": "16g"},
        "distribution": {"type": "pytorch", "process_count_per_instance": 1},
        "inputs": {
            "train": {"type": "uri_folder", "mode": "ro_mount", "path": f"{store}/train/part/"}
        },
        "outputs": {
            "out": {"type": "uri_folder", "mode": "rw_mount", "path": f"{store}/out/{name}/"}
        },
        "environment_variables": {"NCCL_DEBUG": "WARN"},
        "limits": {"timeout": 60},
        "tags": {"cloudtrain-run": name, "team": "vision"},
        **changes,
    }


def call(
    cloud: AzureCloud, method: str, path: str, body: Any = None, token: str | None = None
) -> tuple[int, dict[str, Any]]:
    """Status and answer of one request, past every SDK; by default with the token of the account."""
    token = cloud.account.tokens.bearer(cloud.endpoint.url) if token is None else token
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{cloud.endpoint.url}{path}", content, headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def submit(ml: Any, job: Document) -> Any:
    """Return the SDK's request for a document, and the workspace's answer."""
    from azure.ai.ml import load_job

    return ml.jobs.create_or_update(load_job(io.StringIO(json.dumps(job))))


def ended(cloud: AzureCloud, name: str) -> str:
    """The status of a job when it is over."""
    job = cloud.service.jobs[name]
    eventually(lambda: job.has_ended)
    return job.status


def words(answer: Mapping[str, Any]) -> str:
    """Return the messages of an error of Azure Resource Manager, with those of its details."""
    error = answer.get("error") or {}
    messages = [error.get("message", ""), *(item["message"] for item in error.get("details", ()))]
    return " ".join(messages)
