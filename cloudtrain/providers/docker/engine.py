"""The edge to Docker: the one module that imports its SDK, and that turns its errors into ours."""

from __future__ import annotations

import queue
import re
import threading
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
from cloudtrain.images.reference import ACR
from cloudtrain.providers import Progress
from cloudtrain.providers.cloud.registry import TOKEN_USER, RegistryImage, RegistryLogin
from cloudtrain.providers.docker.container import LOG_BYTES, ContainerSpec, environment
from cloudtrain.providers.docker.errors import missing_image, refused_push, translated
from cloudtrain.providers.docker.host import environment as environment_of_sdk

_SDK_ERRORS = (DockerException, requests.exceptions.RequestException, OSError)
_LOG = {"max-size": f"{LOG_BYTES}", "max-file": "2", "compress": "false"}
"""The engine keeps what a container prints while it runs, so that a restart of the engine loses none of it."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a container ended."""

    code: int
    out_of_memory: bool
    """Whether the kernel killed anything in it for want of memory, were it only a child."""


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image on this machine."""

    id: str
    names: tuple[str, ...]
    created: float
    """Seconds since 1970."""
    size: int
    """Bytes, layers that others share included."""


class Container:
    """One container: created, then started, then over; removed in any case by whoever created it."""

    def __init__(self, engine: Engine, container_id: str, spec: ContainerSpec) -> None:
        self._api, self._id, self._spec = engine.api, container_id, spec
        self._output: Any = None

    def start(self) -> None:
        """Start it; from its first byte on nothing of what it prints is lost."""
        with _translating_errors(f"start {self._spec.image}", self._spec):
            self._output = self._api.attach(self._id, stream=True, demux=True)
            self._api.start(self._id)

    def output(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """What it prints, as it comes: pieces of its standard output, or else of its standard error; until its end."""
        with _translating_errors(f"read what {self._spec.name} prints", self._spec):
            yield from self._output

    def output_again(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """All that it has printed, from the first byte, and then what comes, until its end.

        From the engine's own log of it, which outlives a restart of the engine and, unlike an attached stream, goes
        over from the old to the new without a gap. The log is read once per stream, since it does not tell them apart.
        """
        pieces: queue.SimpleQueue[tuple[int, bytes | Exception | None]] = queue.SimpleQueue()

        def read(number: int) -> None:
            try:
                log = self._api.logs(self._id, stdout=not number, stderr=bool(number), stream=True, follow=True)
                for piece in log:
                    pieces.put((number, piece))
                pieces.put((number, None))
            except Exception as error:  # noqa: BLE001  (raised where the pieces are read)
                pieces.put((number, error))

        for number in (0, 1):
            threading.Thread(target=read, args=(number,), daemon=True, name=f"log-{number}").start()
        open_streams = 2
        with _translating_errors(f"read what {self._spec.name} has printed", self._spec):
            while open_streams:
                number, piece = pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                if piece is None:
                    open_streams -= 1
                else:
                    yield (piece, None) if number == 0 else (None, piece)

    def output_from_now(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """What it prints from this moment on, until its end."""
        with _translating_errors(f"read what {self._spec.name} prints", self._spec):
            yield from self._api.attach(self._id, stream=True, demux=True)

    def is_running(self) -> bool:
        """Whether it goes on. CloudError, of code `engine`, where no engine answers."""
        with _translating_errors(f"look at {self._spec.name}", self._spec):
            return bool(self._api.inspect_container(self._id)["State"]["Running"])

    def signal(self, name: str) -> None:
        """Send a signal to its first process; one that is over needs none."""
        with _translating_errors(f"signal {self._spec.name}", self._spec), suppress(APIError):
            self._api.kill(self._id, name)

    def exit_status(self) -> ExitStatus:
        """Wait for its end, without any limit, and say how it was."""
        with _translating_errors(f"wait for {self._spec.name}", self._spec):
            self._api.wait(self._id, timeout=None)
            state = self._api.inspect_container(self._id)["State"]
            return ExitStatus(state["ExitCode"], state["OOMKilled"])

    def remove(self) -> None:
        """Remove it, with its anonymous volumes, running or not. One that is gone already is no trouble."""
        if self._output is not None:
            with suppress(Exception):
                self._output.close()
        with _translating_errors(f"remove {self._spec.name}", self._spec):
            _remove(self._api, self._id)


class Engine:
    """The Docker engine of this machine. Every method is one call, or a few."""

    def __init__(self, client: DockerClient) -> None:
        self._client = client
        self.api = client.api

    def machine(self) -> tuple[str, bool]:
        """The architecture that it runs, and whether it is a rootless one: inside, its user is root."""
        with _translating_errors("ask about the machine"):
            info = self.api.info()
        kind = str(info.get("Architecture", ""))
        return _ARCHITECTURES.get(kind, kind), any("rootless" in option for option in info.get("SecurityOptions") or ())

    def image_architecture(self, image: str) -> str | None:
        """The architecture of an image; None when it is not on this machine."""
        with _translating_errors(f"look at {image}"):
            try:
                return str(self.api.inspect_image(image).get("Architecture", ""))
            except ImageNotFound:
                return None

    def images_with_label(self, label: str) -> list[LocalImage]:
        """The images that carry a label, finished ones alone."""
        with _translating_errors("list its images"):
            found = self.api.images(filters={"label": label, "dangling": False})
            found += self.api.images(filters={"label": label, "dangling": True})
        return [
            LocalImage(
                id=each["Id"],
                names=tuple(name for name in each["RepoTags"] or () if "<none>" not in name),
                created=each["Created"],
                size=each["Size"],
            )
            for each in {each["Id"]: each for each in found}.values()
        ]

    def images_in_use(self) -> set[str]:
        """The images of all containers, running or not."""
        with _translating_errors("list its containers"):
            return {container["ImageID"] for container in self.api.containers(all=True)}

    def remove_image(self, name: str) -> None:
        """Remove a name, and with its last one the image; what is gone already, or was taken up just now, stays so."""
        with _translating_errors(f"remove {name}"):
            try:
                self.api.remove_image(name)
            except ImageNotFound:
                pass
            except APIError as error:
                if error.status_code != 409:
                    raise

    def look_up(self, image: str, login: RegistryLogin | None) -> RegistryImage | None:
        """What the registry has at an image's address, as the engine reaches it; None for nothing."""
        with _translating_errors(f"look up {image} in its registry"):
            try:
                told = self.api.inspect_distribution(image, auth_config=_auth_config(login))
            except NotFound:
                return None
            except APIError as error:  # the engine answers, and tells what the registry has said
                why = " ".join(str(error.explanation or error).split())
                raise CloudError(f"Docker could not look up {image}: {why}", code="registry") from error
        platforms = told.get("Platforms") or ()
        names = {each.get("architecture") for each in platforms if each.get("os") == "linux"}
        return RegistryImage(told["Descriptor"]["digest"], frozenset(name for name in names if name))

    def push(self, name: str, address: str, login: RegistryLogin | None, progress: Progress | None) -> str:
        """Push an image of this machine under another address, `repository:tag`; returns its digest there.

        The login stays in memory: nothing is written to docker's own configuration.
        """
        repository, _, tag = address.rpartition(":")
        amounts: dict[str, tuple[int, int]] = {}
        digest = ""
        with _translating_errors(f"push {address}"):
            self.api.tag(name, repository, tag)
            for said in self.api.push(repository, tag, stream=True, decode=True, auth_config=_auth_config(login)):
                if "error" in said:
                    raise refused_push(address, str(said["error"]))
                digest = _digest(said) or digest
                detail = said.get("progressDetail") or {}
                if progress and detail.get("total"):
                    amounts[said.get("id", "")] = min(detail.get("current", 0), detail["total"]), detail["total"]
                    progress(sum(done for done, _ in amounts.values()), sum(total for _, total in amounts.values()))
        if not digest:
            raise CloudError(f"the push of {address} ended without a digest", code="push")
        return digest

    def make_network(self, name: str, labels: Mapping[str, str], *, internal: bool) -> None:
        """A network for the nodes of one run. `internal`: nothing else can be reached from it."""
        with _translating_errors(f"make the network {name}"):
            self.api.create_network(name, driver="bridge", labels=dict(labels), internal=internal)

    def create(self, spec: ContainerSpec, secrets: Mapping[str, str]) -> Container:
        """A container, not started yet. Secrets are in its environment: whoever may ask the engine sees them there."""
        with _translating_errors(f"create a container of {spec.image}", spec):
            host = self.api.create_host_config(
                mounts=[Mount(b.target, b.source, type="bind", read_only=b.read_only) for b in spec.binds],
                shm_size=spec.shm_bytes,
                mem_limit=spec.memory_bytes,
                memswap_limit=spec.memory_bytes,
                device_requests=_devices(spec),
                network_mode=spec.network,
                # SELinux would hide the mounted folders. A program that is set-uid gets no more rights than its user.
                security_opt=["label=disable", "no-new-privileges"],
                cap_drop=["ALL"],
                cap_add=list(spec.capabilities),
                group_add=list(spec.groups),
                ulimits=[Ulimit(name=name, soft=soft, hard=-1) for name, soft in spec.ulimits.items()],
                log_config=LogConfig(type="local", config=_LOG),
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
        return Container(self, made["Id"], spec)

    def labelled(self, labels: Mapping[str, str], wanted: str) -> set[str]:
        """The values of one label among all containers and networks that carry these others."""
        with _translating_errors("list what is there"):
            found = [*self._containers(labels), *self._networks(labels)]
        return {thing["Labels"][wanted] for thing in found if wanted in (thing["Labels"] or {})}

    def clear(self, labels: Mapping[str, str]) -> int:
        """Remove every container and network that carries these labels; returns how many containers there were."""
        with _translating_errors("remove what is left"):
            containers = self._containers(labels)
            for container in containers:
                _remove(self.api, container["Id"])
            for network in self._networks(labels):
                with suppress(NotFound):
                    self.api.remove_network(network["Id"])
        return len(containers)

    def _containers(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.containers(all=True, filters={"label": _label_filters(labels)})
        return found

    def _networks(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.networks(filters={"label": _label_filters(labels)})
        return found


@contextmanager
def engine(seconds: float) -> Iterator[Engine]:
    """The engine that the environment or the current Docker context names. CloudError when it does not answer.

    `seconds`: how long it may be silent in one call.
    """
    try:
        client = DockerClient.from_env(version="auto", timeout=seconds, environment=environment_of_sdk())
    except _SDK_ERRORS as error:
        raise translated(error, "reach the engine") from error
    try:
        yield Engine(client)
    finally:
        client.close()


def stored_login(registry: str) -> RegistryLogin | None:
    """What `docker login` has kept for a registry, helpers of the system included; None where there is nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a helper that is not installed: then there is nothing
            kept = load_config().resolve_authconfig(registry) or {}
    except (*_SDK_ERRORS, ValueError, KeyError):  # a file or a helper that says something else than it should
        return None
    user, password = kept.get("username") or kept.get("Username"), kept.get("password") or kept.get("Password")
    if ACR.fullmatch(registry) and kept.get("IdentityToken"):  # what `az acr login` leaves
        user, password = TOKEN_USER, kept["IdentityToken"]
    return RegistryLogin(user, password) if user and password else None


def _auth_config(login: RegistryLogin | None) -> dict[str, str] | None:
    return {"username": login.user, "password": login.password} if login else None


def _digest(said: Mapping[str, Any]) -> str:
    """The image's digest in one message of a push: beside the words, or in them where containerd keeps the images."""
    told = re.search(r"\bdigest: (sha256:[0-9a-f]{64})\b", str(said.get("status", "")))
    return str((said.get("aux") or {}).get("Digest") or (told[1] if told else ""))


def _devices(spec: ContainerSpec) -> list[DeviceRequest]:
    return [DeviceRequest(device_ids=list(spec.gpus), capabilities=[["gpu"]])] if spec.gpus else []


def _label_filters(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in labels.items()]


def _remove(api: Any, container_id: str) -> None:
    try:
        api.remove_container(container_id, force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if error.status_code != 409:  # somebody else is removing it in this moment
            raise


@contextmanager
def _translating_errors(doing: str, spec: ContainerSpec | None = None) -> Iterator[None]:
    try:
        yield
    except _SDK_ERRORS as error:
        if isinstance(error, ImageNotFound) and spec is not None:
            raise missing_image(spec.image) from error
        raise translated(error, doing, image=spec.image if spec else "") from error
