"""Credentials of the Azure SDKs with cached tokens, and logins to Azure's registries."""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import Any

from azure.core import PipelineClient
from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.rest import HttpRequest
from azure.identity import DefaultAzureCredential

from cloudtrain.errors import DENIED, CloudError
from cloudtrain.planning.reference import is_loopback
from cloudtrain.providers.azure.errors import is_foreign, translated
from cloudtrain.providers.shared.registry import TOKEN_USER, RegistryLogin

REFRESH_SECONDS = 300
"""Seconds from the renewal of a token to its expiry."""

_SCOPE = "https://containerregistry.azure.net/.default"


@cache
def credential() -> CachedCredential:
    """Return the user's credentials; one source per process, so that tokens are shared."""
    return CachedCredential()


class CachedCredential:
    """A credential that caches its tokens: the SDK's many clients would request one each."""

    def __init__(self) -> None:
        self._source = DefaultAzureCredential()
        self._lock = threading.Lock()
        self._known: dict[tuple[Any, ...], AccessToken] = {}

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Return a token, cached unless it is about to expire or `claims` are given."""
        key = (*scopes, options.get("tenant_id"))
        with self._lock:
            token = self._known.get(key)
            if (
                token is None
                or options.get("claims")
                or token.expires_on - REFRESH_SECONDS < time.time()
            ):
                token = self._known[key] = self._source.get_token(*scopes, **options)
        return token


def registry_login(registry: str) -> RegistryLogin:
    """Exchange a token of Entra ID for a refresh token of the registry, as `az acr login` does.

    It is valid for about an hour. Raise CloudError if either of them is refused.
    """
    doing = f"logging in to the registry {registry}"
    try:
        token = credential().get_token(_SCOPE).token
    except Exception as error:
        if not is_foreign(error):
            raise
        raise translated(error, doing, "") from error
    form = {"grant_type": "access_token", "service": registry, "access_token": token}
    address = f"{'http' if is_loopback(registry) else 'https'}://{registry}"
    try:
        client: Any = PipelineClient(address, connection_timeout=15, read_timeout=15)
        with client:
            answer = client.send_request(
                HttpRequest("POST", f"{address}/oauth2/exchange", data=form)
            )
            answer.raise_for_status()
            return RegistryLogin(TOKEN_USER, str(answer.json()["refresh_token"]))
    except HttpResponseError as error:
        message = f"{doing}: it answered {error.status_code}"
        raise CloudError(
            message, hint="the role AcrPush there, and az login", code=DENIED
        ) from error
    except AzureError as error:
        message = f"{doing}: it cannot be reached: {error.message}"
        raise CloudError(
            message, hint="look at the registry's name (az acr list) and the network"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CloudError(f"{doing}: its answer is not a token") from error
