"""One container of a run, as any engine can start it: what is in it, what it sees, what it may use. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cloudtrain.contracts.launch import Launch

RUN_LABEL, DATA_LABEL, NODE_LABEL = "cloudtrain.run", "cloudtrain.data", "cloudtrain.node"
"""Labels of all that belongs to a run: its id, the data folder that knows the run, and the node."""

HOME = "/tmp"  # noqa: S108  (inside the container, whose user has no other folder)
LOG_BYTES = 64 * 2**20
"""How much of what a container has printed the engine keeps for sure, while the container is there."""

MIN_SHM_BYTES = 2**30
"""Docker's own 64 MB let DataLoader workers die of a bus error."""

SHM_BYTES_PER_PROCESS = 4 * 2**30
"""Room for the batches that the DataLoader workers of one rank hold ready: 4 workers, 2 batches each, 77 MB per batch
of 128 images of 224 x 224 are 0.6 GB. A limit, not a reservation: only what is written counts as memory."""

ULIMITS = {"memlock": -1, "stack": 64 * 2**20}
"""What NVIDIA's images ask `docker run` for: NCCL pins memory for InfiniBand and for transfers to the GPU, and its
threads want a large stack. Bytes; -1: no limit."""

ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""What a container's root may still do: read and write whatever is mounted, install packages, end its processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bind:
    """A folder or file of this machine, seen inside."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerLaunch(Launch):
    """One node's launcher, in a container."""

    host: str
    """The container's host name, by which its peers find it."""
    binds: tuple[Bind, ...]

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> ContainerLaunch:
        """What `to_json` gave, read back."""
        binds = tuple(Bind(**bind) for bind in document["binds"])
        return ContainerLaunch(**{**document, "argv": tuple(document["argv"]), "binds": binds})


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
    groups: tuple[str, ...] = ()
    """Supplementary groups, by number: an input may be readable through one of them alone."""
    capabilities: tuple[str, ...] = ()
    """The Linux capabilities that it keeps; all others are dropped."""
    ulimits: Mapping[str, int] = field(default_factory=dict)
    """Limits of its processes by the name that Docker has for them, soft and hard; -1: none."""
    shm_bytes: int = MIN_SHM_BYTES
    memory_bytes: int | None = None
    """The most it may use, swap included; None: all of the machine's."""
    gpus: tuple[str, ...] = ()
    """The devices that it sees, by number or UUID; empty: none."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def spec_from_json(document: Mapping[str, Any]) -> ContainerSpec:
    """What `to_json` gave, read back."""
    binds = tuple(Bind(**bind) for bind in document["binds"])
    lists = {name: tuple(document[name]) for name in ("argv", "secrets", "groups", "capabilities", "gpus")}
    return ContainerSpec(**{**document, **lists, "binds": binds})


def host_names(count: int) -> tuple[str, ...]:
    """`node-00`, `node-01`, …: their order as text is the order of the nodes, which is how c10d ranks them."""
    width = max(2, len(str(count - 1)))
    return tuple(f"node-{node:0{width}}" for node in range(count))


def default_shm_bytes(processes: int, memory_bytes: int) -> int:
    """How much shared memory a node gets that does not say.

    `memory_bytes`: what there is for the node. As on Linux itself, shared memory takes half of it at most.
    """
    return max(MIN_SHM_BYTES, min(processes * SHM_BYTES_PER_PROCESS, memory_bytes // 2))


def environment(spec: ContainerSpec, secrets: Mapping[str, str]) -> dict[str, str]:
    """The container's variables. An image knows no user of that number: it has a home and a name all the same.

    Where NVIDIA's is the default runtime, the image's own `NVIDIA_VISIBLE_DEVICES=all` would show every GPU to every
    container: the variable says exactly which ones are meant, `void` for none (NVIDIA Container Toolkit, "Specialized
    Configurations with Docker"). The chosen ones are counted from 0 inside, so a choice by number is not passed on.
    """
    env = {"HOME": HOME, "USER": "cloudtrain", **spec.env, **{name: secrets[name] for name in spec.secrets}}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    return {**env, "NVIDIA_VISIBLE_DEVICES": ",".join(spec.gpus) or "void"}
