"""Azure ML's mapping: from the variables of a PyTorch distribution to the node's `Place`. Standard library only.

The variables are those of "Distributed GPU training guide" in the documentation of Azure Machine Learning. Azure ML
counts its own processes, one per node: its WORLD_SIZE is the number of nodes. Output, model and checkpoints are mounts
that all nodes share; where each of them is only the job's command knows, which says so in variables of ours. Programs
write beside the code instead, on the node's own disk, and the launcher keeps what they write in the mounts.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
from pathlib import Path
from typing import Mapping

from cloudtrain_launcher import environment
from cloudtrain_launcher.contract import JOB, RESUME_DIR, NodeContext
from cloudtrain_launcher.stop_sources import scheduled_events_url

DISTRIBUTION = "distribution: {type: pytorch, process_count_per_instance: 1}"

STOP_FILE = ".cloudtrain-stop"
"""In the output folder: asks all nodes for a stop. Azure ML promises no signal before it ends a job."""

KEPT_BY_AZURE = ("outputs", "logs")
"""Folders of the job's working folder that Azure ML itself stores with the job ("Save and log files" in its
documentation). Programs run one folder below that."""

_SIOCGIFADDR = 0x8915


def azureml(environ: Mapping[str, str]) -> NodeContext:
    """One node of a command job. RuntimeError if its variables make no sense."""
    rank, nodes = _position(environ)
    master = environ["MASTER_ADDR"]
    ours = "CLOUDTRAIN_MASTER_PORT"
    port = environment.require_number(environ, ours if environ.get(ours) else "MASTER_PORT")
    address = environ.get("CLOUDTRAIN_NODE_ADDR") or own_address(master, port)
    job_folders = environment.job_folders(environ)
    mounts = {name: job_folders[name] for name in ("output_dir", "model_dir", "checkpoint_dir")}
    local = {name: str(Path.cwd().parent / "kept" / name.partition("_")[0]) for name in mounts}
    return NodeContext(
        platform="azureml",
        node_rank=rank,
        nodes=nodes,
        master_addr=master,
        master_port=port,
        address=address,
        interface=interface_of(address),
        **{**job_folders, **local},
        failure_file="",
        job_file="",
        job_document=environment.require_text(environ, JOB),
        resume_dir=environ.get(RESUME_DIR, ""),
        stop_file=f"{mounts['output_dir']}/{STOP_FILE}",
        stopped_exit_code=0,  # any other ends the job for the peers too, who may still be saving
        scheduled_events_url=scheduled_events_url(environ),
        linked_dirs={str(Path.cwd() / name): str(Path.cwd().parent / name) for name in KEPT_BY_AZURE},
        synced_dirs={local[name]: mount for name, mount in mounts.items()},
    )


def _position(environ: Mapping[str, str]) -> tuple[int, int]:
    """This node's rank, and how many nodes there are."""
    missing = [name for name in ("MASTER_ADDR", "NODE_RANK", "WORLD_SIZE") if not environ.get(name)]
    if missing:
        raise RuntimeError(
            f"Azure ML has not set {', '.join(missing)}: the job was submitted without {DISTRIBUTION}, "
            "so its nodes do not know each other"
        )
    rank, nodes = environment.require_number(environ, "NODE_RANK"), environment.require_number(environ, "WORLD_SIZE")
    local = environ.get("LOCAL_RANK") or "0"
    if local != "0":
        raise RuntimeError(
            f"LOCAL_RANK is {local!r}: Azure ML has started several launchers on one node, because "
            f"process_count_per_instance is more than 1; submit the job with {DISTRIBUTION}"
        )
    if rank >= nodes:
        raise RuntimeError(
            f"NODE_RANK is {rank} and WORLD_SIZE is {nodes}: ranks are below the number of nodes; "
            f"submit the job with {DISTRIBUTION}"
        )
    return rank, nodes


def own_address(master: str, port: int) -> str:
    """This node's address as seen on the way to the first node; empty if it cannot be told. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master, port))
            found = str(probe.getsockname()[0])
    except (OSError, OverflowError, UnicodeError):
        return ""
    # A hosts file may say that a node's own name is 127.0.1.1: its peers do not reach it there.
    return "" if found.startswith("127.") and not master.startswith("127.") else found


def interface_of(address: str) -> str:
    """The network interface that carries the address; empty if that is unknown."""
    try:
        names = [name for _, name in socket.if_nameindex()]
    except OSError:
        return ""
    if address.startswith("127."):  # all of them are the loopback's, which names the first one only
        return next((name for name in ("lo", "lo0") if name in names), "")
    return next((name for name in names if address and _address_of(name) == address), "")


def _address_of(interface: str) -> str:
    """An interface's IPv4 address (netdevice(7), Linux)."""
    if sys.platform != "linux":
        return ""
    request = struct.pack("16s24x", interface.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError:  # it has none
        return ""
