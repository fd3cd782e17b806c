"""Mapping of the variables of Azure ML's distributions to a `NodeContext`. Standard library only.

See "Distributed GPU training guide" in the documentation of Azure Machine Learning. Azure ML starts
one process per node; with PyTorch's distribution its WORLD_SIZE is the number of nodes. Output,
model and checkpoints are mounts shared by all nodes; the job's command passes their paths in our
own variables. Programs write to the node's own disk, and the launcher copies their files to the
mounts.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from cloudtrain_launcher.contract import JOB, PUBLISHED, RESUME_DIR, NodeContext
from cloudtrain_launcher.environment import JobFolders, job_folders, require_number, require_text
from cloudtrain_launcher.scheduled_events import scheduled_events_url
from cloudtrain_wire.tuned_values import VARIABLES

MASTER_PORT = 6105
"""Port of the first node, unless the distribution names one."""

DISTRIBUTION = "distribution: {type: pytorch, process_count_per_instance: 1}"

STOP_FILE = ".cloudtrain-stop"
"""Stop request for all nodes in the output folder: Azure ML may end a job without a signal."""

PUBLISHED_FOLDER = ".cloudtrain-published"
"""Folder in the output folder with the client's files for the running job."""

UPLOADED_BY_AZURE = ("outputs", "logs")
"""Folders of the job that Azure ML itself uploads ("Save and log files" in its documentation).

Programs run one folder below the job's folder.
"""

TRIAL_FOLDER = "CLOUDTRAIN_TRIAL_FOLDER"
"""Variable with a trial's folder below each output; unset: the job's name.

Empty in a rehearsal, where each trial has separate outputs.
"""

_SIOCGIFADDR = 0x8915


def azureml_context(environ: Mapping[str, str]) -> NodeContext:
    """Describe one node of a command job. Raise RuntimeError for a missing or invalid variable."""
    rank, nodes, master = _position(environ)
    port = MASTER_PORT
    for name in ("CLOUDTRAIN_MASTER_PORT", "MASTER_PORT"):
        if environ.get(name):
            port = require_number(environ, name)
            break

    address = environ.get("CLOUDTRAIN_NODE_ADDR") or own_address(master, port)
    chosen = {}
    for name, text in environ.items():
        if name.startswith(VARIABLES):
            chosen[name.removeprefix(VARIABLES)] = text

    job_name = environ.get("AZUREML_RUN_ID", "")
    if chosen:
        mounts = _own_folders(environ, job_name)
    else:
        mounts = job_folders(environ)

    parent = Path.cwd().parent
    kept = parent / "kept"
    output = str(kept / "output")
    model = str(kept / "model")
    checkpoints = str(kept / "checkpoint")

    return NodeContext(
        platform="azureml",
        node_rank=rank,
        nodes=nodes,
        master_addr=master,
        master_port=port,
        address=address,
        interface=interface_of(address),
        output_dir=output,
        model_dir=model,
        checkpoint_dir=checkpoints,
        inputs=mounts.inputs,
        failure_file="",
        job_file="",
        job_document=require_text(environ, JOB),
        resume_dir=environ.get(RESUME_DIR, ""),
        stop_file=f"{mounts.output_dir}/{STOP_FILE}",
        published=environ.get(PUBLISHED) or f"{mounts.output_dir}/{PUBLISHED_FOLDER}",
        # With another code Azure ML also ends the peers, which may still be saving.
        stopped_exit_code=0,
        scheduled_events_url=scheduled_events_url(environ),
        linked_dirs={str(Path.cwd() / name): str(parent / name) for name in UPLOADED_BY_AZURE},
        synced_dirs={
            output: mounts.output_dir,
            model: mounts.model_dir,
            checkpoints: mounts.checkpoint_dir,
        },
        job_name=job_name if chosen else "",
        hyperparameters=chosen,
    )


def _own_folders(environ: Mapping[str, str], job_name: str) -> JobFolders:
    """Return a trial's folders: all trials of a sweep job share its outputs."""
    subfolder = environ.get(TRIAL_FOLDER, job_name)
    if not subfolder and TRIAL_FOLDER not in environ:
        raise RuntimeError(
            "Azure ML has not set AZUREML_RUN_ID: trials of the sweep would write to the same"
            " folder"
        )

    shared = job_folders(environ)
    if not subfolder:
        return shared

    output = f"{shared.output_dir}/{subfolder}"
    model = f"{shared.model_dir}/{subfolder}"
    checkpoints = f"{shared.checkpoint_dir}/{subfolder}"
    for folder in (output, model, checkpoints):
        Path(folder).mkdir(parents=True, exist_ok=True)

    return JobFolders(output, model, checkpoints, shared.inputs)


def _position(environ: Mapping[str, str]) -> tuple[int, int, str]:
    """Return this node's rank, the number of nodes, and the first node's address."""
    if not environ.get("MASTER_ADDR"):
        if environ.get("OMPI_COMM_WORLD_RANK"):
            return _position_of_mpi(environ)
        if environ.get("TF_CONFIG"):
            return _position_of_tensorflow(environ)

    missing = [name for name in ("MASTER_ADDR", "NODE_RANK", "WORLD_SIZE") if not environ.get(name)]
    if missing:
        raise RuntimeError(
            f"Azure ML has not set {', '.join(missing)}: the job was submitted without"
            f" {DISTRIBUTION}, so its nodes do not know each other"
        )

    rank = require_number(environ, "NODE_RANK")
    nodes = require_number(environ, "WORLD_SIZE")
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

    return rank, nodes, environ["MASTER_ADDR"]


def _position_of_mpi(environ: Mapping[str, str]) -> tuple[int, int, str]:
    """Return the position among the processes of mpirun, one per node.

    Microsoft's examples read the first node's address from the same variables.
    """
    rank = require_number(environ, "OMPI_COMM_WORLD_RANK")
    nodes = require_number(environ, "OMPI_COMM_WORLD_SIZE")
    if environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0") != "0":
        raise RuntimeError(
            "mpirun has started several launchers on one node: submit the job with"
            " distribution: {type: mpi, process_count_per_instance: 1}"
        )

    master = environ.get("AZ_BATCH_MASTER_NODE", "").partition(":")[0]
    master = master or environ.get("AZ_BATCHAI_MPI_MASTER_NODE", "")
    if not master and nodes > 1:
        raise RuntimeError(
            "Azure ML has set neither AZ_BATCH_MASTER_NODE nor AZ_BATCHAI_MPI_MASTER_NODE, so the"
            " nodes do not know each other"
        )

    return rank, nodes, master or "127.0.0.1"


def _position_of_tensorflow(environ: Mapping[str, str]) -> tuple[int, int, str]:
    """Return the position among the workers in TF_CONFIG, one per node."""
    try:
        config = json.loads(environ["TF_CONFIG"])
        workers = config["cluster"]["worker"]
        rank = config["task"]["index"]
        is_worker = set(config["cluster"]) == {"worker"} and 0 <= rank < len(workers)
        master = str(workers[0]).rpartition(":")[0].strip("[]")
    except (ValueError, KeyError, TypeError, IndexError):
        is_worker = False

    if not is_worker:
        raise RuntimeError(
            f"TF_CONFIG is {environ['TF_CONFIG']!r}: expected one worker per node and no other task,"
            " as distribution: {type: tensorflow} gives them"
        )

    return rank, len(workers), master


def own_address(master: str, port: int) -> str:
    """Return this node's IPv4 address on the route to the first node; empty if unknown.

    No packet is sent.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master, port))
            address = str(probe.getsockname()[0])
    except (OSError, OverflowError, UnicodeError):
        return ""

    # A hosts file may map a node's name to 127.0.1.1, which its peers cannot reach.
    return "" if address.startswith("127.") and not master.startswith("127.") else address


def interface_of(address: str) -> str:
    """Return the name of the interface with an IPv4 address; empty if unknown."""
    try:
        names = [name for _, name in socket.if_nameindex()]
    except OSError:
        return ""

    if address.startswith("127."):  # loopback has all of them, and shows only the first
        return next((name for name in ("lo", "lo0") if name in names), "")
    if not address:
        return ""

    return next((name for name in names if address_of(name) == address), "")


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface (netdevice(7), Linux); empty without one."""
    if sys.platform != "linux":
        return ""

    request = struct.pack("16s24x", interface.encode()[:15])

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError:  # no address
        return ""
