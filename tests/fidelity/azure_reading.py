"""Recorded answers of Azure ML, read by the client through the genuine SDK."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.providers.azure.client import Workspace, workspace
from cloudtrain.providers.shared.idempotent_create import Attempt
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.endpoint import Endpoint
from tests.fakes.azure.recorded import Exchange, exchanges
from tests.fakes.azure.wire import json_response
from tests.fakes.messages import Call, Request, Response

DOCUMENT = {
    "type": "command",
    "name": "any",
    "command": "true",
    "environment": "azureml:AzureML-acpt-pytorch-2.8-cuda12.6:12",
    "compute": "azureml:gpu-cluster",
}


def readable() -> list[Exchange]:
    """Return the exchanges whose answers the client reads.

    Left out are pipelines, jobs that ran on a user's machine, and sweeps in API versions of 2022,
    which azure-ai-ml 1.35 itself cannot read.
    """
    foreign = re.compile(r'"Pipeline"|"jobServiceType": "Local"')
    return [
        exchange
        for exchange in exchanges()
        if kind_of(exchange)
        and not foreign.search(json.dumps(exchange.response))
        and not ("2022" in exchange.path and "Sweep" in json.dumps(exchange.response))
    ]


def kind_of(exchange: Exchange) -> str:
    """Return the imitation's operation for an answer that the client reads; else empty."""
    path = exchange.path.partition("?")[0]
    if exchange.status == 400 and "/jobs/" in path:
        return "PutJob"
    if path.endswith("/jobs"):
        return "ListJobs"
    if re.search(r"/workspaces/\{ws\}/jobs/[^/]+$", path):
        return "GetJob"
    if exchange.method == "GET" and "/computes/" in path:
        return "GetCompute"
    if path.endswith("/workspaces/{ws}"):
        return "GetWorkspace"
    if exchange.method == "GET" and path.endswith("/datastores/workspaceblobstore"):
        return "GetDatastore"
    return ""


def check(cloud: AzureCloud, exchange: Exchange) -> None:
    """Answer the client's request with a recorded answer; check what the client makes of it."""
    account = cloud.account
    client = workspace(account.subscription, account.resource_group, account.workspace)
    body = exchange.response
    operation = kind_of(exchange)
    execute = Endpoint.execute

    def answer(self: Endpoint, request: Request, call: Call | None) -> Response:
        if call is None or call.operation != operation:
            return execute(self, request, call)
        status = 200 if exchange.status == 201 else exchange.status  # a PUT answers like a GET
        return json_response(status, _filled(body, cloud))

    with patch.object(Endpoint, "execute", answer):
        _READERS[operation](client, exchange)


def _filled(body: Any, cloud: AzureCloud) -> Any:
    account = cloud.account
    text = json.dumps(body).replace("{sub}", account.subscription)
    text = text.replace("{rg}", account.resource_group).replace("{ws}", account.workspace)
    return json.loads(text)


def _read_job(client: Workspace, exchange: Exchange) -> None:
    job = client.job("any")
    if exchange.status == 404:
        assert job is None
        return
    assert job is not None
    _same(job, exchange.response)


def _same(job: Any, resource: Any) -> None:
    properties = resource["properties"]
    assert (job.name, job.status) == (resource["name"], properties["status"])
    assert dict(job.tags) == properties["tags"]
    studio = properties["services"].get("Studio")
    assert bool(job.url) == (studio is not None)
    assert job.created > 0
    assert job.owner == resource["systemData"]["createdBy"]


def _read_jobs(client: Workspace, exchange: Exchange) -> None:
    resources = [
        resource
        for resource in exchange.response["value"]
        if resource["properties"]["jobType"] == "Command"
    ]
    jobs = list(client.jobs("t"))
    assert len(jobs) == len(resources)
    for job, resource in zip(jobs, resources, strict=True):
        _same(job, resource)


def _read_refusal(client: Workspace, exchange: Exchange) -> None:
    with pytest.raises(CloudError) as raised:
        client.create(DOCUMENT, Attempt(record=lambda _: None))
    recorded = exchange.response["error"]
    for message in (recorded["message"], *(item["message"] for item in recorded["details"])):
        assert message in str(raised.value)


def _read_compute(client: Workspace, exchange: Exchange) -> None:
    cluster = client.cluster("any")
    if exchange.status == 404:
        assert cluster is None
        return
    assert cluster is not None
    facts = exchange.response["properties"]["properties"]
    assert cluster.kind == "amlcompute"
    assert cluster.size == facts["vmSize"]
    assert cluster.max_nodes == facts["scaleSettings"]["maxNodeCount"]


def _read_workspace(client: Workspace, exchange: Exchange) -> None:
    vars(client).pop("location", None)
    assert client.location == exchange.response["location"]


def _read_datastore(client: Workspace, exchange: Exchange) -> None:
    name = f"datastore-{uuid4().hex}"  # the client keeps the containers that it has opened
    with patch("cloudtrain.providers.azure.client.BlobContainer") as opened:
        client.container(name)
    _, container, *_ = opened.call_args.args
    assert container == exchange.response["properties"]["containerName"]


_READERS = {
    "GetJob": _read_job,
    "ListJobs": _read_jobs,
    "PutJob": _read_refusal,
    "GetCompute": _read_compute,
    "GetWorkspace": _read_workspace,
    "GetDatastore": _read_datastore,
}
