"""The edge to image registries: what is behind an address, by the distribution specification's own calls.

Reading only; images are pushed by the engine. No SDK: a client without an engine looks, too, before it submits.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from cloudtrain.errors import DENIED, CloudError
from cloudtrain.images.reference import DOCKER_HUB, Address, is_loopback

ANYBODY = "00000000-0000-0000-0000-000000000000"
"""The name that goes with a token in place of a password, in registries of Azure."""

ANSWER_SECONDS = 15
MOST_BYTES = 4 * 2**20
"""The specification's own limit of a manifest."""

INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    *INDEXES,
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a password that a registry takes; for hours, not for ever."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Found:
    """An image that a registry has."""

    digest: str
    architectures: frozenset[str]
    """`amd64`, `arm64`: those it is there for."""


def look(address: Address, login: Login | None) -> Found | None:
    """The image at an address; None when the registry has none. CloudError when it does not say."""
    registry = _Registry(address, login)
    answer = registry.get(f"manifests/{address.reference}", MANIFESTS)
    if answer is None:
        return None
    text, headers = answer
    digest = headers.get("docker-content-digest") or f"sha256:{sha256(text).hexdigest()}"

    def config(name: str) -> bytes:
        try:
            found = registry.get(f"blobs/{name}", ())
        except CloudError:  # the digest is known all the same
            return b"{}"
        return found[0] if found else b"{}"

    return Found(digest, architectures(text, config))


def architectures(manifest: bytes | str, config: Callable[[str], bytes]) -> frozenset[str]:
    """The processors that an image is built for. `config` brings the configuration of that digest."""
    try:
        document = json.loads(manifest)
        if "manifests" in document:
            platforms = [entry.get("platform", {}) for entry in document["manifests"]]
            found = [each.get("architecture") for each in platforms if each.get("os") == "linux"]
        else:
            found = [json.loads(config(document["config"]["digest"])).get("architecture")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return frozenset()  # of another kind than an image; whoever pulls it will say
    return frozenset(str(name) for name in found if name)


def fetch(url: str, headers: Mapping[str, str], form: Mapping[str, str] | None = None) -> tuple[bytes, dict[str, str]]:
    """One request and its whole answer, headers in lower case. urllib's HTTPError, URLError or TimeoutError."""
    body = urllib.parse.urlencode(form).encode() if form is not None else None
    request = urllib.request.Request(url, data=body)
    for name, value in headers.items():  # what is stored elsewhere must not get our login
        (request.add_unredirected_header if name == "Authorization" else request.add_header)(name, value)
    try:
        with _opener(url).open(request, timeout=ANSWER_SECONDS) as answer:
            return answer.read(MOST_BYTES), {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        error.close()
        raise
    except http.client.HTTPException as error:  # something else than a registry answers there
        raise urllib.error.URLError(f"{type(error).__name__}: {str(error)[:80]!r}") from error


def _opener(url: str) -> urllib.request.OpenerDirector:
    """By the proxy that the environment names, but never to this machine, as engines have it."""
    here = is_loopback(urllib.parse.urlsplit(url).netloc)
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if here else []))


def root(registry: str) -> str:
    """The address of a registry itself, plain HTTP on this machine alone, as engines have it."""
    host = "registry-1.docker.io" if registry == DOCKER_HUB else registry
    return f"{'http' if is_loopback(registry) else 'https'}://{host}"


class _Registry:
    """One repository, and what it wants to see before it answers."""

    def __init__(self, address: Address, login: Login | None) -> None:
        self._address, self._login = address, login
        self._authorization = ""

    def get(self, path: str, accept: tuple[str, ...]) -> tuple[bytes, dict[str, str]] | None:
        """The answer of one GET; None for 404."""
        url = f"{root(self._address.registry)}/v2/{self._address.repository}/{path}"
        headers = {"Accept": ", ".join(accept)} if accept else {}
        try:
            try:
                return fetch(url, {**headers, **self._proof()})
            except urllib.error.HTTPError as error:
                if error.code != 401 or self._authorization or _host(error.url) != _host(url):
                    raise
                self._authorization = self._answer(error.headers.get("www-authenticate", ""))
                return fetch(url, {**headers, **self._proof()})
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise (self._trouble(error) if _host(error.url) == _host(url) else self._elsewhere(error)) from error
        except (urllib.error.URLError, TimeoutError, ValueError, OSError) as error:
            message = f"the registry {self._address.registry} cannot be reached: {getattr(error, 'reason', error)}"
            raise CloudError(message, hint="look at the network, then try again", code="Unreachable") from error

    def _proof(self) -> dict[str, str]:
        return {"Authorization": self._authorization} if self._authorization else {}

    def _answer(self, challenge: str) -> str:
        """What it asks for: our login, or a token that its own service gives for it."""
        kind, _, rest = challenge.partition(" ")
        told = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = told.get("realm", "")
        if kind.lower() == "basic":
            return _basic(self._login) if self._login else ""
        parts = urllib.parse.urlsplit(realm)
        if kind.lower() != "bearer" or not (parts.scheme == "https" or is_loopback(parts.netloc)):
            raise ValueError(f"it asks for {challenge[:80]!r}")
        asked = {"service": told.get("service", ""), "scope": f"repository:{self._address.repository}:pull"}
        proof = {"Authorization": _basic(self._login)} if self._login else {}
        try:
            text, _ = fetch(f"{realm}?{urllib.parse.urlencode(asked)}", proof)
        except urllib.error.HTTPError as error:
            if error.code == 404:  # which says nothing of the image
                raise ValueError("its token service is not where it says") from error
            raise self._trouble(error) from error
        document: dict[str, Any] = json.loads(text)
        return f"Bearer {document.get('token') or document.get('access_token') or ''}"

    def _elsewhere(self, error: urllib.error.HTTPError) -> CloudError:
        """Somebody else's refusal: what they ask for is not to be answered with our login."""
        message = f"{_host(error.url)}, where the registry {self._address.registry} sends us, answered {error.code}"
        return CloudError(message, hint="whoever runs the registry can say why", code=str(error.code))

    def _trouble(self, error: urllib.error.HTTPError) -> CloudError:
        name = f"{self._address.registry}/{self._address.repository}"
        if error.code in (401, 403):
            hint = f"docker login {self._address.registry}, or a right to pull there"
            return CloudError(f"the registry does not let us look at {name}", hint=hint, code=DENIED)
        return CloudError(f"the registry {self._address.registry} answered {error.code}", code=str(error.code))


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).netloc


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
