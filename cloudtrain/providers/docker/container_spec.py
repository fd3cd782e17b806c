"""Specification of a run's containers: image, command, mounts, resources. No engine."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from cloudtrain.errors import CloudError
from cloudtrain.planning.launch import Launch
from cloudtrain.runs.provider_config import ProviderConfig

RUN_LABEL = "cloudtrain.run"
DATA_LABEL = "cloudtrain.data"
NODE_LABEL = "cloudtrain.node"
"""Labels of everything in a run: its id, its data folder, and the node."""

HOME = "/tmp"  # noqa: S108  (inside the container, whose user lacks another folder)

SECRET = "CLOUDTRAIN_SECRET_"  # noqa: S105
"""Prefix of a secret's name in the environment of the process that passes it on."""

MIN_SHM_BYTES = 2**30
"""With Docker's default of 64 MB, DataLoader workers die of a bus error."""

SHM_BYTES_PER_PROCESS = 4 * 2**30
"""Enough for batches that the DataLoader workers of a rank prefetch.

4 workers with 2 batches of 77 MB each (128 images of 224 x 224) need 0.6 GB. It is a limit, not a
reservation: unused parts take no memory.
"""

ULIMITS = {"memlock": -1, "stack": 64 * 2**20}
"""Limits that NVIDIA's images recommend for `docker run`, in bytes; -1: no limit.

NCCL pins memory for InfiniBand and for transfers to the GPU, and its threads need a large stack.
"""

ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""Capabilities of a container's root: access mounts, install packages, end its processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DockerConfig(ProviderConfig):
    """Limits of each container, and the distribution of GPUs."""

    cores: int = 1
    """Cores of this machine; nodes share them."""
    gpus: int = 0
    """GPUs per node."""
    shm_bytes: int = 64 * 2**20
    """Shared memory of each container; Docker's own default."""
    memory_bytes: int | None = None
    """Maximum memory of a container; None: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bind:
    """A folder or file of this machine, mounted in a container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerLaunch(Launch):
    """The launcher of one node, in a container."""

    host: str
    """Host name of the container for its peers."""
    binds: tuple[Bind, ...]

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> ContainerLaunch:
        """Read a launch from the result of `to_json`. Raise KeyError or TypeError if malformed."""
        members = dict(document)
        members["argv"] = tuple(document["argv"])
        members["binds"] = tuple(Bind(**bind) for bind in document["binds"])
        return ContainerLaunch(**members)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerSpec:
    """The container of one node."""

    node: int
    image: str
    name: str
    host: str
    """Host name for its peers."""
    network: str
    argv: tuple[str, ...]
    """Command in place of the image's command and entrypoint."""
    folder: str
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    """Names of variables whose values are passed at the start and stored in no file."""
    binds: tuple[Bind, ...]
    labels: Mapping[str, str]
    user: str
    """`uid:gid`."""
    grace_seconds: int
    groups: tuple[str, ...] = ()
    """Supplementary group ids: an input may be readable for one of the groups only."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities to keep; all others are dropped."""
    ulimits: Mapping[str, int] = field(default_factory=dict)
    """Limits of its processes by Docker's names, both soft and hard; -1: no limit."""
    shm_bytes: int = MIN_SHM_BYTES
    memory_bytes: int | None = None
    """Maximum memory, including swap; None: all of the machine's."""
    gpus: tuple[str, ...] = ()
    """Visible GPUs, by number or UUID; empty: none."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


def spec_from_json(document: Mapping[str, Any]) -> ContainerSpec:
    """Read the specification from the result of `to_json`."""
    members = dict(document)
    members["binds"] = tuple(Bind(**bind) for bind in document["binds"])
    for name in ("argv", "secrets", "groups", "capabilities", "gpus"):
        members[name] = tuple(document[name])

    return ContainerSpec(**members)


def host_names(count: int) -> tuple[str, ...]:
    """Return `node-00`, `node-01`, …: c10d ranks nodes by the text order of their names."""
    width = max(2, len(str(count - 1)))
    return tuple(f"node-{node:0{width}}" for node in range(count))


def default_shm_bytes(processes: int, memory_bytes: int) -> int:
    """Return the default shared memory of a node, in bytes.

    `memory_bytes`: the memory for the node. Shared memory takes at most half of it, as on Linux
    itself.
    """
    return max(MIN_SHM_BYTES, min(processes * SHM_BYTES_PER_PROCESS, memory_bytes // 2))


def environment(spec: ContainerSpec, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the container's environment variables.

    The image does not know the user id, so they name a home and a user. If NVIDIA's runtime is the
    default, `NVIDIA_VISIBLE_DEVICES=all` of the image would show every GPU to every container;
    therefore it is set to the GPUs of this one, `void` for none (NVIDIA Container Toolkit,
    "Specialized Configurations with Docker"). They are numbered from 0 in the container, so that
    CUDA_VISIBLE_DEVICES is not passed on. Raise KeyError if a secret is missing.
    """
    env = {"HOME": HOME, "USER": "cloudtrain", **spec.env}
    for name in spec.secrets:
        env[name] = secrets[name]

    env.pop("CUDA_VISIBLE_DEVICES", None)
    env["NVIDIA_VISIBLE_DEVICES"] = ",".join(spec.gpus) or "void"
    return env


def take(gpus: Sequence[str], count: int, held: ExitStack) -> tuple[str, ...]:
    """Reserve the first `count` free GPUs until `held` is closed; return their UUIDs.

    Raise CloudError if there are too few.
    """
    uuids: list[str] = []
    with ExitStack() as taken:
        for gpu in gpus:
            if len(uuids) < count and _hold(gpu, taken):
                uuids.append(gpu)
        if len(uuids) == count:
            held.push(taken.pop_all())
            return tuple(uuids)

    message = f"the run needs {count} of the {len(gpus)} visible GPUs of this machine"
    if uuids:
        message += f", and other runs leave {len(uuids)}"

    hint = "wait for other runs, or choose other GPUs by CUDA_VISIBLE_DEVICES"
    raise CloudError(message, hint=hint, code="gpus")


def _hold(gpu: str, held: ExitStack) -> bool:
    """Reserve a GPU until this process ends, by an abstract socket of Linux.

    Return False if it is taken.
    """
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0cloudtrain-gpu-{gpu}")
    except OSError:
        holder.close()
        return False

    held.enter_context(holder)
    return True
