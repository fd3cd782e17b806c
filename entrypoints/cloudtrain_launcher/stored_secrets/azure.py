"""Azure Key Vault, asked with the job's identity. Standard library only.

A name is `VAULT/NAME`, `VAULT/NAME/VERSION`, or `https://HOST/secrets/NAME[/VERSION]` for the vaults of other clouds.
Tokens come from the endpoints that Azure ML offers inside a job, asked as azure-identity's AzureMLCredential and
azure-ai-ml's AzureMLOnBehalfOfCredential ask them. No message holds a value, a token or what a server has written,
but for a code that is one word.
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
from typing import Any, Mapping
from urllib.parse import urlencode, urlsplit

PUBLIC_DOMAIN = "vault.azure.net"
"""Where the vaults of the public cloud are; also whom a token is for."""

ROLE = "the role Key Vault Secrets User on the vault"
NO_IDENTITY = "say `azure: {identity: managed}` in job.yaml, and give the compute an identity"
FORMS = "keyvault:VAULT/NAME, keyvault:VAULT/NAME/VERSION or keyvault:https://HOST/secrets/NAME"

TIMEOUT_SECONDS = 20
BACKOFF_SECONDS = (0.5, 1.5, 4.0)
"""Seconds between the tries of what may pass: too many requests, a server in trouble, no answer."""

MAX_RESPONSE_BYTES = 1 << 20

_HEADER_VALUE = re.compile(r"[\x21-\x7e]+")
"""What a header can carry: http.client would show another value in its error."""


class KeyVault:
    """All vaults that a job asks, with one token for each cloud."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._tokens: dict[str, str] = {}

    def get_secret(self, label: str, name: str) -> str:
        """The value of one secret; RuntimeError, beginning with `what`, with the remedy."""
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
        """A token of the identity that the job runs as: its user's, else the compute's."""
        environ = self._environ
        on_behalf, managed, secret = (environ.get(n, "") for n in ("OBO_ENDPOINT", "MSI_ENDPOINT", "MSI_SECRET"))
        headers: dict[str, str] = {}
        query = {"resource": resource}
        if not on_behalf:
            if not managed or not _HEADER_VALUE.fullmatch(secret):
                raise RuntimeError(f"{label}: the job has no identity to ask the vault with; {NO_IDENTITY}")
            headers = {"secret": secret}
            query["api-version"] = "2017-09-01"
            if environ.get("DEFAULT_IDENTITY_CLIENT_ID"):
                query["clientid"] = environ["DEFAULT_IDENTITY_CLIENT_ID"]
        url = on_behalf or managed
        # The endpoint is on the node itself: a proxy must not see this.
        status, answer = _get(f"{url}{'&' if '?' in url else '?'}{urlencode(query)}", headers, proxy=False)
        token = answer.get("access_token") or answer.get("token")
        if status == 200 and isinstance(token, str) and _HEADER_VALUE.fullmatch(token):
            return token
        who = "the user" if on_behalf else "the compute's identity"
        why = _unreachable(answer) if status == 0 else f"answered {status}{_code(answer)}"
        raise RuntimeError(f"{label}: no token for {who}: the node's own endpoint {why}; {NO_IDENTITY}")


def secret_url(label: str, name: str) -> str:
    """Where a secret is asked for; RuntimeError if the name is none."""
    if name.startswith("https://"):
        place = re.fullmatch(r"(https://[A-Za-z0-9.-]+(?::\d+)?/secrets/[A-Za-z0-9-]+(?:/[A-Za-z0-9]+)?)/?", name)
        url = place[1] if place else ""
    else:
        parts = re.fullmatch(r"([A-Za-z0-9-]+)/([A-Za-z0-9-]+(?:/[A-Za-z0-9]+)?)", name)
        url = f"https://{parts[1]}.{PUBLIC_DOMAIN}/secrets/{parts[2]}" if parts else ""
    if not url:
        raise RuntimeError(f"{label}: names no secret of a vault; write {FORMS}")
    return f"{url}?api-version=7.4"


def _token_audience(url: str) -> str:
    """Whom the token must be for: vaults are at NAME.vault.…, and each cloud has an ending of its own."""
    _, _, rest = (urlsplit(url).hostname or "").partition(".")
    return rest if rest.startswith("vault.") else PUBLIC_DOMAIN


def _explain(status: int, answer: Mapping[str, Any]) -> str:
    """What a vault's answer means, and what helps."""
    code = _code(answer)
    if status == 0:
        return f"{_unreachable(answer)}; the job needs a way to the vault: its firewall, or a private endpoint"
    if status == 403 and "Disabled" in code:
        return f"says that it is disabled{code}: enable it, or name another version"
    if status == 403 and ("Firewall" in code or "Connection" in code):
        return f"lets this node not in{code}: open the vault's firewall to the compute, or give it a private endpoint"
    if status == 403:
        return f"answered 403{code}: the job's identity needs {ROLE}"
    if status == 404:
        return f"has no such secret or version{code}"
    if status == 401:
        return f"does not accept the job's identity{code}: is the vault one of another tenant? It also needs {ROLE}"
    if 300 <= status < 400:
        return f"answered with a redirect ({status}), which is not followed with a token: name the vault's own address"
    if status == 200:
        return "answered without a value: is that a vault?"
    return f"answered {status}{code}"


def _unreachable(answer: Mapping[str, Any]) -> str:
    return f"cannot be reached ({answer['why']})"


def _code(answer: Mapping[str, Any]) -> str:
    """The innermost error code, if it is one word."""
    error: Any = answer.get("error")
    found = ""
    while isinstance(error, dict):
        code = error.get("code")
        found = code if isinstance(code, str) and re.fullmatch(r"[A-Za-z_]{1,60}", code) else found
        error = error.get("innererror")
    return f" ({found})" if found else ""


def _get(url: str, headers: Mapping[str, str], *, proxy: bool = True) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the last try's answer; status 0 with a `why` if there was none."""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if not proxy:
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    status, answer = 0, dict[str, Any]()
    for delay in (*BACKOFF_SECONDS, 0.0):
        status, answer, is_transient = _request_once(opener, urllib.request.Request(url, headers=dict(headers)))
        if not is_transient:
            break
        time.sleep(delay)
    return status, answer


def _request_once(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request
) -> tuple[int, dict[str, Any], bool]:
    """Status, JSON, and whether that may pass."""
    try:
        try:
            response = opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            response = error  # an answer too, and to be closed like one
        with response:
            status = int(response.status)
            return status, _json(response.read(MAX_RESPONSE_BYTES)), status == 429 or status >= 500
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted here: {reason.verify_message}; SSL_CERT_FILE names those that are"
            return 0, {"why": why}, False
        said = reason.strerror if isinstance(reason, OSError) else ""
        if not said:
            late = isinstance(reason, socket.timeout)
            said = f"no answer within {TIMEOUT_SECONDS} s" if late else type(reason).__name__
        return 0, {"why": said}, isinstance(error, (OSError, http.client.HTTPException))


def _json(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as the answer that it is."""

    def redirect_request(self, *_: Any) -> None:
        """No other request is made."""
        return
