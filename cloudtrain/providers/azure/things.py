"""Things of a command job: its workspace, machines, identity, environment, data and secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.checkup import NotCheckedError, Thing
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.request import input_name

if TYPE_CHECKING:
    from cloudtrain.errors import Keys
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.providers.azure.sdk import ResourceManager

Resource = Mapping[str, Any]

ML_VERSION = "2024-10-01"
"""Version of the API of workspaces."""
RESOURCES_VERSION = "2021-04-01"

STORAGE = "Microsoft.Storage/storageAccounts"
REGISTRY = "Microsoft.ContainerRegistry/registries"
VAULT = "Microsoft.KeyVault/vaults"

VERSIONS = {STORAGE: "2024-01-01", REGISTRY: "2023-07-01", VAULT: "2024-11-01"}

_OWN_DATASTORE = re.compile("azureml://datastores/([^/]+)/paths/")


class Identity(NamedTuple):
    """Whom calls come from: the caller, or a managed identity."""

    words: str
    """`you`, `the cluster gpu-cluster`."""
    principal: str
    """Object id; empty if there is none."""


class Things:
    """The things in the request of a plan, whom to ask for them, and the answers until now."""

    def __init__(self, cloud: Workspace, arm: ResourceManager, plan: Plan) -> None:
        config = plan.target.config_as(AzureConfig)
        group = f"/subscriptions/{config.subscription}/resourceGroups/{config.resource_group}"
        self.cloud = cloud
        self.arm = arm
        self.plan = plan
        self.config = config
        self.scope = (
            f"{group}/providers/Microsoft.MachineLearningServices/workspaces/{config.workspace}"
        )
        """Id of the workspace in Azure Resource Manager."""
        self.document: Mapping[str, Any] = plan.request.document
        self.caller = Identity("you", "")
        self.workspace: Resource = {}
        """Document of the workspace in ARM."""
        self.date = ""
        """Header `Date` of its answer."""
        self.compute: Resource = {}
        """Document of the cluster; empty for serverless machines, and for one that was not found."""
        self.job: Identity | None = None
        """Identity that reads and writes data; None if it is missing."""
        self.read: set[str] = set()
        """Datastores of inputs."""
        self.uses = {"always"}
        """Uses in the list of rights of people that the job has."""

    def all(self) -> Iterator[Thing]:
        """Yield each thing of the request; datastores of inputs once these were looked up."""
        spec = self.plan.spec
        place = ("azure", "workspace")
        if compute := self.config.compute:
            yield Thing("compute", compute, ("azure", "compute"))
        else:
            sizes = " or ".join(self.plan.target.instances)
            yield Thing("quota", f"{spec.machines} x {sizes}", spec.machines_at)

        yield Thing("identity", setting=("azure", "identity"))
        yield Thing("environment", setting=("image",))
        fields = {input_name(name): name for name in spec.inputs}
        for name, item in (self.document.get("inputs") or {}).items():
            if "path" in item and fields.get(name) not in self.plan.context.uploads:
                setting: Keys = ("inputs", fields[name]) if name in fields else ()
                yield Thing("input", item["path"], setting, source=item)

        written = _OWN_DATASTORE.findall(json.dumps(self.document.get("outputs")))
        for name in dict.fromkeys([self.config.datastore, *written]):
            yield Thing("written datastore", name, self._setting(name), "datastore")
        for name in sorted(self.read - {self.config.datastore, *written}):
            yield Thing("datastore", name, ("inputs",))

        for variable, address in (self.plan.request.job.secrets or {}).items():
            yield Thing("secret", address, ("secrets", variable))

        yield Thing("your rights", setting=place)

    def _setting(self, datastore: str) -> Keys:
        if f"/datastores/{datastore}/" in (self.plan.spec.checkpoints.uri or ""):
            return ("checkpoints", "uri")

        return ("azure", "datastore")

    def resource(self, kind: str, name: str, known_id: object = "") -> Resource:
        """Return a resource beside the workspace: by this id, or one of the subscription."""
        ids = [str(known_id)]
        if not ids[0].lower().endswith(f"{kind}/{name}".lower()):
            path = f"/subscriptions/{self.config.subscription}/resources"
            query = f"resourceType eq '{kind}' and name eq '{name}'"
            ids = [item["id"] for item in self.arm.listed(path, RESOURCES_VERSION, filter=query)]
        if not ids:
            raise NotCheckedError(f"{name} is not in this subscription, as far as you may see")

        return {**self.arm.get(ids[0], VERSIONS[kind]).document, "id": ids[0]}

    def part(self, path: str) -> Resource:
        """Return a part of the workspace, such as `computes/cpu`."""
        return self.arm.get(f"{self.scope}/{path}", ML_VERSION).document
