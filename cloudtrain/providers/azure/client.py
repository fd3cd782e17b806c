"""The edge to Azure ML: the one module that calls azure-ai-ml, and that keeps its noise from the screen."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from functools import cache, cached_property, partial
from typing import Any

from azure.core.credentials import AccessToken
from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.identity import DefaultAzureCredential

from cloudtrain.errors import CloudError, CloudtrainError, Outcome
from cloudtrain.providers.azure.errors import is_foreign, translated
from cloudtrain.providers.azure.storage import Container, Part, read_log

with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # some of its loggers hold on to this stream
    warnings.simplefilter("ignore")  # marshmallow's, on behalf of azure-ai-ml
    from azure.ai.ml import MLClient, load_job
    from azure.ai.ml.constants import ListViewType

RETRIES: dict[str, Any] = {"retry_total": 4, "retry_backoff_factor": 0.5, "retry_backoff_max": 20}
"""The SDK's own tries of one call: some seconds, not the minutes of its defaults."""
TIMEOUTS: dict[str, Any] = {"connection_timeout": 10, "read_timeout": 60}
REPEATABLE = frozenset({"HEAD", "GET", "PUT", "POST"})
"""What is tried again when no answer came: all that we ask for comes to the same when it is done twice."""
EARLY_SECONDS = 300
"""A token is asked for anew when it is this close to its end."""


class Workspace:
    """One workspace, as the credentials at hand see it. Every method is one thing asked of it."""

    def __init__(self, subscription: str, resource_group: str, workspace: str) -> None:
        self.name, self._scope = workspace, (subscription, resource_group, workspace)
        self._watch = _Watch()

    def create(self, document: Mapping[str, Any], before: Callable[[], None]) -> dict[str, Any]:
        """Upload what a command-job document names and is not there yet, then create the job; returns its description.

        `before` is called when all is uploaded, right before the request that creates it. CloudError with
        `Outcome.UNKNOWN` when it cannot be told whether the job exists.
        """
        self._watch.arm(before)
        try:
            with self._calling("creating the job"):
                job = load_job(io.StringIO(json.dumps(dict(document))))
                return _described(self._client.jobs.create_or_update(job))
        except CloudError as error:
            if not self._watch.struck:  # whatever became of an upload: the job was not asked for
                error.outcome = Outcome.REFUSED
            raise
        finally:
            self._watch.arm(None)

    def job(self, name: str) -> dict[str, Any] | None:
        """Name, status, tags and address of a job; None when there is none of that name."""
        try:
            with self._calling("looking at the job"):
                return _described(self._client.jobs.get(name))
        except CloudError as error:
            if error.code == "NotFound":
                return None
            raise

    def jobs(self, tag: str) -> Iterator[dict[str, Any]]:
        """The jobs that carry a tag, archived ones too, the newest first; a page is asked for when it is come to.

        `document` of each makes its command-job document, which takes a while.
        """
        with self._calling("listing jobs"):
            found = iter(self._client.jobs.list(tag=tag, list_view_type=ListViewType.ALL))
        while True:
            with self._calling("listing jobs"):
                job = next(found, found)
            if job is found:
                return
            if job is not None and job.type == "command":
                yield {**_described(job), "document": partial(self._document_of, job)}

    def _document_of(self, job: Any) -> dict[str, Any]:
        with self._calling("reading a job's document"):
            return _document(job)

    def job_with_document(self, name: str) -> dict[str, Any] | None:
        """The same of one job; None when there is none of that name."""
        described = self.job(name)
        return None if described is None else {**described, "document": lambda: _document(self.native(name))}

    def details(self, name: str) -> dict[str, Any] | None:
        """What the run history says of a job: status, times, error, and the addresses of its logs; None for no job."""
        try:
            with self._calling("looking at the job"):
                return dict(self._history().get_run_details(name).as_dict())
        except CloudError as error:
            if error.code == "NotFound":
                return None
            raise

    def cancel(self, name: str) -> None:
        """Ask for a job's end; it comes later."""
        with self._calling("cancelling the job"):
            self._client.jobs.begin_cancel(name, polling=False)

    def cluster(self, name: str) -> dict[str, Any] | None:
        """Kind, machine size, most nodes and tier of a compute; None when there is none of that name."""
        try:
            with self._calling(f"looking at the compute {name}"):
                found = self._client.compute.get(name)
        except CloudError as error:
            if error.code == "NotFound":
                return None
            raise
        fields = {"kind": "type", "size": "size", "nodes": "max_instances", "tier": "tier"}
        return {key: getattr(found, field, None) for key, field in fields.items()}

    @cached_property
    def location(self) -> str:
        """Where the workspace is, such as `eastus`."""
        with self._calling("looking at the workspace"):
            return str(self._client.workspaces.get(self.name).location or "")

    def family(self, size: str) -> tuple[str, int] | None:
        """The family whose quota a machine size counts to, and its vCPUs; None when the region does not offer it."""
        with self._calling("listing machine sizes"):
            for found in self._client.compute.list_sizes(location=self.location):
                if str(found.name).lower() == size.lower():
                    return str(found.family), int(_wire(found, "v_cp_us", "vCPUs") or 0)
        return None

    def usages(self) -> list[tuple[str, int, int]]:
        """Name, used and limit of each quota of the workspace's region."""
        with self._calling("looking at the quota"):
            return [
                (_name_of(found.name), int(_wire(found, "current_value", "currentValue") or 0), int(found.limit))
                for found in self._client.compute.list_usage(location=self.location)
                if found.limit is not None
            ]

    def container(self, datastore: str) -> Container:
        """The blob container of a datastore, opened with the datastore's own credentials or else with ours."""
        if datastore not in self._containers:
            with self._calling(f"looking at the datastore {datastore}"):
                found = self._client.datastores.get(datastore, include_secrets=True)
            if getattr(found, "container_name", None) is None:
                message = f"the datastore {datastore} is not a blob container"
                raise CloudError(message, hint="azure.datastore names one of type azure_blob", code="NoContainer")
            given = found.credentials
            key = getattr(given, "account_key", None) or getattr(given, "sas_token", None)
            self._containers[datastore] = Container(
                f"https://{found.account_name}.blob.{found.endpoint}", found.container_name, key or credential()
            )
        return self._containers[datastore]

    def read_log(self, address: str, start: int, created: str) -> Part | None:
        """See `cloudtrain.providers.azure.storage.read_log`."""
        return read_log(address, start, created)

    def native(self, name: str) -> Any:
        """The `azure.ai.ml` Job."""
        with self._calling("looking at the job"):
            return self._client.jobs.get(name)

    def _history(self) -> Any:
        """The run history. The SDK's public surface has neither times nor logs, but prints those of the first node."""
        try:
            return self._client.jobs._runs_operations
        except (KeyError, ValueError) as error:  # it takes whatever is answered for the history's address
            message = f"looking for the run history of the workspace {self.name}: Azure failed"
            raise CloudError(message, hint="wait a little, then try again", code="Discovery", transient=True) from error

    @cached_property
    def _containers(self) -> dict[str, Container]:
        return {}

    @cached_property
    def _client(self) -> MLClient:
        subscription, resource_group, name = self._scope
        options: dict[str, Any] = {
            "subscription_id": subscription,
            "resource_group_name": resource_group,
            "workspace_name": name,
            "enable_telemetry": False,
            # Without it the SDK passes over what went wrong with an upload, and waits for its end for ever.
            "show_progress": True,
            "per_call_policies": [self._watch],
        }
        return MLClient(credential(), **options, **RETRIES, **TIMEOUTS)

    @contextmanager
    def _calling(self, what: str) -> Iterator[None]:
        """The SDK's errors become ours; what it prints on the way is dropped, unless somebody wants to see it."""
        try:
            with _quiet():
                yield
        except Exception as error:
            if isinstance(error, CloudtrainError) or not is_foreign(error):
                raise  # a bug of ours keeps its traceback
            raise translated(error, what, f"the workspace {self.name}") from error


@cache
def workspace(subscription: str, resource_group: str, name: str) -> Workspace:
    """The connection to a workspace; one per process, so that credentials are looked up once."""
    return Workspace(subscription, resource_group, name)


@cache
def credential() -> _Tokens:
    """The credentials at hand; one source per process, so that each token is asked for once."""
    return _Tokens()


class _Tokens:
    """The credentials at hand, with their tokens kept: the SDK's many clients would ask for one each."""

    def __init__(self) -> None:
        self._source = DefaultAzureCredential()
        self._lock = threading.Lock()
        self._known: dict[tuple[Any, ...], AccessToken] = {}

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """A token for these scopes."""
        wanted = (*scopes, options.get("tenant_id"))
        with self._lock:
            token = self._known.get(wanted)
            if token is None or options.get("claims") or token.expires_on - EARLY_SECONDS < time.time():
                token = self._known[wanted] = self._source.get_token(*scopes, **options)
        return token


class _Watch(SansIOHTTPPolicy[Any, Any]):
    """Sees every call before it is sent, above all the one that creates a job."""

    def __init__(self) -> None:
        self.struck = False
        self._before: Callable[[], None] | None = None

    def arm(self, before: Callable[[], None] | None) -> None:
        """What to call next time."""
        self._before, self.struck = before, self.struck and before is None

    def on_request(self, request: Any) -> None:
        """Called by the SDK once for each call."""
        sent = request.http_request
        request.context.options.setdefault("retry_on_methods", REPEATABLE)
        if self._before is not None and sent.method == "PUT" and re.search(r"/jobs/[^/?]+(\?|$)", sent.url):
            self._before()
            self.struck = True


@contextmanager
def _quiet() -> Iterator[None]:
    """No experimental-class lines, no warnings, no stray colours; `cloudtrain -v` shows them."""
    if logging.getLogger().isEnabledFor(logging.INFO):
        yield
        return
    for name in ("azure", "msal", "urllib3", *logging.root.manager.loggerDict):
        if name.startswith(("azure", "msal", "urllib3")):  # some set a level of their own
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), _dropped():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _dropped() -> Iterator[None]:
    if sys.stderr.isatty():  # its progress bar is welcome there
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield


def _wire(entity: Any, field: str, name: str) -> Any:
    """A field of an entity that azure-ai-ml 1.35 leaves empty: it keeps what came under its name on the wire."""
    found = getattr(entity, field, None)
    return vars(entity).get(name) if found is None else found


def _described(job: Any) -> dict[str, Any]:
    made = getattr(job.creation_context, "created_at", None)
    return {
        "name": job.name,
        "status": str(getattr(job.status, "value", job.status)),  # an enumeration, where the SDK knows it
        "tags": dict(job.tags or {}),
        "url": job.studio_url or "",
        "created": made.timestamp() if made is not None else 0.0,
        "owner": str(getattr(job.creation_context, "created_by", None) or ""),
        "type": job.type,
    }


def _name_of(name: Any) -> str:
    """Of a quota, which the SDK gives as a mapping or as an object."""
    told = name if isinstance(name, Mapping) else vars(name or object)
    return str(told.get("value", ""))


def _document(job: Any) -> dict[str, Any]:
    """The command-job document of a job that exists, as far as Azure ML repeats it."""
    import yaml

    text = io.StringIO()
    job.dump(text)
    document: dict[str, Any] = yaml.safe_load(text.getvalue())
    return document
