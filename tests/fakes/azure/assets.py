"""Assets of jobs in a workspace: uploaded code, data, custom and curated environments."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.fakes.azure.account import PROVIDER, Account
from tests.fakes.azure.permissions import user_error
from tests.fakes.azure.recorded import form
from tests.fakes.azure.tokens import CLIENT
from tests.fakes.azure.wire import iso_date
from tests.fakes.messages import ServiceError

Resource = dict[str, Any]
NEWEST = "2025-01-01-preview"
_CURATED = (
    r"azureml://registries/azureml/environments/(?P<name>[^/]+)/(?:versions/(?P<version>[^/]+)|labels/(?P<label>[^/]+))",
    r"azureml:(?P<name>AzureML-[^:@]+)(?::(?P<version>[^:@]+)|@(?P<label>[^:@]+))",
)
"""Address of a curated environment: in the public registry, or in the short form that the service
expands.
"""


class Assets:
    """All versions of codes and environments. Versions are never changed once they are there."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._codes: dict[tuple[str, str], Resource] = {}
        self._environments: dict[tuple[str, str], Resource] = {}
        self._data: dict[tuple[str, str], Resource] = {}
        self.models: dict[tuple[str, str], Resource] = {}
        """Model assets, which tests put here."""
        self._lock = threading.RLock()
        for name, versions in account.curated.items():
            for version, image in versions.items():
                properties = {"environmentType": "Curated", "image": image, "osType": "Linux"}
                resource = self._resource("environments", name, version, properties, "2023-04-01")
                self._environments[name, version] = resource

    def code(self, arm_id: str) -> Path | None:
        """The folder with the files of a code, by its ARM id."""
        stored_code = self._find("codes", arm_id)
        with self._lock:
            resource = self._codes.get(stored_code) if stored_code else None
        if resource is None:
            return None
        container, _, path = (
            resource["properties"]["codeUri"].removeprefix(self._blobs).partition("/")
        )
        place = self.account.storage.container(container)
        return place.folder / path if place else None

    def image(self, environment: str) -> str | None:
        """Return the image of an environment, by its ARM id or by the address of a curated one."""
        for pattern in _CURATED:
            match = re.fullmatch(pattern, environment)
            if match:
                versions = self.account.curated.get(match["name"], {})
                version = (
                    [*versions][-1] if versions and match["label"] == "latest" else match["version"]
                )
                return versions.get(version or "")
        environment_version = self._find("environments", environment)
        with self._lock:
            resource = self._environments.get(environment_version) if environment_version else None
        return str(resource["properties"].get("image") or "") if resource else None

    def codes(self, name: str, digest: str | None) -> list[Resource]:
        """The codes with this hash, whatever their name: that is how a client finds what it has
        uploaded before.
        """
        with self._lock:
            return [
                code
                for key, code in self._codes.items()
                if (
                    key[0] == name
                    if digest is None
                    else code["properties"]["properties"].get("hash_sha256") == digest
                )
            ]

    def versions(self, kind: str, name: str) -> list[Resource]:
        """All versions of an environment, data or model asset, the newest first."""
        with self._lock:
            assets = reversed(self._of_kind(kind).items())
            return [asset for key, asset in assets if key[0] == name]

    def _of_kind(self, kind: str) -> dict[tuple[str, str], Resource]:
        return {
            "codes": self._codes,
            "environments": self._environments,
            "data": self._data,
            "models": self.models,
        }[kind]

    def get(self, kind: str, name: str, version: str) -> Resource:
        """One version. Refused when there is none."""
        with self._lock:
            resource = self._of_kind(kind).get((name, version))
        if resource is None:
            asset = kind.removesuffix("s").capitalize()
            raise user_error(f"{asset} container {name} with version {version} not found.", 404)
        return resource

    def begin_upload(self, name: str, version: str) -> Resource:
        """Create a container for new code, and give leave to write there."""
        container = self.account.storage.create(f"{name[:40].lower()}-{uuid4().hex[:8]}")
        uri = f"{self._blobs}{container.name}"
        credential = {
            "credentialType": "SAS",
            "sasUri": self.account.sas_url(container.name, permissions="rcwl"),
        }
        return {
            "blobReferenceForConsumption": {
                "blobUri": uri,
                "storageAccountArmId": self.account.part("storageAccount"),
                "credential": credential,
            },
            "pendingUploadId": str(uuid4()),
            "pendingUploadType": "None",
        }

    def put_code(
        self, name: str, version: str, body: Mapping[str, Any], api: str = NEWEST
    ) -> tuple[Resource, bool]:
        """Store a code, whose files must be there already; return it and whether it is new."""
        properties = body["properties"]
        uri = str(properties["codeUri"])
        container, _, path = uri.removeprefix(self._blobs).partition("/")
        place = self.account.storage.container(container)
        if not uri.startswith(self._blobs) or place is None or not place.names(path):
            raise user_error(f"There is nothing at the code's address {uri}.")
        is_new = (name, version) not in self._codes
        # The SDK sends the version of its hash as a number, and reads a text (as recorded).
        texts = {name: str(value) for name, value in properties.get("properties", {}).items()}
        values = {**properties, "properties": texts, "isAnonymous": False}
        return self._put("codes", self._codes, name, version, values, api), is_new

    def put_environment(
        self, name: str, version: str, body: Mapping[str, Any], api: str = NEWEST
    ) -> Resource:
        """Store an environment. This imitation runs an image and builds none."""
        properties = body["properties"]
        is_anonymous = bool(properties.get("isAnonymous"))
        values = {
            "condaFile": "",
            **properties,
            "stage": "Logged" if is_anonymous else "Development",
            "properties": {"azureml.labels": "" if is_anonymous else "latest"},
        }
        resource = self._put("environments", self._environments, name, version, values, api)
        if "build" in properties:
            resource["properties"].pop("image", None)
        return resource

    def put_data(
        self, name: str, version: str, body: Mapping[str, Any], api: str = NEWEST
    ) -> Resource:
        """Store a data asset, whose address becomes a long one; it need not exist."""
        properties = body["properties"]
        account = self.account
        scope = account.scope.replace("resourceGroups", "resourcegroups")
        scope = scope.replace(f"/providers/{PROVIDER}", "")
        uri = str(properties["dataUri"])
        uri = uri.replace("azureml://datastores/", f"azureml:/{scope}/datastores/")
        if properties["dataType"] == "uri_folder":
            uri = uri.rstrip("/") + "/"
        account.data[name, version] = uri
        values = {**properties, "dataUri": uri}
        resource = self._put("data", self._data, name, version, values, api)
        for key in ("lastModifiedBy", "lastModifiedByType"):
            resource["systemData"].pop(key, None)
        return resource

    def data_container(self, name: str, api: str) -> Resource:
        """Return what all versions of a data asset share. Refuse an unknown name."""
        versions = [version for key, version in self._data if key == name]
        if not versions:
            raise user_error(f"Data container {name} not found.", 404)
        resource = self._data[name, versions[-1]]
        values = {
            "latestVersion": versions[-1],
            "nextVersion": str(len([version for version in versions if version.isdigit()]) + 1),
            "dataType": resource["properties"]["dataType"],
        }
        return {
            "id": f"{self.account.scope}/data/{name}",
            "name": name,
            "type": f"{PROVIDER}/workspaces/data",
            "properties": form(r"/data/[^/?]+\?", api).filled(values),
            "systemData": resource["systemData"],
        }

    @property
    def _blobs(self) -> str:
        return f"{self.account.blob_url}/"

    def _put(
        self,
        kind: str,
        assets: dict[tuple[str, str], Resource],
        name: str,
        version: str,
        properties: Resource,
        api: str,
    ) -> Resource:
        with self._lock:
            before = assets.get((name, version))
            fixed = {key: value for key, value in properties.items() if key != "tags"}
            if before is not None and not fixed.items() <= before["properties"].items():
                raise ServiceError(
                    "UserError",
                    f"The {kind[:-1]} {name} with version {version} exists already.",
                    409,
                )
            resource = assets[name, version] = before or self._resource(
                kind, name, version, properties, api
            )
            return resource

    def _resource(
        self, kind: str, name: str, version: str, properties: Mapping[str, Any], api: str
    ) -> Resource:
        defaults = {"tags": {}, "isAnonymous": False, "isArchived": False}
        moment = iso_date(time.time())
        return {
            "id": f"{self.account.scope}/{kind}/{name}/versions/{version}",
            "name": version,
            "type": f"{PROVIDER}/workspaces/{kind}/versions",
            "properties": form(f"/{kind}/.*versions", api).filled({**defaults, **properties}),
            "systemData": {
                "createdAt": moment,
                "createdBy": CLIENT,
                "createdByType": "User",
                "lastModifiedAt": moment,
                "lastModifiedBy": CLIENT,
                "lastModifiedByType": "User",
            },
        }

    def _find(self, kind: str, arm_id: str) -> tuple[str, str] | None:
        pattern = (
            rf"{re.escape(self.account.scope)}/{kind}/(?P<name>[^/]+)/versions/(?P<version>[^/]+)"
        )
        match = re.fullmatch(pattern, arm_id, re.IGNORECASE)
        return (match["name"], match["version"]) if match else None
