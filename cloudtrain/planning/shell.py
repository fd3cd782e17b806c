"""One-node run as a shell script, for machines and queues that take one. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from shlex import join, quote

from cloudtrain.planning.plain import Layout, launches, plain_job
from cloudtrain.planning.plan import Plan

_FOLDERS = ("source", "output", "model", "checkpoints")
_FREE_PORT = """python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'"""


def shell_script(
    plan: Plan,
    folder: str,
    *,
    python: str = "python3",
    inputs: Mapping[str, str],
    secrets: Mapping[str, str],
) -> str:
    """Return the POSIX shell script for a job in `folder`, an absolute path.

    `source/` in it holds the archive. `inputs`: absolute paths. `secrets`: shell commands that
    print the values. The job writes `output/`, `model/`, `checkpoints/` and finally its exit code
    to the file `exit`. It stops with a checkpoint as soon as a file `stop` exists. It enforces the
    time limit. Its output is the log of node 0.
    """
    where = {name: f"{folder}/{name}" for name in _FOLDERS}
    layout = Layout(
        python=python,
        job_file=f"{folder}/job.json",
        inputs=inputs,
        stop_file=f"{folder}/stop",
        **where,
    )
    (launch,) = launches(plan, layout, addresses=("127.0.0.1",), interface="lo", threads=None)
    lines = [
        f"cd {quote(folder)} || exit 1",
        "umask 077",
        "rm -f exit; trap 'echo $? > exit.part; mv exit.part exit' EXIT",
        "set -e",
        f"mkdir -p {' '.join(_FOLDERS)}",
        f"printf %s {quote(json.dumps(plain_job(plan, keeps_time=True).to_json()))} > job.json",
        f"CLOUDTRAIN_MASTER_PORT=$({_FREE_PORT}); export CLOUDTRAIN_MASTER_PORT",
        *(f"export {name}={quote(value)}" for name, value in launch.env.items()),
        *(f"{name}=$({secrets[name]}); export {name}" for name in launch.secrets),
        f"(cd source && exec {join(launch.argv)})",
    ]
    return "\n".join(lines) + "\n"
