"""Azure Key Vault, read with the job's identity. Standard library only.

A name is `VAULT/NAME`, `VAULT/NAME/VERSION`, or `https://HOST/secrets/NAME[/VERSION]` for the
vaults of other clouds. Tokens come from the endpoints that Azure ML provides inside a job,
requested as azure-identity's AzureMLCredential and azure-ai-ml's AzureMLOnBehalfOfCredential do. No
message contains a value, a token or text of a server, except an error code that is one word.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

PUBLIC_DOMAIN = "vault.azure.net"
"""Domain of the public cloud's vaults, and audience of its tokens."""

ROLE = (
    "the role Key Vault Secrets User on the vault"
    " (Microsoft.KeyVault/vaults/secrets/getSecret/action)"
)
NO_IDENTITY = "set `azure: {identity: managed}` in job.yaml, and assign an identity to the compute"
FORMS = "keyvault:VAULT/NAME, keyvault:VAULT/NAME/VERSION or keyvault:https://HOST/secrets/NAME"

TIMEOUT_SECONDS = 20
BACKOFF_SECONDS = (0.5, 1.5, 4.0)
"""Delays before retries of temporary errors: too many requests, a server error, no answer."""

MAX_RESPONSE_BYTES = 1 << 20

_HEADER_VALUE = re.compile(r"[\x21-\x7e]+")
"""Valid header values; http.client shows an invalid one in its error message."""


class KeyVault:
    """Reader of secrets from vaults, with one token per cloud."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._tokens: dict[str, str] = {}

    def get_secret(self, label: str, name: str) -> str:
        """Return the value of one secret. Raise RuntimeError with `label` and a hint."""
        url = secret_url(label, name)
        cloud = _token_audience(url)
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
        on_behalf, managed, secret = (
            environ.get(n, "") for n in ("OBO_ENDPOINT", "MSI_ENDPOINT", "MSI_SECRET")
        )
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
        status, answer = _get(
            f"{url}{'&' if '?' in url else '?'}{urlencode(query)}", headers, proxy=False
        )
        token = answer.get("access_token") or answer.get("token")
        if status == 200 and isinstance(token, str) and _HEADER_VALUE.fullmatch(token):
            return token
        who = "the user" if on_behalf else "the compute's identity"
        why = _unreachable(answer) if status == 0 else f"answered {status}{_code(answer)}"
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
        raise RuntimeError(f"{label}: does not name a Key Vault secret; write {FORMS}")
    return f"{url}?api-version=7.4"


def _token_audience(url: str) -> str:
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
        innermost = (
            code if isinstance(code, str) and re.fullmatch(r"[A-Za-z_]{1,60}", code) else innermost
        )
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
        why = (reason.strerror or "") if isinstance(reason, OSError) else ""
        if not why:
            timed_out = isinstance(reason, socket.timeout)
            why = f"no answer within {TIMEOUT_SECONDS} s" if timed_out else type(reason).__name__
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
