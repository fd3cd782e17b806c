"""Questions to the cluster about a job: `doctor`, `check --online` and `submit` ask them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path

from cloudtrain.providers import plugin
from cloudtrain.providers.slurm.script import (
    SlurmConfig,
    input_path,
    partition_of,
    sbatch,
    slurm_minutes,
)
from cloudtrain.providers.slurm.section import SlurmSection
from cloudtrain.providers.slurm.status import LOOK_SECONDS


def cluster_checks(plan: plugin.Plan) -> Iterator[plugin.Check]:
    """Yield the answers. The cluster is only read."""
    client = plugin.Question("client", "is Slurm's client on this machine")
    try:
        yield client.found(_answer("sbatch", "--version"))
    except (plugin.NotCheckedError, plugin.CloudError) as error:
        yield client.wrong(str(error), "run cloudtrain on a login node of the cluster")
        return

    for name, question, setting, ask in (
        ("request", "does sbatch accept it", ("slurm",), _request),
        ("time", "does the partition allow it", ("limits", "max_runtime"), _time),
        ("account", "may this user take it", (), _account),
        ("container", "does the cluster start it", ("slurm", "container"), _container),
        ("grace", "how long may a cancelled job save", (), _grace),
        ("files", "are folder, inputs and image here", ("slurm", "folder"), _files),
        ("nodes", "do they see folder, inputs and Python", (), _nodes),
    ):
        yield plugin.Question(name, question, setting).asked(ask, plan)


def _answer(*argv: str) -> str:
    try:
        return plugin.program_output(argv, seconds=LOOK_SECONDS).decode().strip()
    except plugin.UsageError as error:
        raise plugin.NotCheckedError(error.what) from None


def _request(plan: plugin.Plan) -> None:
    sbatch(["sbatch", "--test-only"], plan.request.document["script"].encode())


def _time(plan: plugin.Plan) -> str:
    """Compare what `--test-only` does not: a job above the limit waits for ever."""
    partition = partition_of(plan.spec)
    minutes = slurm_minutes(plan)
    for row in _answer("sinfo", "-h", "-o", "%P|%a|%l").splitlines():
        name, state, limit = row.split("|")
        if name.removesuffix("*") == partition or (not partition and name.endswith("*")):
            break
    else:
        raise plugin.RefusedError(f"the cluster lacks the partition {partition or 'by default'}")

    most = _minutes_of(limit)
    if minutes and most and minutes > most:
        raise plugin.RefusedError(
            f"{minutes} min with the time to save, and the partition {name} allows {most} min"
        )

    return f"the partition {name} is {state}, and its limit is {limit}"


def _minutes_of(limit: str) -> int | None:
    """Read `1-00:00:00` or `5:00`; None for `infinite`."""
    if not limit[0].isdecimal():
        return None

    days, _, clock = limit.rpartition("-")
    hours, minutes = ["0", *clock.split(":")][-3:-1]
    return (int(days or 0) * 24 + int(hours)) * 60 + int(minutes)


def _account(plan: plugin.Plan) -> str:  # noqa: ARG001
    """Name what this user may take: `_request` has asked whether the job does."""
    if "accounting_storage/none" in _answer("scontrol", "show", "config"):
        raise plugin.NotCheckedError("a cluster without accounting ignores account and QoS")

    query = ("show", "assoc", f"user={getuser()}", "format=account,partition,qos")
    return f"account|partition|QoS: {_answer('sacctmgr', '--noheader', '--parsable2', *query)}"


def _container(plan: plugin.Plan) -> str:
    container = plan.spec.section(SlurmSection).container
    if container is None:
        return "none: the job runs in a Python environment"
    if container == "pyxis":
        if "--container-image" not in _answer("srun", "--help"):
            raise plugin.RefusedError("srun has no --container-image: the cluster lacks Pyxis")
        return "srun has --container-image"

    return f"{_answer('apptainer', '--version')} is on this machine; nodes were not asked"


def _grace(plan: plugin.Plan) -> str:
    match = re.search(r"KillWait\s*=\s*(\d+)", _answer("scontrol", "show", "config"))
    if match is None:
        raise plugin.NotCheckedError("scontrol does not tell KillWait")

    answer = f"{match[1]} s after scancel or a preemption (KillWait)"
    if int(match[1]) < plan.target.grace_seconds:
        answer += f", less than the {plan.target.grace_seconds} s of stop_grace"

    return answer


def _files(plan: plugin.Plan) -> str:
    folder = Path(plan.target.config_as(SlurmConfig).folder)
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        raise plugin.RefusedError(f"{existing} cannot be written")

    image = plugin.select_image(plan.spec.image, "slurm").text
    places = {location: input_path(plan, location) for location in plan.inputs.values()}
    if image.startswith("/"):
        places[image] = image
    for location, path in places.items():
        if not Path(path).exists():
            raise plugin.RefusedError(f"there is nothing at {location}")

    return str(folder)


def _nodes(plan: plugin.Plan) -> None:  # noqa: ARG001
    raise plugin.NotCheckedError("only a job can tell; its log does")
