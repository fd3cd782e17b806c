"""Assign GPUs of this machine to a run: the visible ones that no other run uses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from cloudtrain.errors import CloudError

CHOICE = "CUDA_VISIBLE_DEVICES"
"""CUDA's own variable, from the job's `env` or from the environment of the submit."""

_QUERY_SECONDS = 60


def chosen(env: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str | None:
    """Return CUDA_VISIBLE_DEVICES of the job, else of the environment; None: all GPUs."""
    return env.get(CHOICE, environ.get(CHOICE))


def visible_gpus(choice: str | None, python: str = sys.executable) -> tuple[str, ...]:
    """Return UUIDs of the GPUs that CUDA shows for a CUDA_VISIBLE_DEVICES, in CUDA's order.

    CUDA numbers GPUs by speed, Docker by their PCI address; UUIDs are the same for both.
    """
    environ = {key: value for key, value in os.environ.items() if key != CHOICE}
    if choice is not None:
        environ[CHOICE] = choice
    query = [python, str(Path(__file__).with_name("gpu_ids.py"))]
    answer = subprocess.run(
        query, env=environ, timeout=_QUERY_SECONDS, check=False, capture_output=True, text=True
    )
    return tuple(answer.stdout.split())


def busy(gpus: Sequence[str]) -> dict[str, str]:
    """Return UUIDs of the GPUs in use by other runs -> `run ID`."""
    holders = {}
    for gpu in gpus:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(_name(gpu))
            except OSError:
                continue
            holders[gpu] = _holder(connection)
    return holders


def take(
    gpus: Sequence[str], count: int, held: ExitStack, *, shared: bool = False
) -> tuple[str, ...]:
    """Reserve the first `count` free GPUs until `held` is closed; return their UUIDs.

    `shared`: other runs may use them too. Raise CloudError if there are too few.
    """
    uuids: list[str] = []
    with ExitStack() as taken:
        for gpu in gpus:
            if len(uuids) < count and (shared or _hold(gpu, taken)):
                uuids.append(gpu)
        if len(uuids) == count:
            held.push(taken.pop_all())
            return tuple(uuids)
    raise CloudError(too_few(gpus, count, busy(gpus)), hint=HINT, code="gpus")


HINT = (
    "wait for that run, choose others (CUDA_VISIBLE_DEVICES), or share them:"
    " CLOUDTRAIN_DOCKER_SHARE_GPUS=1"
)


def too_few(gpus: Sequence[str], count: int, holders: Mapping[str, str]) -> str:
    """Return the error for a run with too few free GPUs. `holders`: as from `busy`."""
    message = f"the run needs {count} of the {len(gpus)} visible GPUs of this machine"
    runs = sorted(set(holders.values()))
    return f"{message}, and {len(holders)} are in use by {', '.join(runs)}" if runs else message


def _hold(gpu: str, held: ExitStack) -> bool:
    """Reserve a GPU until this process ends, by an abstract socket of Linux.

    Return False if it is taken.
    """
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(_name(gpu))
        holder.listen(8)
    except OSError:
        holder.close()
        return False
    held.enter_context(holder)
    return True


def _name(gpu: str) -> str:
    return f"\0cloudtrain-gpu-{gpu}"


def _holder(connection: socket.socket) -> str:
    """Return the run of the process at the other end, from its supervisor's command line."""
    try:
        pid = int.from_bytes(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder
        )
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "another run"
    folders = [Path(os.fsdecode(word)) for word in arguments if b"/runs/" in word]
    return f"run {folders[0].name}" if folders else "another run"
