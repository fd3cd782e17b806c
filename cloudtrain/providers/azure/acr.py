"""A login to a registry of Azure, from the credentials at hand: what `az acr login` does, for an hour or so."""

from __future__ import annotations

import json
import urllib.error

from cloudtrain.errors import DENIED, CloudError
from cloudtrain.providers.azure.client import credential
from cloudtrain.providers.azure.errors import is_foreign, translated
from cloudtrain.providers.cloud.registry import ANYBODY, Login, fetch, root

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
    try:
        text, _ = fetch(f"{root(registry)}/oauth2/exchange", {}, form)
        return Login(ANYBODY, str(json.loads(text)["refresh_token"]))
    except urllib.error.HTTPError as error:
        message = f"{doing}: it answered {error.code}"
        raise CloudError(message, hint="the role AcrPush there, and az login", code=DENIED) from error
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        message = f"{doing}: it cannot be reached: {getattr(error, 'reason', error)}"
        raise CloudError(message, hint="look at the registry's name (az acr list) and the network") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CloudError(f"{doing}: its answer is not a token") from error
