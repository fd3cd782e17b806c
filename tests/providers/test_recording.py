"""Recorded exchanges keep the form of the services' answers, and nothing that identifies a user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import azure.core
import botocore
import pytest

from cloudtrain.providers.shared import recording as module
from cloudtrain.providers.shared.recording import Recording
from tests.fakes.azure.recorded import exchanges
from tests.fidelity import aws as observed
from tests.providers.sites import Site

ACCOUNT = "445566778899"
SUBSCRIPTION = "0f3a7c1e-12ab-4cde-9f00-a1b2c3d4e5f6"
SECRETS = (
    *(ACCOUNT, SUBSCRIPTION, "qwertwo-rg", "qwertwo-ws", "qwertwostore", "qwertwo-bucket"),
    *("zelda.kowalski", "Kowalski", "zelda@qwertwo.example", "QwertwoRole", "qwertwo-run"),
    *("hunter2", "AKIAIOSFODNN7QWERTWO", "wJalrXUtnFEMI/K7MDENG", "bPxRfiCYEXAMPLEKEY"),
    *("eyJhbGciOiJSUzI1NiJ9", "c2lnbmF0dXJl", "AbC%2FdEf%3D", "qwertwo.azurecr.io", "10.20.30.40"),
    *("patients_of_qwertwo", "sg-0a1b2c3d", "sk-qwertwo"),
)
URL = (
    f"https://management.azure.com/subscriptions/{SUBSCRIPTION}/resourceGroups/qwertwo-rg/providers"
    "/Microsoft.MachineLearningServices/workspaces/qwertwo-ws/jobs/qwertwo-run?api-version=2025-01-01"
)
BLOB = "https://qwertwostore.blob.core.windows.net:443/c/d?sv=2024-08-04&sig=AbC%2FdEf%3D&se=2026"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/QwertwoRole"
BODY: dict[str, Any] = {
    "id": URL,
    "name": "qwertwo-run",
    "properties": {
        "status": "Running",
        "jobType": "Command",
        "properties": {"_azureml.ClusterName": "qwertwo-ws", "patients_of_qwertwo": "hunter2"},
        "tags": {"cloudtrain-owner": "zelda.kowalski", "Kowalski": "sk-qwertwo"},
        "environmentVariables": {"WANDB": "sk-qwertwo", "CLOUDTRAIN_JOB": '{"key": "hunter2"}'},
        "inputs": {"patients_of_qwertwo": {"uri": BLOB, "mode": "ReadOnlyMount"}},
        "credentials": {"accountKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY=="},
        "sasToken": "?sv=2024-08-04&sig=AbC%2FdEf%3D&se=2026",
        "command": "python train.py --password hunter2 --host 10.20.30.40",
    },
    "systemData": {"createdBy": "Zelda Kowalski", "createdAt": "2026-03-27T04:02:25.197531+00:00"},
    "error": {
        "code": "UserError",
        "message": "Kowalski may not read qwertwo.azurecr.io/a: hunter2",
    },
}
HEADERS = {
    "Location": BLOB,
    "Content-Type": "application/json",
    "Authorization": "Bearer eyJhbGciOiJSUzI1NiJ9.eyJ9.c2lnbmF0dXJl",
    "Set-Cookie": "c2lnbmF0dXJl",
}
REQUEST: dict[str, Any] = {
    "TrainingJobName": "qwertwo-run",
    "RoleArn": ROLE,
    "AlgorithmSpecification": {
        "TrainingImage": f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/qwertwo-repo:1"
    },
    "Environment": {"WANDB": "sk-qwertwo", "Kowalski": "hunter2"},
    "VpcConfig": {"SecurityGroupIds": ["sg-0a1b2c3d"]},
    "OutputDataConfig": {"S3OutputPath": "s3://qwertwo-bucket/patients_of_qwertwo"},
    "Tags": [{"Key": "cloudtrain-owner", "Value": "zelda@qwertwo.example"}],
}
ANSWER: dict[str, Any] = {
    "Account": ACCOUNT,
    "TrainingJobStatus": "Failed",
    "FailureReason": "AlgorithmError: Kowalski: hunter2 at 10.20.30.40, exit code: 137",
    "Message": (
        f"User: arn:aws:sts::{ACCOUNT}:assumed-role/QwertwoRole/zelda.kowalski is not authorized to"
        f" perform: sagemaker:CreateTrainingJob, key AKIAIOSFODNN7QWERTWO, {int(ACCOUNT)}"
    ),
    "Limit": "The account-level service limit 'ml.p4d.24xlarge for spot training job usage' is 0",
    "Count": int(ACCOUNT),
}
AZURE_WORDS = Path(azure.core.__file__).parents[1] / "ai/ml/_restclient/arm_ml_service/models"
AWS_WORDS = Path(botocore.__file__).parent / "data/sagemaker"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of recordings, in an environment with a key."""
    monkeypatch.setenv("CLOUDTRAIN_RECORD", str(tmp_path / "recorded"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    module.recording.cache_clear()
    yield tmp_path / "recorded"
    module.recording.cache_clear()


def rows(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.iterdir())
        for line in path.read_text().splitlines()
    ]


def survivors(folder: Path, secrets: tuple[str, ...] = SECRETS) -> list[str]:
    text = "".join(path.read_text() for path in folder.iterdir()).lower()
    return [secret for secret in secrets if secret.lower() in text]


def form(value: Any) -> Any:
    """Return the types of a JSON value."""
    if isinstance(value, dict):
        return sorted(map(str, map(form, value.values())))
    return [form(item) for item in value] if isinstance(value, list) else type(value).__name__


def test_no_planted_secret_survives(folder: Path) -> None:
    azure_file = Recording("azure", folder, AZURE_WORDS)
    text = json.dumps(BODY).encode()
    azure_file.exchange("PUT", URL, text, 400, text, HEADERS)
    listing = f'<?xml version="1.0"?><R ServiceEndpoint="{BLOB}"><Name>hunter2</Name></R>'
    azure_file.exchange("GET", BLOB, None, 200, listing.encode(), HEADERS)
    azure_file.exchange("PUT", BLOB, b"hunter2 as a file", 201, b"", HEADERS)
    Recording("aws", folder, AWS_WORDS).observation("describe_training_job", REQUEST, ANSWER)
    assert survivors(folder) == []

    aws_row, exchange, *_ = rows(folder)
    assert form(exchange["response"]) == form(BODY)
    assert form(aws_row["request"]) == form(REQUEST)
    assert exchange["response"]["properties"]["status"] == "Running"
    assert exchange["response"]["systemData"]["createdAt"] == BODY["systemData"]["createdAt"]
    assert exchange["path"].endswith("/workspaces/{ws}/jobs/{name}?api-version=2025-01-01")
    assert aws_row["value"]["FailureReason"].endswith(", exit code: 137")
    assert aws_row["value"]["Limit"] == ANSWER["Limit"]


def test_recorded_answers_are_read_like_the_services_own(folder: Path) -> None:
    recorded = Recording("azure", folder, AZURE_WORDS)
    for exchange in exchanges():
        body = json.dumps(exchange.response).encode()
        recorded.exchange(
            exchange.method, exchange.path, None, exchange.status, body, exchange.headers
        )
    for exchange, row in zip(exchanges(), rows(folder), strict=True):
        assert form(row["response"]) == form(exchange.response)

    errors = Recording("aws", folder, AWS_WORDS)
    for observation in observed.observations():
        errors.observation(observation.kind, None, observation.value)
    (path,) = folder.glob("aws-*")
    for observation in observed.observations(path):
        assert not observed.differences(observation)


@pytest.mark.usefixtures("site_folder")
def test_a_job_is_recorded_without_its_names(site: Site, folder: Path) -> None:
    site.reconnect()
    run = site.submit("zelda-kowalski", tags={"team": "qwertwo"}, env={"WANDB": "sk-qwertwo"})
    site.start_job(run.id)
    site.write_log(run.id, 0, "hunter2 is the password")
    site.finish_job(run.id)
    run.wait()
    site.reconnect()

    account = site.cloud.account
    names = (
        (account.account, site.cloud.bucket)
        if site.provider == "aws"
        else (account.subscription, account.resource_group, account.workspace)
    )
    assert survivors(folder, (*SECRETS, *names, "zelda-kowalski")) == []
    kinds = {row.get("kind") or row["method"] for row in rows(folder)}
    expected = {"aws": {"create_training_job", "describe_training_job"}, "azure": {"GET", "PUT"}}
    assert expected[site.provider] <= kinds
