"""One job of the workspace: its request, its statuses, its entry in the run history, its tracking."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.fakes.azure.account import PROVIDER, Account
from tests.fakes.azure.recorded import form
from tests.fakes.azure.tokens import CLIENT, OBJECT_ID
from tests.fakes.azure.wire import iso_date

ENDED = ("Completed", "Failed", "Canceled")
LOG_CONTAINER = "azureml"
_LOOSE = ("tags", "displayName", "isArchived")
"""Fields of a job that may be changed while it lives."""
_ARTIFACTS = "azureml://datastores/workspaceartifactstore"
_OF_SWEEPS = ("samplingAlgorithm", "limits", "trial")


class Job:
    """A job from the moment its creation was answered. Every method may be called from any thread."""

    def __init__(
        self, name: str, body: Mapping[str, Any], *, vm_size: str, low_priority: bool
    ) -> None:
        self.name = name
        self.vm_size = vm_size
        self.low_priority = low_priority
        self.properties: dict[str, Any] = copy.deepcopy(dict(body["properties"]))
        self.created = time.time()
        self.owner = CLIENT
        self.cancel_asked = threading.Event()
        self.woken = threading.Event()
        """There is a reason not to wait any longer."""
        self.interrupted = threading.Event()
        """Its machines are being taken away; taken back when that has been seen to."""
        self.statuses: list[str] = ["Starting"]
        """All that it has been through."""
        self.error: dict[str, str] | None = None
        self.parent = ""
        self.parameters = dict[str, str]()
        self.added = dict[str, str]()
        """A trial's sweep job and values, as the service adds them to the job's properties."""
        self.metrics: dict[str, list[float]] = {}
        """All that it has logged to MLflow, by name."""
        self.started = self.ended = 0.0
        self.logs: dict[str, str] = {}
        """Blobs of its log files, by the files' names."""
        self._lock = threading.RLock()

    @property
    def status(self) -> str:
        """As Azure ML names it."""
        with self._lock:
            return self.statuses[-1]

    @property
    def has_ended(self) -> bool:
        """Return whether its state is final."""
        return self.status in ENDED

    @property
    def nodes(self) -> int:
        """How many machines it runs on."""
        return int(self.properties.get("resources", {}).get("instanceCount", 1))

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags that a search finds it by."""
        with self._lock:
            return dict(self.properties.get("tags") or {})

    @property
    def log_folder(self) -> str:
        """Return the folder of its logs in their container."""
        return f"ExperimentRun/dcid.{self.name}/"

    def enter(self, status: str) -> None:
        """Enter another phase. After a request to cancel, it can only enter the end."""
        with self._lock:
            if self.status == "CancelRequested" and status not in ENDED:
                return
            if self.has_ended or status == self.status:
                return
            self.statuses.append(status)
            if status == "Running" and not self.started:
                self.started = time.time()
            if status in ENDED:
                self.ended = time.time()

    def finish(self, status: str, message: str = "", code: str = "UserError") -> None:
        """The end. A cancel that was granted before it is what it ends with."""
        with self._lock:
            if self.cancel_asked.is_set() and status != "Canceled":
                status = "Canceled"
                message = ""
            if message:
                self.error = {"code": code, "message": message}
            self.enter(status)

    def cancel(self) -> None:
        """Ask it to end. A job that has ended does not change."""
        with self._lock:
            if self.has_ended:
                return
            self.enter("CancelRequested")
            self.cancel_asked.set()
            self.woken.set()

    def is_same(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request describes this job, apart from changeable fields."""
        with self._lock:
            fixed = [
                {key: value for key, value in properties.items() if key not in _LOOSE}
                for properties in (self.properties, body["properties"])
            ]
            return fixed[0] == fixed[1]

    def change(self, body: Mapping[str, Any]) -> None:
        """Take over what may be changed."""
        with self._lock:
            self.properties |= {
                key: value for key, value in body["properties"].items() if key in _LOOSE
            }

    def open_log(self, file: str, blob: str) -> None:
        """There is a log file of this name now."""
        with self._lock:
            self.logs[file] = blob

    def log_metric(self, name: str, value: float) -> None:
        """Record a metric that MLflow reports."""
        with self._lock:
            self.metrics.setdefault(name, []).append(value)

    def resource(self, account: Account, version: str = "2025-01-01-preview") -> dict[str, Any]:
        """As ARM shows it in an API version: as sent, completed as recorded jobs are."""
        with self._lock:
            sent = copy.deepcopy(self.properties)
            values = {
                "experimentName": "Default",
                "displayName": self.name,
                **sent,
                "status": self.status,
                "services": self._services(account, version),
                "tags": {**(sent.get("tags") or {}), **self.system_tags()},
                "properties": {
                    **(sent.get("properties") or {}),
                    **self.system_properties(),
                    **self.added,
                },
                "inputs": _places(sent, "inputs", version),
                "outputs": {
                    "default": _places({"outputs": {"": {}}}, "outputs", version)[""]
                    | {"uri": f"{_ARTIFACTS}/{self.log_folder.rstrip('/')}"},
                    **_places(sent, "outputs", version),
                },
                **({"parameters": dict(self.parameters)} if self.parameters else {}),
                **self.shown(),
            }
            job_form = form("/jobs/", version, sent["jobType"])
            return {
                "id": f"{account.scope}/jobs/{self.name}",
                "name": self.name,
                "type": "Microsoft.MachineLearningServices/workspaces/jobs",
                "properties": job_form.filled(values, "resources", "queueSettings", *_OF_SWEEPS),
                "systemData": {
                    "createdAt": iso_date(self.created),
                    "createdBy": self.owner,
                    "createdByType": "User",
                },
            }

    def system_tags(self) -> dict[str, str]:
        """Return the tags that the service adds."""
        return {}

    def shown(self) -> dict[str, Any]:
        """Return members that the service shows in another spelling than they were sent in."""
        return {}

    def system_properties(self) -> dict[str, str | None]:
        """Return the properties that the service adds."""
        cluster = str(self.properties.get("computeId") or "").rpartition("/")[2]
        return {
            "_azureml.ComputeTargetType": "amlctrain",
            "_azureml.ClusterName": cluster or None,
            **({"ContentSnapshotId": str(UUID(int=0))} if self.properties.get("codeId") else {}),
        }

    def _services(self, account: Account, version: str) -> dict[str, Any]:
        services = copy.deepcopy(
            dict(form("/jobs/", version, self.properties["jobType"]).answered["services"])
        )
        place = account.scope.replace("resourceGroups", "resourcegroups")
        place = place.replace(f"/providers/{PROVIDER}", "")
        tracking = f"azureml://{account.location}.api.azureml.ms/mlflow/v1.0{account.scope}?"
        for name, service in services.items():
            studio = f"https://ml.azure.com/runs/{self.name}?wsid={place}"
            service["endpoint"] = studio if name == "Studio" else tracking
        return services

    def details(self, account: Account) -> dict[str, Any]:
        """As run history tells it."""
        with self._lock:
            error = (
                {"error": {**self.error, "details": []}, "time": iso_date(self.ended)}
                if self.error
                else None
            )
            logs = {
                file: account.sas_url(LOG_CONTAINER, blob)
                for file, blob in sorted(self.logs.items())
            }
            return {
                "runId": self.name,
                "target": str(self.properties.get("computeId", "serverless")).rpartition("/")[2],
                "status": self.status,
                "createdTimeUtc": iso_date(self.created),
                "startTimeUtc": iso_date(self.started) if self.started else None,
                "endTimeUtc": iso_date(self.ended) if self.ended else None,
                "error": error,
                "warnings": None,
                "tags": self.tags,
                "properties": {**(self.properties.get("properties") or {}), **self.added},
                "inputDatasets": [],
                "outputDatasets": [],
                "logFiles": logs,
                "submittedBy": self.owner,
                "createdBy": {"userObjectId": OBJECT_ID, "userName": self.owner},
            }


def _places(properties: Mapping[str, Any], kind: str, version: str) -> dict[str, Any]:
    """Return the inputs or outputs of a job, each completed as a recorded one."""
    recorded = next(iter(form("/jobs/", version, "Command").answered[kind].values()))
    empty = {
        name: value if name in ("mode", "jobInputType", "jobOutputType") else None
        for name, value in recorded.items()
    }
    return {name: {**empty, **item} for name, item in (properties.get(kind) or {}).items()}


TOKEN_SECONDS = 3600.0


def run_principal(name: str) -> str:
    """Whose the token of a run is."""
    return f"run:{name}"


def run_token(job: Job, account: Account) -> str:
    """Return a token that admits the processes of a job to the tracking server only."""
    return account.tokens.bearer(account.url, TOKEN_SECONDS, run_principal(job.name))


def tracking_variables(job: Job, account: Account) -> dict[str, str]:
    """The variables of "Configure MLflow for Azure Machine Learning", and of Microsoft's
    azureml_utils.R.
    """
    return {
        "MLFLOW_TRACKING_URI": (
            f"azureml://{account.url.partition('://')[2]}/mlflow/v1.0{account.scope}?"
        ),
        "MLFLOW_TRACKING_TOKEN": run_token(job, account),
        "MLFLOW_EXPERIMENT_ID": "11111111-2222-3333-4444-555555555555",
        "MLFLOW_EXPERIMENT_NAME": str(job.properties.get("experimentName", "Default")),
        "MLFLOW_RUN_ID": job.name,
    }
