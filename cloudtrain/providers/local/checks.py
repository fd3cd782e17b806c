"""Checks of a plan before its start on this machine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.errors import Issue, warning
from cloudtrain.extras import install_command
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.local.backend import ON_CPU
from cloudtrain.providers.local.config import LocalConfig
from cloudtrain.providers.local.machine import memory_bytes
from cloudtrain.source.inputs import is_empty
from cloudtrain_wire.sizes import format_size
from cloudtrain_wire.visible_gpus import present_gpus, visible_gpus

FEW_PROCESSES = 16
MAX_PROCESSES_PER_CORE = 4
"""Limits above which a plan warns that processes crowd the machine."""


def host_rules(plan: Plan) -> list[Issue]:
    """Return problems found on the disk and in the environment. Start no process."""
    python = plan.host.config_as(LocalConfig).python
    issues = []
    if python == sys.executable:
        issues += _torch(plan, python)
    if plan.is_rehearsal and not (Path(python).parent / "python3").exists():
        message = (
            f"python3 is missing in the folder of {python}, and the container's command starts"
            " python3"
        )
        issues.append(Issue((), message, "set CLOUDTRAIN_PYTHON to an executable called python3"))

    cores = plan.host.config_as(LocalConfig).cores
    issues += crowding_rules(plan, cores)
    issues += gpu_rules(plan, plan.gpus, "per node")
    issues += idle_gpus(plan)
    issues += location_checks(plan)
    return issues


def crowding_rules(plan: Plan, cores: int) -> list[Issue]:
    """Warn about many more processes than cores of this machine, which runs all nodes."""
    processes = plan.spec.resources.nodes * plan.processes
    if plan.gpus or processes <= max(FEW_PROCESSES, MAX_PROCESSES_PER_CORE * cores):
        return []

    unit = "core" if cores == 1 else "cores"
    memory = format_size(memory_bytes())
    message = (
        f"{processes} processes share this machine, which has {cores} {unit} and {memory} of memory"
    )
    hint = f"--set resources.nodes=1 --set resources.processes={cores}"
    return [plan.located(warning(message, hint, path=("resources", "processes")))]


def host_checks(plan: Plan) -> list[Issue]:
    """Return problems that need a process: torch in another Python, the number of GPUs."""
    python = plan.host.config_as(LocalConfig).python
    issues: list[Issue] = []
    if python != sys.executable:
        issues = _torch(plan, python)

    return issues or gpu_checks(plan, python, plan.gpus, "per node")


def idle_gpus(plan: Plan) -> list[Issue]:
    """Warn about GPUs of this machine that a job without `resources.gpus` may leave idle."""
    resources = plan.spec.resources
    if plan.is_rehearsal or plan.spec.launcher == "none" or resources.gpus is not None:
        return []

    count = present_gpus({**os.environ, **plan.spec.env})
    processes = resources.nodes * plan.processes
    if count <= processes:
        return []

    unit = "process" if processes == 1 else "processes"
    message = f"this machine has {count} GPUs, and the job starts {processes} {unit}"
    hint = f"--gpus {count} starts one on each GPU; --gpus 0 says that it needs none"
    return [plan.located(warning(message, hint, path=("resources", "gpus")))]


def gpu_rules(plan: Plan, required_gpus: int, of: str) -> list[Issue]:
    """Return an error if GPUs are required without a driver. `of`: `per node` or `in all`."""
    if _has_driver():
        return []

    return _too_few(plan, 0, required_gpus, of)


def gpu_checks(plan: Plan, python: str, required_gpus: int, of: str) -> list[Issue]:
    """Return an error if CUDA shows too few GPUs. `gpu_rules` covers a missing driver."""
    if not required_gpus or not _has_driver():
        return []

    from cloudtrain.providers.local import machine  # planning asks no program

    visible = machine.visible_gpus(plan.spec.env, python)
    return _too_few(plan, len(visible), required_gpus, of)


def _too_few(plan: Plan, visible_gpus: int, required_gpus: int, of: str) -> list[Issue]:
    if visible_gpus >= required_gpus:
        return []

    processes = min(plan.processes, 2)
    machine = _without_machine(plan)
    hint = f"to rehearse on the CPU: {ON_CPU} --set resources.processes={processes}{machine}"
    message = f"this machine shows {visible_gpus} GPUs, the spec asks for {required_gpus} {of}"
    return [Issue((), message, hint)]


def location_checks(plan: Plan, *, in_container: bool = False) -> list[Issue]:
    """Check local inputs and secrets: missing or empty files, variables that are not set.

    `in_container`: the job runs in a container, without the user's credentials.
    """
    issues = []
    earlier = plan.context.resume_from
    if "://" in earlier:
        hint = f"cloudtrain rerun {plan.context.resume_run} --fresh starts without them"
        issues.append(Issue((), f"the earlier run's checkpoints are in {earlier}", hint))
    for name, item in plan.spec.inputs.items():
        location = plan.host.location_for(item.uri) or ""
        if not location or "://" in location:  # a rehearsal copies it from the cloud
            message = (
                f"inputs.{name} is copied from {item.on(plan.target.provider)} with your own"
                " credentials"
            )
            hint = f"or rehearse with a folder: {{local: ./data, {plan.target.provider}: …}}"
            issues.append(warning(message, hint))
            continue
        path = Path(plan.context.folder) / Path(location).expanduser()
        if not os.path.exists(path):  # noqa: PTH110  (false, not an error, for what no disk can hold)
            issues.append(
                Issue(
                    (),
                    f"inputs.{name}: no such file or folder: {path}",
                    origin=plan.where(f"inputs.{name}"),
                )
            )
        elif is_empty(str(path)):
            message = f"inputs.{name}: {path} is empty: the job would run on nothing"
            issues.append(Issue((), message, origin=plan.where(f"inputs.{name}")))

    for name, stores in plan.spec.secrets.items():
        stored = plan.host.location_for(stores)
        if stored is None:  # a rehearsal uses the cloud's own
            issues.append(_cloud_secret_issue(plan, name, stores, in_container))
            continue
        variable = stored.partition(":")[2]
        if variable not in os.environ:
            message = f"secret {name}: the environment variable {variable} is not set"
            issues.append(Issue((), message, f"export {variable}=… and submit again"))

    return issues


def _cloud_secret_issue(
    plan: Plan,
    name: str,
    stores: Mapping[str, str],
    in_container: bool,
) -> Issue:
    hint = f"for rehearsals: local: 'env:{name}'"
    why = plan.target.declaration.no_local_secrets
    if why and plan.target.provider in stores:
        return Issue((), f"secret {name}: {why}", hint)
    if in_container:
        message = (
            f"secret {name} is looked up by the job's role, and a container on this machine has"
            " none"
        )
        return Issue((), message, hint)

    message = f"secret {name} is looked up where the job would look, with your own credentials"
    return warning(message, f"or add local: 'env:{name}'")


def _without_machine(plan: Plan) -> str:
    """Return flags that undo the spec's GPU or instance type; empty if it names neither."""
    resources = plan.spec.resources
    flags = ""
    if resources.gpu:
        flags += " --set resources.gpu=null"
    if resources.instance:
        flags += " --set resources.instance=null"

    return flags


def _torch(plan: Plan, python: str) -> list[Issue]:
    if plan.spec.launcher == "none":
        return []

    problem = _torch_problem(python)
    if not problem:
        return []

    hint = f"{install_command('train')}; or set CLOUDTRAIN_PYTHON to a Python that has torch"
    return [Issue((), problem, hint)]


def _torch_problem(python: str) -> str:
    if python == sys.executable:
        has_torch = importlib.util.find_spec("torch") is not None
    else:
        probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
        try:
            answer = subprocess.run(
                [python, "-c", probe],
                timeout=30,
                check=False,
                capture_output=True,
            )
            has_torch = answer.returncode == 0
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{python} cannot be run: {error}"

    if has_torch:
        return ""

    return f"torch is not installed for {python}"


def _has_driver() -> bool:
    """Return True if a GPU driver of NVIDIA or WSL is loaded; always True outside Linux."""
    if sys.platform != "linux":
        return True

    devices = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
    return any(device.exists() for device in devices) or visible_gpus() > 0
