"""One container of a run, as any engine can start it: what is in it, what it sees, what it may use. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

RUN_LABEL, DATA_LABEL, NODE_LABEL = "cloudtrain.run", "cloudtrain.data", "cloudtrain.node"
"""Labels of all that belongs to a run: its id, the data folder that knows the run, and the node."""

HOME = "/tmp"  # noqa: S108  (inside the container, whose user has no other folder)
DEFAULT_SHM_BYTES = 2**30
"""Docker's own 64 MB let DataLoader workers die of a bus error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bind:
    """A folder or file of this machine, seen inside."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerSpec:
    """One node's container."""

    node: int
    image: str
    name: str
    host: str
    """Its host name, by which its peers find it."""
    network: str
    argv: tuple[str, ...]
    """In place of whatever the image starts by itself."""
    folder: str
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    """Names of variables whose values are handed over at the start, and are in no file."""
    binds: tuple[Bind, ...]
    labels: Mapping[str, str]
    user: str
    """`uid:gid`."""
    grace_seconds: int
    shm_bytes: int = DEFAULT_SHM_BYTES
    memory_bytes: int | None = None
    """The most it may use, swap included; None: all of the machine's."""
    gpus: tuple[str, ...] = ()
    """The devices that it sees, by their numbers."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def spec_from_json(document: Mapping[str, Any]) -> ContainerSpec:
    """What `to_json` gave, read back."""
    binds = tuple(Bind(**bind) for bind in document["binds"])
    lists = {name: tuple(document[name]) for name in ("argv", "secrets", "gpus")}
    return ContainerSpec(**{**document, **lists, "binds": binds})


def host_names(count: int) -> tuple[str, ...]:
    """`node-00`, `node-01`, …: their order as text is the order of the nodes, which is how c10d ranks them."""
    width = max(2, len(str(count - 1)))
    return tuple(f"node-{node:0{width}}" for node in range(count))


def environment(spec: ContainerSpec, secrets: Mapping[str, str]) -> dict[str, str]:
    """The container's variables. An image knows no user of that number: it has a home and a name all the same."""
    return {"HOME": HOME, "USER": "cloudtrain", **spec.env, **{name: secrets[name] for name in spec.secrets}}
