"""A whole Azure on loopback: one workspace with its storage, behind one address with TLS; nothing
left when closed.
"""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.fakes.azure.account import CLUSTER_IDENTITY, DATASTORES, Account
from tests.fakes.azure.endpoint import Endpoint, login_script
from tests.fakes.azure.rights import SCIENTIST, Assignment
from tests.fakes.azure.storage import Container, Storage
from tests.fakes.azure.tokens import OBJECT_ID, Tokens, make_certificate
from tests.fakes.azure.wire import METADATA, MSI
from tests.fakes.azure.workspace import Workspace
from tests.fakes.messages import raise_mistakes
from tests.support.waiting import eventually

IMAGE = "127.0.0.1:1/loopback/train:1"
"""In a registry that is out of reach here, which must not prevent a submit."""


class AzureCloud:
    """One workspace in one subscription, without jobs. `settings`: of
    `tests.fakes.azure.account.Account`.
    """

    def __init__(self, **settings: Any) -> None:
        folder = Path(tempfile.mkdtemp(prefix="loopback-azure-"))
        self.account = Account(
            folder=folder, storage=Storage(folder / "blobs"), tokens=Tokens(), **settings
        )
        """Settings that tests may change while it runs: computes, quotas, capacity, images,
        secrets, phase duration.
        """
        for name in DATASTORES.values():
            self.account.storage.create(name)
        self._certificate, tls = make_certificate(folder)
        # The workspace publishes its address: first the port, then the rest.
        self.service = Workspace(self.account)
        scientist = Assignment(principal=OBJECT_ID, role=SCIENTIST, scope=self.account.scope)
        self.account.access.assignments.append(scientist)
        self.endpoint = Endpoint(self.account, self.service, tls)
        self.account.url = self.endpoint.url
        self.account.env = {
            "MSI_ENDPOINT": f"{self.endpoint.url}{MSI}",
            "MSI_SECRET": self.account.machine_secret(CLUSTER_IDENTITY),
            "DEFAULT_IDENTITY_CLIENT_ID": str(uuid.uuid4()),
            "SSL_CERT_FILE": str(self._certificate),
            **self.account.env,
        }
        self.container = next(iter(DATASTORES.values()))
        self.image = IMAGE
        self.vault = self.endpoint.url
        self._bin = folder / "bin"
        self._bin.mkdir()
        (self._bin / "az").write_text(login_script(self.account))
        (self._bin / "az").chmod(0o755)
        self.endpoint.start()

    def __enter__(self) -> AzureCloud:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            raise_mistakes(self.account.unexpected_errors)

    def environment(self) -> dict[str, str]:
        """Return the variables that a client needs; `clean` also removes other accounts' variables."""
        return {
            "CLOUDTRAIN_AZURE_RESOURCE_GROUP": self.account.resource_group,
            "CLOUDTRAIN_AZURE_WORKSPACE": self.account.workspace,
            "CLOUDTRAIN_AZURE_LOCATION": self.account.location,
            "PATH": f"{self._bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "AZURE_TOKEN_CREDENTIALS": "AzureCliCredential",
            "ARM_CLOUD_METADATA_URL": f"{self.endpoint.url}{METADATA}?api-version=2019-05-01",
            "REGISTRY_DISCOVERY_ENDPOINT_URL": f"{self.endpoint.url}/",
            "REQUESTS_CA_BUNDLE": str(self._certificate),
            "SSL_CERT_FILE": str(self._certificate),
            "CLOUDTRAIN_AZURE_SUBSCRIPTION": self.account.subscription,
            "CLOUDTRAIN_AZURE_POLL": "0.1",
        }

    def clean(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return an environment for a client process: only the variables of this account."""
        strange = ("AZURE_", "ARM_", "AZUREML_", "MSI_", "IDENTITY_")
        return {
            key: value for key, value in environ.items() if not key.startswith(strange)
        } | self.environment()

    def log_out(self, *, and_in: bool = False) -> None:
        """Make `az` report that it is logged out; or logged in again."""
        mark = self._bin / "logged-out"
        mark.unlink(missing_ok=True)
        if not and_in:
            mark.touch()

    def blobs(self, prefix: str = "") -> dict[str, bytes]:
        """Everything in the container of workspaceblobstore below a prefix."""
        contents = ((name, self._blobstore.read(name)) for name in self._blobstore.names(prefix))
        return {name: content for name, content in contents if content is not None}

    def put(self, key: str, content: bytes = b"") -> None:
        """One blob into that container."""
        self._blobstore.write(key, content)

    def close(self) -> None:
        """End all jobs, kill all their processes, close the port, leave no file."""
        self.service.close()
        self.endpoint.close()
        shutil.rmtree(self.account.folder, ignore_errors=True)

    @property
    def _blobstore(self) -> Container:
        return self.account.storage.create(self.container)


# Makes Azure's genuine clients cheap to call hundreds of times in one process, with unchanged
# requests.


@contextmanager
def cheap_clients() -> Iterator[None]:
    """Inside, all clients share their connections, and ask once what cloud this is; there is no
    proxy.
    """
    from azure.ai.ml import _azure_environments
    from requests.adapters import HTTPAdapter
    from urllib3 import PoolManager

    connections = PoolManager()

    def share(adapter: HTTPAdapter, *_: object, **__: object) -> None:
        adapter.poolmanager = connections

    def no_proxies(*_: object, **__: object) -> dict[str, str]:
        return {}

    clouds: Any = _azure_environments._get_clouds_by_metadata_url
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HTTPAdapter, "init_poolmanager", share)
        patch.setattr(HTTPAdapter, "close", lambda _: None)
        patch.setattr("requests.sessions.get_environ_proxies", no_proxies)
        patch.setattr(_azure_environments, "_get_clouds_by_metadata_url", cache(clouds))
        # It reads the source of each frame of the stack, for warnings that nobody sees here.
        patch.setattr(
            "azure.ai.ml._utils._experimental._should_skip_warning", lambda: True, raising=False
        )
        yield
    connections.clear()


# Jobs for the imitation's own tests, the genuine client that submits them, and how to wait for what
# they do.

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
    """Return the messages of an error of Azure Resource Manager, and of its details."""
    error = answer.get("error") or {}
    messages = [error.get("message", ""), *(item["message"] for item in error.get("details", ()))]
    return " ".join(messages)


# Fixtures that other test folders take over: `from tests.fakes.azure.cloud import azure,
# azure_account`.


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureCloud]:
    """Provide a workspace for all tests of a module; closing it reports its own mistakes."""
    client = sys.modules.get("cloudtrain.providers.azure.client")
    if client is not None:
        client.workspace.cache_clear()  # it holds a connection to the cloud of another module

    with AzureCloud() as made:
        yield made


@pytest.fixture
def azure_account(azure: AzureCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureCloud]:
    """The same workspace for one test: no faults, no calls, no lacks, and this process is its
    client.
    """
    # The SDK writes AZUREML_CURRENT_CLOUD itself: what is unset here is unset again afterwards.
    monkeypatch.setenv("AZUREML_CURRENT_CLOUD", "")
    for name in [
        name
        for name in os.environ
        if name.startswith(("AZURE_", "ARM_", "AZUREML_", "MSI_", "IDENTITY_"))
    ]:
        monkeypatch.delenv(name)
    for name, value in azure.environment().items():
        monkeypatch.setenv(name, value)
    azure.endpoint.reset()
    account = azure.account
    state = (
        "computes",
        "quotas",
        "vm_sizes",
        "secrets",
        "access",
        "rights",
    )
    plain = (
        *("user", "phase_seconds", "blob_page"),
        *("datastore_credentials", "workspace_state", "takes_keys", "secret_seconds"),
        *("home_tenant", "policy", "is_private", "storage_is_private", "throttled", "retry_after"),
    )
    before = {name: copy.deepcopy(getattr(account, name)) for name in (*state, *plain)}
    yield azure
    raise_mistakes(account.unexpected_errors)
    azure.endpoint.reset()
    azure.log_out(and_in=True)
    for name, value in before.items():
        setattr(account, name, value)


@pytest.fixture
def still(azure_account: AzureCloud) -> AzureCloud:
    """The same workspace, with jobs that never get beyond their first phase."""
    azure_account.account.phase_seconds = 3600
    return azure_account


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure's clients of this process try again at once; by themselves they wait 15 s before
    storage's second try.
    """
    for place in (
        "azure.core.pipeline.policies.RetryPolicy.get_backoff_time",
        "azure.storage.blob._shared.policies.ExponentialRetry.get_backoff_time",
    ):
        monkeypatch.setattr(place, lambda *_: 0.01)
