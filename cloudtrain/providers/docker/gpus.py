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
