"""A whole Azure on loopback: one workspace with its storage, behind one address with TLS; nothing
left when closed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.fakes.azure.account import CLUSTER_IDENTITY, DATASTORES, Account
from tests.fakes.azure.endpoint import Endpoint
from tests.fakes.azure.rbac import SCIENTIST, Assignment
from tests.fakes.azure.services import login_script
from tests.fakes.azure.storage import Container, Storage
from tests.fakes.azure.tokens import OBJECT_ID, Tokens, make_certificate
from tests.fakes.azure.wire import METADATA, MSI
from tests.fakes.azure.workspace import Workspace

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

    def environment(self) -> dict[str, str]:
        """Return the variables that a client needs; `clean` also removes other accounts' variables."""
        return {
            "CLOUDTRAIN_AZURE_RESOURCE_GROUP": self.account.resource_group,
            "CLOUDTRAIN_AZURE_WORKSPACE": self.account.workspace,
            "CLOUDTRAIN_AZURE_LOCATION": self.account.location,
            "PATH": f"{self._bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "AZURE_TOKEN_CREDENTIALS": "AzureCliCredential",
            "ARM_CLOUD_METADATA_URL": f"{self.endpoint.url}{METADATA}?api-version=2019-05-01",
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
