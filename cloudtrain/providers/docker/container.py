"""One container in the Docker engine, from start to removal, with translated errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from cloudtrain.providers.docker.container_spec import ContainerSpec
from cloudtrain.providers.docker.errors import missing_image, translated

SDK_ERRORS = (DockerException, requests.exceptions.RequestException, OSError)
"""Exceptions of failing SDK calls."""

Output = Iterator[tuple[bytes | None, bytes | None]]
"""Pieces of a container's output: standard output, or else standard error."""


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
        raise translated(error, doing, image=spec.image if spec else "") from error
