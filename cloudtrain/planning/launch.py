"""Launcher call on one node, job document for all nodes, and the request with it. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cloudtrain.source.tree import PAYLOAD_FOLDER

PACKAGES_DIR = "CLOUDTRAIN_PACKAGES_DIR"
"""Variable with this machine's folder of installed packages."""

PUBLISHED = "CLOUDTRAIN_PUBLISHED"
"""Variable with the folder that the client publishes files in."""

WHEELS = f"{PAYLOAD_FOLDER}/wheels"
"""Folder of downloaded wheels in the archive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Launcher call of a node: command, folder and variables."""

    node: int
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    """Variables besides the machine's own. The rendezvous port is chosen at the start."""
    secrets: Mapping[str, str]
    """Variable -> source of its value at the start, such as `env:NAME`."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Launch:
        """Read the result of `to_json`."""
        return Launch(**{**document, "argv": tuple(document["argv"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDocument:
    """Part of a plan for the launcher on every node; its own `Job` explains the fields.

    Fields with default values are not written.
    """

    run_id: str
    name: str
    kind: str
    target: str
    argv: tuple[str, ...]
    values: Any
    """Plain JSON. A long text may be a reference to an argument."""
    nodes: int
    processes: int
    gpus: int
    restarts: int
    grace_seconds: int
    checkpoint_every_seconds: int
    checkpoint_keep: int
    require_group: bool = False
    hang_seconds: int = 1800
    network_gbps: int = 0
    warm: bool = True
    inputs: Mapping[str, Mapping[str, str]] | None = None
    masked: tuple[str, ...] = ()
    stop_after_seconds: int | None = None
    secrets: Mapping[str, str] | None = None
    dependencies: Mapping[str, Any] | None = None
    metrics: Mapping[str, str] | None = None
    keep: tuple[str, ...] = ()
    tuned: Mapping[str, Mapping[str, Any]] | None = None
    service_metric: str = ""
    trial: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON with the format version."""
        document: dict[str, Any] = {"version": 1}
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                document[item.name] = list(value) if isinstance(value, tuple) else value
        return document


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The request that starts a job: `plan --json` prints `document`, `start` sends it."""

    provider: str
    document: Mapping[str, Any]
    """Request in the platform's format: plain JSON."""
    job: JobDocument
    """Document for the launcher of every node, sent with the request."""
