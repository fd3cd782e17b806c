"""The one address that clients know Azure by: ARM, run history, blobs, Key Vault and managed
identity answer here.
"""

from __future__ import annotations

import json
import secrets
import ssl
import time
from collections.abc import Mapping
from importlib import import_module
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.azure.account import SUFFIX, Account
from tests.fakes.azure.barriers import barrier
from tests.fakes.azure.blobs import Blobs
from tests.fakes.azure.jobs import Job, run_principal, run_token
from tests.fakes.azure.permissions import check, error_of, invalid, unauthenticated
from tests.fakes.azure.recorded import exchanges
from tests.fakes.azure.rights import AUTHORIZATION, RightsCall
from tests.fakes.azure.sweeps import child
from tests.fakes.azure.tokens import LIFE_SECONDS, Tokens
from tests.fakes.azure.wire import DISCOVERY, Place, call_of, error_response, json_response
from tests.fakes.azure.workspace import Workspace
from tests.fakes.messages import Call, FaultKind, Request, Response, ServiceError
from tests.fakes.server import Server

# The small services around a workspace: discovery, run history, the Key Vault, and the identity of
# its machines.

CLOUD = "LoopbackCloud"
MAX_TRIALS = 1000
VAULT_AUDIENCE = "https://vault.azure.net"
REGISTRY_AUDIENCE = "https://containerregistry.azure.net"
AUDIENCES = (
    "https://management.azure.com",
    "https://management.core.windows.net",
    "https://ml.azure.com",
)
"""The resources whose tokens ARM and run history take, besides their own address."""


class Services:
    """All of them."""

    def __init__(self, account: Account, workspace: Workspace) -> None:
        self.account = account
        self._workspace = workspace

    def metadata(self) -> Response:
        """How this cloud is to be reached, for clients that know no address but this one."""
        url = self.account.url
        cloud = {
            "name": CLOUD,
            "portal": "https://portal.loop.local/",
            "resourceManager": f"{url}/",
            "authentication": {"loginEndpoint": f"{url}/", "audiences": [url]},
            "suffixes": {"storage": SUFFIX},
        }
        return json_response(200, [cloud])

    def call(
        self, operation: str, place: Place, body: Mapping[str, Any], principal: str
    ) -> Response:
        """One call of discovery, of run history or of MLflow; Refused is what it answers instead."""
        if operation == "GetDiscovery":
            discovery = next(e.response for e in exchanges() if e.path.endswith(DISCOVERY))
            return json_response(200, dict.fromkeys(discovery, self.account.url))
        name = place.names.get("name") or str(body.get("run_id") or "")
        job = self._workspace.jobs.get(name) or self._workspace.sweeps.get(name)
        if job is None:
            raise ServiceError("UserError", f"Run {name} was not found", 404)
        if operation in ("LogMetric", "LogParameter", "GetRunToken") and principal != run_principal(
            name
        ):
            raise ServiceError("UserError", f"The token is not one of the run {name}.", 401)
        if operation in ("LogMetric", "LogParameter"):
            return self._log(job, operation, body)
        if operation == "GetRunToken":
            return json_response(200, {"token": run_token(job, self.account)})
        if operation == "ListChildren":
            return self._children(name, place)
        return json_response(200, job.details(self.account))

    def _log(self, job: Job, operation: str, body: Mapping[str, Any]) -> Response:
        """As "Log Metric" and "Log Param" in the reference of MLflow's REST API; a parameter keeps
        its first value.
        """
        kinds: dict[str, Any] = {"run_id": str, "key": str, "value": str}
        if operation == "LogMetric":
            kinds |= {"value": int | float, "timestamp": int, "step": int}
        wrong = [name for name, kind in kinds.items() if not isinstance(body.get(name), kind)]
        if wrong or set(body) - kinds.keys() - {"run_uuid"}:
            raise ServiceError(
                "UserError", f"INVALID_PARAMETER_VALUE: {', '.join(wrong) or sorted(body)}", 400
            )
        if operation == "LogMetric":
            job.log_metric(body["key"], float(body["value"]))
        elif job.parameters.setdefault(body["key"], body["value"]) != body["value"]:
            raise ServiceError(
                "UserError", f"INVALID_PARAMETER_VALUE: {body['key']} was logged before", 400
            )
        return json_response(200, {})

    def _children(self, name: str, place: Place) -> Response:
        """The trials of a sweep job: all of them, as azure-ai-ml says of `top`, whose pages it does
        not follow.
        """
        sweep = self._workspace.sweeps.get(name)
        children = [child(trial) for trial in list(sweep.trials)] if sweep else []
        return json_response(200, {"value": children[: int(place.query.get("$top", MAX_TRIALS))]})

    def secret(self, request: Request, place: Place) -> Response:
        """Return the Key Vault's answer to a caller with a token for it."""
        audience = self.account.tokens.audience(request.headers.get("authorization", ""))
        if audience != VAULT_AUDIENCE:
            message = f"AKV10022: Invalid audience. Expected {VAULT_AUDIENCE}, found: {audience}."
            raise ServiceError("Unauthorized", message, 401)
        if "api-version" not in place.query:
            raise ServiceError("BadParameter", "api-version must be specified", 400)
        name = place.names["name"]
        if name not in self.account.secrets:
            raise ServiceError(
                "SecretNotFound",
                f"A secret with (name/id) {name} was not found in this key vault. If you recently"
                " deleted this secret you may be able to recover it using the correct recovery"
                " command. For help resolving this issue, please see"
                " https://go.microsoft.com/fwlink/?linkid=2125182",
                404,
            )
        version = place.names["version"] or "loopback"
        attributes = {"enabled": True, "created": 1, "updated": 1}
        told_id = f"{self.account.url}/secrets/{name}/{version}"
        return json_response(
            200, {"value": self.account.secrets[name], "id": told_id, "attributes": attributes}
        )

    def registry(self, operation: str, place: Place) -> Response:
        """Microsoft's registry of assets, which has the curated environments."""
        name = place.names["name"]
        version = place.names.get("version", "")
        if operation == "GetRegistry":
            registry = {
                "registryName": name,
                "subscriptionId": self.account.subscription,
                "resourceGroup": "registries",
                "primaryRegionResourceProviderUri": f"{self.account.url}/",
            }
            return json_response(200, registry)
        versions = self.account.curated.get(name, {})
        if operation == "ListRegistryEnvironments":
            newest_first = [_curated(name, *version) for version in reversed(versions.items())]
            return json_response(200, {"value": newest_first})
        if version not in versions:
            raise ServiceError("UserError", f"Environment {name}:{version} not found.", 404)
        return json_response(200, _curated(name, version, versions[version]))

    def identity(self, request: Request, place: Place) -> Response:
        """A token for a process of a job: it shows the secret that its machine was given."""
        env = self.account.env
        identity = self.account.machine_secrets.get(request.headers.get("secret", ""))
        if identity is None:
            raise ServiceError("Unauthorized", "The secret is missing or wrong.", 401)
        if place.query.get("api-version") != "2017-09-01" or "resource" not in place.query:
            raise ServiceError(
                "BadRequest", "api-version=2017-09-01 and a resource are required.", 400
            )
        client = env.get("DEFAULT_IDENTITY_CLIENT_ID", "")
        if place.query.get("clientid", client) != client:
            raise ServiceError(
                "BadRequest", f"No identity found for the client id {place.query['clientid']}.", 400
            )
        resource = place.query["resource"]
        token = self.account.tokens.bearer(resource, principal=identity)
        expiry = str(int(time.time() + LIFE_SECONDS))
        return json_response(
            200,
            {
                "access_token": token,
                "expires_on": expiry,
                "resource": resource,
                "token_type": "Bearer",
            },
        )


def _curated(name: str, version: str, image: str) -> dict[str, Any]:
    """Return an environment of Microsoft's registry."""
    id_ = f"azureml://registries/azureml/environments/{name}/versions/{version}"
    properties = {"image": image, "osType": "Linux", "environmentType": "Curated"}
    return {"id": id_, "name": version, "properties": properties}


def login_script(account: Account) -> str:
    """The text of an `az` that knows one command: `az account get-access-token`."""
    cases = []
    for resource in (
        account.url,
        *AUDIENCES,
        "https://storage.azure.com",
        VAULT_AUDIENCE,
        REGISTRY_AUDIENCE,
    ):
        token = account.tokens.bearer(resource)
        cases.append(f"  {resource}|{resource}/) token={token} ;;")
    expiry = int(time.time() + LIFE_SECONDS)
    local = time.strftime("%Y-%m-%d %H:%M:%S.000000", time.localtime(expiry))
    message = (
        f'{{"accessToken": "%s", "expiresOn": "{local}", "expires_on": {expiry}, "subscription":'
        f' "{account.subscription}", "tenant": "{account.tenant}", "tokenType": "Bearer"}}\\n'
    )
    return "\n".join(
        [
            "#!/bin/sh",
            (
                "# Prints the output of `az` after a login to the imitated tenant; a file beside it"
                " means that the login is missing."
            ),
            'if [ -e "$(dirname "$0")/logged-out" ]; then',
            "  echo \"ERROR: Please run 'az login' to setup account.\" >&2; exit 1",
            "fi",
            f"resource={account.url}",
            (
                'if [ "$1 $2" != "account get-access-token" ]; then echo "ERROR: not imitated: $*"'
                " >&2; exit 2; fi"
            ),
            "while [ $# -gt 0 ]; do",
            '  case "$1" in --resource) resource=$2 ;; --scope) resource=${2%/.default} ;; esac',
            "  shift",
            "done",
            'case "$resource" in',
            *cases,
            (
                '  *) echo "ERROR: AADSTS500011: The resource principal named $resource was not'
                ' found in the tenant." >&2'
            ),
            "     exit 1 ;;",
            "esac",
            f"printf '{message}' \"$token\"",
            "",
        ]
    )


# The login of an Azure registry on loopback: it exchanges tokens of its tenant.

REFRESH_TOKEN_USER = "00000000-0000-0000-0000-000000000000"
"""Whose password is a refresh token, by ACR's rules."""


class Registry(Server):
    """A registry at `host` that members of a tenant may log in to."""

    def __init__(self, tenant: Tokens | None) -> None:
        self.unexpected_errors: list[str] = []
        super().__init__(self.unexpected_errors)
        self.tenant = tenant
        self.users: dict[str, str] = {}
        self.host = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Registry:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
        assert not self.unexpected_errors, "\n".join(self.unexpected_errors)

    def call_of(self, request: Request) -> Call:
        is_exchange = urlsplit(request.target).path == "/oauth2/exchange"
        return Call("registry", "Exchange" if is_exchange else "?")

    def rejection(self, request: Request, call: Call) -> Response | None:
        return None

    def execute(self, request: Request, call: Call | None) -> Response:
        try:
            return _json(200, {"refresh_token": self._exchange(request)})
        except ServiceError as refused:
            error = {"code": refused.code, "message": refused.message}
            return _json(refused.status, {"errors": [error]})

    def error(self, request: Request, call: Call, kind: FaultKind) -> Response | None:
        return None

    def json_body(self, request: Request, call: Call) -> dict[str, Any] | None:
        return None

    def _exchange(self, request: Request) -> str:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if request.headers.get("content-type") != "application/x-www-form-urlencoded":
            raise ServiceError("UNSUPPORTED", "expected a form", 415)
        if (
            self.tenant is None
            or form.get("service") != self.host
            or form.get("grant_type") != "access_token"
        ):
            raise ServiceError("UNAUTHORIZED", "this registry belongs to another tenant", 401)
        if self.tenant.audience(f"Bearer {form.get('access_token')}") != REGISTRY_AUDIENCE:
            raise ServiceError("UNAUTHORIZED", "authentication required", 401)
        return self.users.setdefault(REFRESH_TOKEN_USER, secrets.token_hex(16))


def _json(status: int, document: object) -> Response:
    return Response(status, [("Content-Type", "application/json")], json.dumps(document).encode())


_OPEN = ("GetDiscovery", "GetToken")
"""Requests without a token: one is public, the other issues tokens."""


class Endpoint(Server):
    """The endpoint of ARM_CLOUD_METADATA_URL, and all services that clients find from there."""

    def __init__(self, account: Account, service: Workspace, tls: ssl.SSLContext) -> None:
        super().__init__(account.unexpected_errors, tls)
        self.account = account
        self.service = service
        self._blobs = Blobs(account)
        self._services = Services(account, service)
        # Only who starts a workspace waits for the SDK.
        self._models = import_module("tests.fakes.azure.rest_models")

    def call_of(self, request: Request) -> Call | None:
        return call_of(request)[0]

    def rejection(self, request: Request, call: Call) -> Response | None:
        try:
            self._check(request, call)
        except ServiceError as refused:
            return error_response(request, call.service, refused)
        return None

    def error(self, request: Request, call: Call, kind: FaultKind) -> Response | None:
        refused = error_of(kind, call, request, self.account)
        return None if refused is None else error_response(request, call.service, refused)

    def execute(self, request: Request, call: Call | None) -> Response:
        if call is None:
            return self._services.metadata()
        try:
            if request.method == "PUT" and call.service == "arm":
                wrong = self._models.request_problems(call.operation, request.document())
                if wrong:
                    raise invalid(*wrong)
            answer = self._execute(request, call)
        except ServiceError as refused:
            return error_response(request, call.service, refused)
        problems = self._models.contradictions(call, answer)
        if problems:
            raise AssertionError("\n".join(problems))
        return answer

    def json_body(self, request: Request, call: Call) -> dict[str, Any] | None:
        return (
            request.document()
            if request.headers.get("content-type", "").startswith("application/json")
            else None
        )

    def _check(self, request: Request, call: Call) -> None:
        place = call_of(request)[1]
        refused = barrier(call, self.account)
        if refused is not None:
            raise refused
        if call.service == "blob":
            principal = self._blobs.check(call.operation, request, place)
        elif call.operation in _OPEN:
            return
        else:
            principal = self._principal(request)
            audience = self.account.tokens.audience(request.headers.get("authorization", ""))
            if audience is None:
                raise unauthenticated(call.service)
            if call.service != "vault" and audience not in (self.account.url, *AUDIENCES):
                raise ServiceError(
                    "InvalidAuthenticationTokenAudience",
                    "The access token has been obtained for wrong audience or resource"
                    f" '{audience}'. It should exactly match with one of the allowed audiences"
                    f" '{self.account.url}'.",
                    401,
                )
        if principal:
            check(call, place, self.account, principal)

    def _principal(self, request: Request) -> str:
        return self.account.tokens.principal(request.headers.get("authorization", ""))

    def _execute(self, request: Request, call: Call) -> Response:
        _, place = call_of(request)
        if call.service == "blob":
            return self._blobs.call(call.operation, request, place)
        if call.service == "vault":
            return self._services.secret(request, place)
        if call.service == "msi":
            return self._services.identity(request, place)
        if call.service == "history":
            return self._services.call(
                call.operation, place, request.document(), self._principal(request)
            )
        if call.service == "registry":
            return self._services.registry(call.operation, place)
        if call.service == "rights":
            scope = self.account.real(place.path.partition(AUTHORIZATION)[0])
            rights_call = RightsCall(
                call.operation, scope, place.path, place.query, self._principal(request)
            )
            return json_response(200, self.account.rights.call(rights_call, self.account.access))
        return self.service.call(call.operation, place, request.document())
