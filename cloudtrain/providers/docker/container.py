"""One container in the Docker engine, from start to removal, with translated errors."""

from __future__ import annotations

import queue
import threading
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

    def output_again(self) -> Output:
        """Yield all its output from the first byte on, until it ends.

        Read from the engine's log, which survives a restart of the engine and leaves no gap between
        old and new output. The log is read once per stream, because it does not distinguish the
        streams.
        """
        pieces: queue.SimpleQueue[tuple[int, bytes | Exception | None]] = queue.SimpleQueue()

        def read(number: int) -> None:
            try:
                log = self._api.logs(
                    self._id, stdout=not number, stderr=bool(number), stream=True, follow=True
                )
                for piece in log:
                    pieces.put((number, piece))
                pieces.put((number, None))
            except Exception as error:  # noqa: BLE001  (raised where the pieces are read)
                pieces.put((number, error))

        for number in (0, 1):
            threading.Thread(target=read, args=(number,), daemon=True, name=f"log-{number}").start()
        open_streams = 2
        with translating_errors(f"read what {self._spec.name} has printed", self._spec):
            while open_streams:
                number, piece = pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                if piece is None:
                    open_streams -= 1
                else:
                    yield (piece, None) if number == 0 else (None, piece)

    def output_from_now(self) -> Output:
        """Yield its output from now on, until it ends."""
        with translating_errors(f"read what {self._spec.name} prints", self._spec):
            yield from self._api.attach(self._id, stream=True, demux=True)

    def is_running(self) -> bool:
        """Return True if it is running. CloudError with code `engine` if no engine answers."""
        with translating_errors(f"look at {self._spec.name}", self._spec):
            return bool(self._api.inspect_container(self._id)["State"]["Running"])

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
