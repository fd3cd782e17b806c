"""One node's container as processes of this machine: its tree on disk, its private /opt/ml and its host name."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from cloudtrain.contracts.sagemaker import NodeContainer, TrainingJob

# -I -S: the variables are the program's; a PYTHONPATH or PYTHONHOME among them is not meant for the one that enters.
_ENTER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("namespace.py")))

_FIRST, _PER_BLOCK, _MOST = 101, 150, 1000


def build(job: TrainingJob, container: NodeContainer, root: Path, places: Mapping[str, Path]) -> None:
    """Lay out below `root` what SageMaker puts at /opt/ml. Doing it again changes nothing.

    `places` says where each channel's content lies on this machine, a folder or a single file: it is linked, not
    copied. A channel without a place is an empty folder. FileNotFoundError when there is nothing at a place.
    """
    channels = {root / channel.folder: places.get(channel.name) for channel in job.channels}
    for folder in channels:
        if folder.is_symlink():  # from an earlier time
            folder.unlink()
    for name in job.folders:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in container.files.items():
        (root / name).write_text(text, encoding="utf-8")
    for folder, place in channels.items():
        if place is None:
            continue
        if not place.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
        if place.is_dir():
            folder.rmdir()
            folder.symlink_to(place.absolute())
        else:
            link = folder / place.name
            link.unlink(missing_ok=True)
            link.symlink_to(place.absolute())


def hosts_text(hosts: Sequence[str], addresses: Sequence[str]) -> str:
    """An /etc/hosts that knows this machine and the nodes by name."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{address} {host}" for host, address in zip(hosts, addresses, strict=True)]
    return "\n".join([*lines, ""])


def addresses(count: int) -> tuple[str, ...]:
    """One loopback address per node, in an order that is theirs as text too: that is how c10d ranks nodes.

    Linux answers on all of 127/8; elsewhere, and for a single node, it is 127.0.0.1.
    """
    if count > _MOST:
        raise ValueError(f"{count} nodes: one machine has loopback addresses for {_MOST}")
    if count == 1 or sys.platform != "linux":
        return ("127.0.0.1",) * count
    return tuple(f"127.0.{node // _PER_BLOCK}.{_FIRST + node % _PER_BLOCK}" for node in range(count))


def is_private() -> bool:
    """Whether this machine gives a process an /opt/ml and a host name of its own. CLOUDTRAIN_NAMESPACES=0: as if not.

    Tried once per process, in a process of its own.
    """
    return sys.platform == "linux" and os.environ.get("CLOUDTRAIN_NAMESPACES") != "0" and _probe()


@cache
def _probe() -> bool:
    try:
        tried = subprocess.run(
            [*_ENTER, "--probe"], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def command(
    container: NodeContainer, root: Path, *, hosts_file: Path, address: str, master: str, private: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """What to execute for one node, and the variables that it gets on top of those a platform has anyway.

    Where nothing is private the tree is named by a variable, and the nodes find each other by address.
    """
    if private:
        return (*_ENTER, str(root), container.host, str(hosts_file), *container.argv), dict(container.env)
    return container.argv, {
        **container.env,
        "SAGEMAKER_BASE_DIR": str(root),
        "CLOUDTRAIN_MASTER_ADDR": master,
        "CLOUDTRAIN_NODE_ADDR": address,
    }
