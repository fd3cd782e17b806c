"""Emulate the container of a node by processes: its folders, /opt/ml and host name."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from cloudtrain.planning.sagemaker import NodeContainer, TrainingJob

# -I -S: a PYTHONPATH or PYTHONHOME of the program must not affect the script that enters the namespace.
_ENTER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("namespace.py")))


def create_folders(
    job: TrainingJob, container: NodeContainer, root: Path, paths: Mapping[str, Path]
) -> None:
    """Create below `root` what SageMaker has at /opt/ml. Repeating it changes nothing.

    `paths`: content of each channel on this machine, a folder or a file, which is linked and not
    copied. A channel without a path is an empty folder. Raise FileNotFoundError if a path does not
    exist.
    """
    channels = {root / channel.folder: paths.get(channel.name) for channel in job.channels}
    for folder in channels:
        if folder.is_symlink():  # from an earlier start
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
    """Return the content of an /etc/hosts with this machine and the nodes."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{address} {host}" for host, address in zip(hosts, addresses, strict=True)]
    return "\n".join([*lines, ""])


def addresses(count: int) -> tuple[str, ...]:
    """Return one loopback address per node, in lexicographic order, as c10d ranks nodes.

    Linux answers on all of 127/8; elsewhere, and for a single node, it is 127.0.0.1.
    """
    if count == 1 or sys.platform != "linux":
        return ("127.0.0.1",) * count
    return tuple(f"127.0.{node // 100}.{101 + node % 100}" for node in range(count))


def has_namespaces() -> bool:
    """Return True if a process can have a private /opt/ml and host name here.

    Tested once, in a child process. CLOUDTRAIN_NAMESPACES=0 disables it.
    """
    return sys.platform == "linux" and os.environ.get("CLOUDTRAIN_NAMESPACES") != "0" and _probe()


@cache
def _probe() -> bool:
    try:
        tried = subprocess.run(
            [*_ENTER, "--probe"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def command(
    container: NodeContainer,
    root: Path,
    *,
    hosts_file: Path,
    address: str,
    master: str,
    private: bool,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command of one node, and its variables.

    `private`: run it in namespaces; otherwise variables name its folder and the nodes' addresses.
    """
    if private:
        return (*_ENTER, str(root), container.host, str(hosts_file), *container.argv), dict(
            container.env
        )
    return container.argv, {
        **container.env,
        "SAGEMAKER_BASE_DIR": str(root),
        "CLOUDTRAIN_MASTER_ADDR": master,
        "CLOUDTRAIN_NODE_ADDR": address,
    }
