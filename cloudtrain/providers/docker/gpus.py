"""Which of this machine's GPUs a run gets: those that were chosen for it, and none that another run has."""

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

_QUESTION_SECONDS = 60


def chosen(env: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str | None:
    """The choice among the machine's GPUs: the job's own, else that of the submit's environment; None: all of them."""
    return env.get(CHOICE, environ.get(CHOICE))


def visible_gpus(choice: str | None, python: str = sys.executable) -> tuple[str, ...]:
    """The GPUs that CUDA shows under a choice, in its order, by UUID.

    Numbers mean another GPU to CUDA (the fastest first) than to Docker (by their place on the bus): a UUID does not.
    """
    environ = {key: value for key, value in os.environ.items() if key != CHOICE}
    if choice is not None:
        environ[CHOICE] = choice
    question = [python, str(Path(__file__).with_name("gpu_ids.py"))]
    answer = subprocess.run(
        question, env=environ, timeout=_QUESTION_SECONDS, check=False, capture_output=True, text=True
    )
    return tuple(answer.stdout.split())


def busy(gpus: Sequence[str]) -> dict[str, str]:
    """Those of them that other runs hold, and which runs these are."""
    holders = {}
    for gpu in gpus:
        with socket.socket(socket.AF_UNIX) as asked:
            try:
                asked.connect(_name(gpu))
            except OSError:
                continue
            holders[gpu] = _holder(asked)
    return holders


def take(gpus: Sequence[str], wanted: int, held: ExitStack, *, shared: bool = False) -> tuple[str, ...]:
    """The first `wanted` of them that no other run has, for as long as `held` stays open. CloudError if they are few.

    `shared`: others may have them, too.
    """
    found: list[str] = []
    with ExitStack() as taken:
        for gpu in gpus:
            if len(found) < wanted and (shared or _hold(gpu, taken)):
                found.append(gpu)
        if len(found) == wanted:
            held.push(taken.pop_all())
            return tuple(found)
    raise CloudError(too_few(gpus, wanted, busy(gpus)), hint=HINT, code="gpus")


HINT = (
    "wait for that run, choose others (CUDA_VISIBLE_DEVICES), or share them on purpose: CLOUDTRAIN_DOCKER_SHARE_GPUS=1"
)


def too_few(gpus: Sequence[str], wanted: int, holders: Mapping[str, str]) -> str:
    """What is in the way of a run that wants more GPUs than are free."""
    message = f"the run needs {wanted} of the {len(gpus)} GPUs that this machine shows"
    runs = sorted(set(holders.values()))
    return f"{message}, and {len(holders)} are in use by {', '.join(runs)}" if runs else message


def _hold(gpu: str, held: ExitStack) -> bool:
    """Take a GPU for this process: a name in Linux's abstract socket space, which is the machine's and ends with us."""
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


def _holder(asked: socket.socket) -> str:
    """The run of the process at the other end: its supervisor names the run's folder among its words."""
    try:
        pid = int.from_bytes(asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "another run"
    folders = [Path(os.fsdecode(word)) for word in words if b"/runs/" in word]
    return f"run {folders[0].name}" if folders else "another run"
