"""Lookup of stored cloud secrets with the job's identity. Standard library only.

A reference names a secret: `secretsmanager:NAME`, `ssm:NAME` (NAME may be an ARN),
`keyvault:VAULT/NAME`, `keyvault:VAULT/NAME/VERSION`, or `keyvault:https://HOST/secrets/NAME` for
the vaults of other clouds. A suffix `#KEY` selects one field of a JSON object. Values are only
returned, never logged, stored or passed as arguments.

Tokens for Key Vault come from the endpoints that Azure ML provides inside a job, requested as
azure-identity's AzureMLCredential and azure-ai-ml's AzureMLOnBehalfOfCredential do. No message
contains a value, a token or text of a server, except an error code that is one word.
"""

from __future__ import annotations

import http.client
import importlib
import json
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

PERMISSIONS = {
    "secretsmanager": "secretsmanager:GetSecretValue (and kms:Decrypt for a custom key)",
    "ssm": "ssm:GetParameter (and kms:Decrypt for its key)",
}
"""Store -> permissions that the role needs."""

FORMS = "secretsmanager:NAME, ssm:NAME or keyvault:VAULT/NAME"

PUBLIC_DOMAIN = "vault.azure.net"
"""Domain of the public cloud's vaults, and audience of its tokens."""

ROLE = (
    "the role Key Vault Secrets User on the vault"
    " (Microsoft.KeyVault/vaults/secrets/getSecret/action)"
)
NO_IDENTITY = "set `azure: {identity: managed}` in job.yaml, and assign an identity to the compute"
KEY_VAULT_FORMS = (
    "keyvault:VAULT/NAME, keyvault:VAULT/NAME/VERSION or keyvault:https://HOST/secrets/NAME"
)

TIMEOUT_SECONDS = 20
BACKOFF_SECONDS = (0.5, 1.5, 4.0)
"""Delays before retries of temporary errors: too many requests, a server error, no answer."""

MAX_RESPONSE_BYTES = 1 << 20

_HEADER_VALUE = re.compile(r"[\x21-\x7e]+")
"""Valid header values; http.client shows an invalid one in its error message."""


def look_up(
    secrets: Mapping[str, str],
    environ: Mapping[str, str],
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Return the values of all variables missing in `environ`. Raise RuntimeError with a hint.

    `secrets`: variable -> reference. Return {} once `cancelled()` is true. A silent endpoint may
    take minutes, so a thread makes the requests and is abandoned on cancellation.
    """
    missing = {name: reference for name, reference in secrets.items() if name not in environ}
    if not missing:
        return {}

    values: dict[str, str] = {}
    errors: list[BaseException] = []

    def work() -> None:
        vaults = KeyVault(environ)
        try:
            for name, reference in missing.items():
                values[name] = _resolve(name, reference, environ, vaults)
        except BaseException as error:  # noqa: BLE001  (raised below, in the thread that waits)
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True, name="secrets")
    thread.start()
    while thread.is_alive() and not cancelled():
        thread.join(0.1)
    if cancelled():
        return {}
    if errors:
        raise errors[0]

    return values


def _resolve(variable: str, reference: str, environ: Mapping[str, str], vaults: KeyVault) -> str:
    label = f"secret {variable} ({reference})"
    store, _, name_and_key = reference.partition(":")
    name, _, key = name_and_key.partition("#")
    if store not in (*PERMISSIONS, "keyvault") or not name:
        raise RuntimeError(f"secret {variable}: cannot read {reference!r}; write {FORMS}")

    if store == "keyvault":
        value = vaults.get_secret(label, name)
    else:
        value = get_aws_secret(label, store, name, environ)

    if key:
        value = _json_field(label, value, key)

    if "\0" in value:
        raise RuntimeError(
            f"{label} contains a zero byte, which an environment variable cannot contain"
        )

    return value


def _json_field(label: str, value: str, key: str) -> str:
    """Return one field of a JSON secret. Error messages contain none of its values."""
    try:
        document = json.loads(value)
    except ValueError:
        document = None

    if not isinstance(document, dict):
        raise RuntimeError(f"{label} is not a JSON object: remove #{key} from the reference")
    if key not in document:
        raise RuntimeError(f"{label} has no field {key!r}")

    field = document[key]
    if isinstance(field, str):
        return field

    return json.dumps(field)


def get_aws_secret(label: str, store: str, name: str, environ: Mapping[str, str]) -> str:
    """Return the value of one secret. Raise RuntimeError with `label` and a hint.

    `store`: secretsmanager or ssm. `name`: the secret's name or ARN.
    """
    try:
        errors = importlib.import_module("botocore.exceptions")
        importlib.import_module("boto3")
    except Exception as error:  # noqa: BLE001  (a broken installation fails in many ways)
        raise RuntimeError(
            f"{label} needs boto3, which cannot be imported here ({error}): "
            "add boto3 to the image, or use an image that has it"
        ) from None

    region = region_of(name, environ)
    if region:
        label += f" in {region}"

    try:
        client = aws_client(store, region, connect_seconds=10, read_seconds=20, attempts=5)
        if store == "ssm":
            return str(client.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])

        answer: dict[str, Any] = client.get_secret_value(SecretId=name)
    except errors.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "an error without a code")
        raise RuntimeError(f"{label}: {code}; the job's role needs {PERMISSIONS[store]}") from None
    except (errors.BotoCoreError, ValueError) as error:
        raise RuntimeError(
            f"{label}: {type(error).__name__}: {error}; let the job reach {store} (no network"
            f" isolation; inside a VPC an endpoint or NAT) and a role with {PERMISSIONS[store]}"
        ) from None

    if "SecretString" not in answer:
        raise RuntimeError(
            f"{label} is binary, and a variable can only contain text: store it as text"
        )

    return str(answer["SecretString"])


def aws_client(
    service: str, region: str | None, *, connect_seconds: int, read_seconds: int, attempts: int
) -> Any:
    """Return boto3's client with time limits for each attempt."""
    boto3: Any = importlib.import_module("boto3")
    config: Any = importlib.import_module("botocore.config")
    limits = config.Config(
        connect_timeout=connect_seconds,
        read_timeout=read_seconds,
        retries={"mode": "standard", "total_max_attempts": attempts},
    )
    return boto3.client(service, region_name=region, config=limits)


def region_of(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the region of an ARN, the environment or the job; None if unknown.

    boto3 itself does not read AWS_REGION.
    """
    configured = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return (
        _region_of_arn(name)
        or configured
        or _region_of_arn(environ.get("TRAINING_JOB_ARN", ""))
        or None
    )


def _region_of_arn(text: str) -> str:
    parts = text.split(":")
    return parts[3] if parts[0] == "arn" and len(parts) > 5 else ""


class KeyVault:
    """Reader of secrets from vaults, with one token per cloud."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._tokens: dict[str, str] = {}

    def get_secret(self, label: str, name: str) -> str:
        """Return the value of one secret. Raise RuntimeError with `label` and a hint."""
        url = secret_url(label, name)
        cloud = token_audience(url)
        if cloud not in self._tokens:
            self._tokens[cloud] = self._token(label, f"https://{cloud}")

        host = urlsplit(url).netloc
        status, answer = _get(url, {"Authorization": f"Bearer {self._tokens[cloud]}"})
        if status == 200 and isinstance(answer.get("value"), str):
            return str(answer["value"])

        raise RuntimeError(f"{label}: {host} {_explain(status, answer)}")

    def _token(self, label: str, resource: str) -> str:
        """Return a token of the job's identity: the user's if available, else the compute's."""
        environ = self._environ
        on_behalf = environ.get("OBO_ENDPOINT", "")
        managed = environ.get("MSI_ENDPOINT", "")
        secret = environ.get("MSI_SECRET", "")
        headers: dict[str, str] = {}
        query = {"resource": resource}
        if not on_behalf:
            if not managed or not _HEADER_VALUE.fullmatch(secret):
                raise RuntimeError(f"{label}: the job has no identity for the vault; {NO_IDENTITY}")

            headers = {"secret": secret}
            query["api-version"] = "2017-09-01"
            if environ.get("DEFAULT_IDENTITY_CLIENT_ID"):
                query["clientid"] = environ["DEFAULT_IDENTITY_CLIENT_ID"]

        url = on_behalf or managed
        # The endpoint is on the node itself: bypass any proxy.
        mark = "&" if "?" in url else "?"
        status, answer = _get(f"{url}{mark}{urlencode(query)}", headers, proxy=False)
        token = answer.get("access_token") or answer.get("token")
        if status == 200 and isinstance(token, str) and _HEADER_VALUE.fullmatch(token):
            return token

        who = "the user" if on_behalf else "the compute's identity"
        if status == 0:
            why = _unreachable(answer)
        else:
            why = f"answered {status}{_code(answer)}"

        raise RuntimeError(
            f"{label}: no token for {who}: the node's own endpoint {why}; {NO_IDENTITY}"
        )


def secret_url(label: str, name: str) -> str:
    """Return the URL of a secret. Raise RuntimeError with `label` for an invalid name."""
    if name.startswith("https://"):
        match = re.fullmatch(
            r"(https://[A-Za-z0-9.-]+(?::\d+)?/secrets/[A-Za-z0-9-]+(?:/[A-Za-z0-9]+)?)/?", name
        )
        url = match[1] if match else ""
    else:
        match = re.fullmatch(r"([A-Za-z0-9-]+)/([A-Za-z0-9-]+(?:/[A-Za-z0-9]+)?)", name)
        url = f"https://{match[1]}.{PUBLIC_DOMAIN}/secrets/{match[2]}" if match else ""

    if not url:
        raise RuntimeError(f"{label}: does not name a Key Vault secret; write {KEY_VAULT_FORMS}")

    return f"{url}?api-version=7.4"


def token_audience(url: str) -> str:
    """Return the token's audience: `vault.` and the domain of the vault's cloud."""
    _, _, domain = (urlsplit(url).hostname or "").partition(".")
    return domain if domain.startswith("vault.") else PUBLIC_DOMAIN


def _explain(status: int, answer: Mapping[str, Any]) -> str:
    """Explain a vault's error response and how to fix it."""
    code = _code(answer)
    if status == 0:
        return (
            f"{_unreachable(answer)}; let the job reach the vault: open its firewall, or add a private"
            " endpoint"
        )

    if status == 403 and "Disabled" in code:
        return f"says that the secret is disabled{code}: enable it, or name another version"

    if status == 403 and ("Firewall" in code or "Connection" in code):
        return (
            f"does not accept this node{code}: open the vault's firewall to the compute, or give it"
            " a private endpoint"
        )

    if status == 404:
        return f"has no such secret or version{code}"
    if status in (401, 403):
        return f"answered {status}{code}: the job's identity, of the vault's tenant, needs {ROLE}"

    return f"answered {status}{code}, without a value: use the vault's final address"


def _unreachable(answer: Mapping[str, Any]) -> str:
    return f"cannot be reached ({answer['why']})"


def _code(answer: Mapping[str, Any]) -> str:
    """Return ` (CODE)` with the innermost error code if it is one word; else empty."""
    error: Any = answer.get("error")
    innermost = ""
    while isinstance(error, dict):
        code = error.get("code")
        if isinstance(code, str) and re.fullmatch(r"[A-Za-z_]{1,60}", code):
            innermost = code
        error = error.get("innererror")

    return f" ({innermost})" if innermost else ""


def _get(url: str, headers: Mapping[str, str], *, proxy: bool = True) -> tuple[int, dict[str, Any]]:
    """Return the status and JSON object of a response, after retries.

    Return status 0 and an object with `why` without a response.
    """
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if not proxy:
        handlers.append(urllib.request.ProxyHandler({}))

    opener = urllib.request.build_opener(*handlers)
    status = 0
    answer = dict[str, Any]()
    for delay in (*BACKOFF_SECONDS, 0.0):
        status, answer, is_transient = _request_once(
            opener, urllib.request.Request(url, headers=dict(headers))
        )
        if not is_transient:
            break

        time.sleep(delay)

    return status, answer


def _request_once(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request
) -> tuple[int, dict[str, Any], bool]:
    """Return the status, the JSON object, and whether a retry may help."""
    try:
        try:
            response = opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            response = error  # also a response to close

        with response:
            status = int(response.status)
            return status, _json(response.read(MAX_RESPONSE_BYTES)), status == 429 or status >= 500
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            why = (
                f"its certificate is not trusted here: {reason.verify_message}; set"
                " SSL_CERT_FILE to the trusted ones"
            )
            return 0, {"why": why}, False

        if isinstance(reason, OSError) and reason.strerror:
            why = reason.strerror
        elif isinstance(reason, socket.timeout):
            why = f"no answer within {TIMEOUT_SECONDS} s"
        else:
            why = type(reason).__name__

        return 0, {"why": why}, isinstance(error, (OSError, http.client.HTTPException))


def _json(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}

    return document if isinstance(document, dict) else {}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that returns a redirect as the response."""

    def redirect_request(self, *_: Any) -> None:
        """Return None: a token must not be sent to another server."""
        return
