"""The Docker engine of this machine: images, networks and containers.

Only this module uses the SDK.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import requests
from docker.auth import load_config
from docker.client import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from cloudtrain.errors import CloudError
from cloudtrain.planning.reference import ACR
from cloudtrain.planning.registry import TOKEN_USER, RegistryImage, RegistryLogin
from cloudtrain.providers.docker.container_spec import ContainerSpec, environment
from cloudtrain.providers.docker.errors import (
    missing_image,
    refused_push,
    require_listener,
    sdk_environment,
    translated,
)
from cloudtrain.providers.progress import Progress

SDK_ERRORS = (DockerException, requests.exceptions.RequestException, OSError)
"""Exceptions of failing SDK calls."""

Output = Iterator[tuple[bytes | None, bytes | None]]
"""Pieces of a container's output: standard output, or else standard error."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a container ended."""

    code: int
    out_of_memory: bool
    """True if the kernel killed a process in it because memory ran out."""


class Container:
    """A created container; its creator must remove it. All methods may raise CloudError."""

    def __init__(self, api: Any, container_id: str, spec: ContainerSpec) -> None:
        self._api = api
        self._id = container_id
        self._spec = spec
        self._output: Any = None

    def start(self) -> None:
        """Start it, after attaching to its output so that every line arrives."""
        with translating_errors(f"start {self._spec.image}", self._spec):
            self._output = self._api.attach(self._id, stream=True, demux=True)
            self._api.start(self._id)

    def output(self) -> Output:
        """Yield its output until it ends."""
        with translating_errors(f"read what {self._spec.name} prints", self._spec):
            yield from self._output

    def signal(self, name: str) -> None:
        """Send a signal to its first process; do nothing if it has ended."""
        with translating_errors(f"signal {self._spec.name}", self._spec), suppress(APIError):
            self._api.kill(self._id, name)

    def exit_status(self) -> ExitStatus:
        """Wait for its end, without a timeout."""
        with translating_errors(f"wait for {self._spec.name}", self._spec):
            self._api.wait(self._id, timeout=None)
            state = self._api.inspect_container(self._id)["State"]
            return ExitStatus(state["ExitCode"], state["OOMKilled"])

    def remove(self) -> None:
        """Remove it with its anonymous volumes, running or not; do nothing if it is gone."""
        if self._output is not None:
            with suppress(Exception):
                self._output.close()
        with translating_errors(f"remove {self._spec.name}", self._spec):
            remove_container(self._api, self._id)


def remove_container(api: Any, container_id: str) -> None:
    try:
        api.remove_container(container_id, force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if error.status_code != 409:  # it is being removed already
            raise


@contextmanager
def translating_errors(doing: str, spec: ContainerSpec | None = None) -> Iterator[None]:
    try:
        yield
    except SDK_ERRORS as error:
        if isinstance(error, ImageNotFound) and spec is not None:
            raise missing_image(spec.image) from error
        image = spec.image if spec else ""
        raise translated(error, doing, image=image) from error


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts that an engine reports about itself."""

    version: str
    architecture: str
    """`amd64`, `arm64`."""
    is_rootless: bool
    """True if the engine is rootless: root in a container is this user."""
    gives_gpus: bool
    """True if the NVIDIA Container Toolkit is configured: as a runtime, or by CDI."""


class Engine:
    """The Docker engine of this machine. All methods may raise CloudError."""

    def __init__(self, client: DockerClient) -> None:
        self._client = client
        self.api = client.api

    def info(self) -> EngineInfo:
        """Return its version and abilities."""
        with translating_errors("ask about the machine"):
            answer = self.api.info()

        kind = str(answer.get("Architecture", ""))
        options = answer.get("SecurityOptions") or ()
        runtimes = answer.get("Runtimes") or {}
        devices = [str(device.get("ID", "")) for device in answer.get("DiscoveredDevices") or ()]
        by_device = any(device.startswith("nvidia") for device in devices)
        return EngineInfo(
            version=str(answer.get("ServerVersion", "")),
            architecture=_ARCHITECTURES.get(kind, kind),
            is_rootless=any("rootless" in option for option in options),
            gives_gpus="nvidia" in runtimes or by_device,
        )

    def image_architecture(self, image: str) -> str | None:
        """Return the architecture of an image; None if it is not on this machine."""
        with translating_errors(f"look at {image}"):
            try:
                return str(self.api.inspect_image(image).get("Architecture", ""))
            except ImageNotFound:
                return None

    def look_up(self, image: str, login: RegistryLogin | None) -> RegistryImage | None:
        """Ask a registry, through the engine, for the image at an address, or return None."""
        with translating_errors(f"look up {image} in its registry"):
            try:
                answer = self.api.inspect_distribution(image, auth_config=_auth_config(login))
            except NotFound:
                return None
            except APIError as error:  # the engine passes on the registry's answer
                why = " ".join(str(error.explanation or error).split())
                raise CloudError(
                    f"Docker could not look up {image}: {why}", code="registry"
                ) from error

        architectures = set()
        for platform in answer.get("Platforms") or ():
            if platform.get("os") == "linux" and platform.get("architecture"):
                architectures.add(platform["architecture"])

        return RegistryImage(answer["Descriptor"]["digest"], frozenset(architectures))

    def push(
        self,
        name: str,
        address: str,
        login: RegistryLogin | None,
        progress: Progress | None,
    ) -> str:
        """Push a local image to `address`, `repository:tag`; returns its digest (`sha256:…`).

        The login stays in memory and is not written to docker's configuration.
        """
        repository, _, tag = address.rpartition(":")
        amounts: dict[str, tuple[int, int]] = {}

        digest = ""
        with translating_errors(f"push {address}"):
            self.api.tag(name, repository, tag)
            messages = self.api.push(
                repository,
                tag,
                stream=True,
                decode=True,
                auth_config=_auth_config(login),
            )
            for message in messages:
                if "error" in message:
                    raise refused_push(address, str(message["error"]))
                digest = _digest(message) or digest
                detail = message.get("progressDetail") or {}
                total = detail.get("total")
                if progress and total:
                    amounts[message.get("id", "")] = (min(detail.get("current", 0), total), total)
                    sent_bytes = sum(sent for sent, _ in amounts.values())
                    progress(sent_bytes, sum(size for _, size in amounts.values()))
        if not digest:
            raise CloudError(f"the push of {address} ended without a digest", code="push")

        return digest

    def make_network(self, name: str, labels: Mapping[str, str], *, internal: bool) -> None:
        """Create a network for the nodes of a run. `internal`: without a route to the outside."""
        with translating_errors(f"make the network {name}"):
            self.api.create_network(name, driver="bridge", labels=dict(labels), internal=internal)

    def create(self, spec: ContainerSpec, secrets: Mapping[str, str]) -> Container:
        """Create a container, without starting it.

        Users of the engine can read the secrets in its environment.
        """
        with translating_errors(f"create a container of {spec.image}", spec):
            host = self.api.create_host_config(
                mounts=[
                    Mount(bind.target, bind.source, type="bind", read_only=bind.read_only)
                    for bind in spec.binds
                ],
                shm_size=spec.shm_bytes,
                mem_limit=spec.memory_bytes,
                memswap_limit=spec.memory_bytes,
                device_requests=_devices(spec),
                network_mode=spec.network,
                # SELinux would hide the mounted folders. A program that is set-uid gets no more
                # rights than its user.
                security_opt=["label=disable", "no-new-privileges"],
                cap_drop=["ALL"],
                cap_add=list(spec.capabilities),
                group_add=list(spec.groups),
                ulimits=[
                    Ulimit(name=name, soft=soft, hard=-1) for name, soft in spec.ulimits.items()
                ],
                log_config=LogConfig(type="local"),
            )
            aliases = self.api.create_endpoint_config(aliases=[spec.host])
            made = self.api.create_container(
                spec.image,
                entrypoint=[spec.argv[0]],
                command=list(spec.argv[1:]),
                name=spec.name,
                hostname=spec.host,
                user=spec.user,
                working_dir=spec.folder,
                environment=environment(spec, secrets),
                labels=dict(spec.labels),
                host_config=host,
                networking_config=self.api.create_networking_config({spec.network: aliases}),
            )

        return Container(self.api, made["Id"], spec)

    def labelled(self, labels: Mapping[str, str], label: str) -> set[str]:
        """Return the values of `label` among all containers and networks with these labels."""
        with translating_errors("list containers and networks"):
            resources = self._containers(labels) + self._networks(labels)

        return {thing["Labels"][label] for thing in resources if label in (thing["Labels"] or {})}

    def clear(self, labels: Mapping[str, str]) -> int:
        """Remove all containers and networks with these labels; return the number of containers."""
        with translating_errors("remove what is left"):
            containers = self._containers(labels)
            for container in containers:
                remove_container(self.api, container["Id"])
            for network in self._networks(labels):
                with suppress(NotFound):
                    self.api.remove_network(network["Id"])

        return len(containers)

    def _containers(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        containers: list[dict[str, Any]] = self.api.containers(
            all=True, filters={"label": _label_filters(labels)}
        )
        return containers

    def _networks(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        networks: list[dict[str, Any]] = self.api.networks(
            filters={"label": _label_filters(labels)}
        )
        return networks


@contextmanager
def engine(seconds: float) -> Iterator[Engine]:
    """Connect to the engine of the environment or the current Docker context.

    `seconds`: timeout of one call. Raise CloudError if the engine does not answer.
    """
    client = connect(seconds)
    try:
        yield Engine(client)
    finally:
        client.close()


def connect(seconds: float) -> DockerClient:
    """Return a client of the same engine; its owner closes it. May raise CloudError."""
    try:
        require_listener(seconds)
        return DockerClient.from_env(version="auto", timeout=seconds, environment=sdk_environment())
    except SDK_ERRORS as error:
        raise translated(error, "reach the engine") from error


def stored_login(registry: str) -> RegistryLogin | None:
    """Return the login of `docker login` for a registry, also by credential helpers, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about helpers that are not installed
            entry = load_config().resolve_authconfig(registry) or {}
    except (*SDK_ERRORS, ValueError, KeyError):  # an invalid file, or a helper that fails
        return None

    user = entry.get("username") or entry.get("Username")
    password = entry.get("password") or entry.get("Password")
    if ACR.fullmatch(registry) and entry.get("IdentityToken"):  # from `az acr login`
        user = TOKEN_USER
        password = entry["IdentityToken"]

    if user and password:
        return RegistryLogin(user, password)

    return None


def _auth_config(login: RegistryLogin | None) -> dict[str, str] | None:
    if not login:
        return None

    return {"username": login.user, "password": login.password}


def _digest(message: Mapping[str, Any]) -> str:
    """Return the digest in a message of a push.

    It is a field, or part of the status if containerd stores the images.
    """
    digest = (message.get("aux") or {}).get("Digest")
    if digest:
        return str(digest)

    pushed = re.search(r"\bdigest: (sha256:[0-9a-f]{64})\b", str(message.get("status", "")))
    return pushed[1] if pushed else ""


def _devices(spec: ContainerSpec) -> list[DeviceRequest]:
    if not spec.gpus:
        return []

    return [DeviceRequest(device_ids=list(spec.gpus), capabilities=[["gpu"]])]


def _label_filters(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in labels.items()]
