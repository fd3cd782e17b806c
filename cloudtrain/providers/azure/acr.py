"""A login to a registry of Azure, from the credentials at hand: what `az acr login` does, for an hour or so."""

from __future__ import annotations

from typing import Any

from azure.core import PipelineClient
from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.rest import HttpRequest

from cloudtrain.errors import DENIED, CloudError
from cloudtrain.images.reference import is_loopback
from cloudtrain.providers.azure.client import credential
from cloudtrain.providers.azure.errors import is_foreign, translated
from cloudtrain.providers.cloud.registry import ANYBODY, Login

_SCOPE = "https://containerregistry.azure.net/.default"


def registry_login(registry: str) -> Login:
    """A refresh token of the registry for a token of Entra ID. CloudError when one of them is refused."""
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
            answer = client.send_request(HttpRequest("POST", f"{address}/oauth2/exchange", data=form))
            answer.raise_for_status()
            return Login(ANYBODY, str(answer.json()["refresh_token"]))
    except HttpResponseError as error:
        message = f"{doing}: it answered {error.status_code}"
        raise CloudError(message, hint="the role AcrPush there, and az login", code=DENIED) from error
    except AzureError as error:
        message = f"{doing}: it cannot be reached: {error.message}"
        raise CloudError(message, hint="look at the registry's name (az acr list) and the network") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CloudError(f"{doing}: its answer is not a token") from error
