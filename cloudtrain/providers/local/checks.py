"""Checks whether this machine can run a plan, before the start."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.bundle import bundled
from cloudtrain.issues import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.local.config import LocalConfig
from cloudtrain.source.inputs import is_empty
from cloudtrain.units import format_size

FEW_PROCESSES = 16
MAX_PROCESSES_PER_CORE = 4
"""Limits above which a plan warns that processes crowd the machine."""


def host_rules(plan: Plan) -> list[Issue]:
    """Return problems found on the disk and in the environment. Start no process."""
    python = plan.host.config_as(LocalConfig).python
    issues = []
    if python == sys.executable:
        issues += _torch(python)
    if plan.is_rehearsal and not (Path(python).parent / "python3").exists():
        message = (
            f"python3 is missing in the folder of {python}, and the container's command starts"
            " python3"
        )
        issues.append(Issue((), message, "set CLOUDTRAIN_PYTHON to an executable called python3"))
    cores = plan.host.config_as(LocalConfig).cores
    issues += crowding_rules(plan, cores)
    return [*issues, *gpu_rules(plan, plan.gpus, "per node"), *location_checks(plan)]


def crowding_rules(plan: Plan, cores: int) -> list[Issue]:
    """Warn about many more processes than cores of this machine, which runs all nodes."""
    processes = plan.spec.resources.nodes * plan.processes
    if plan.gpus or processes <= max(FEW_PROCESSES, MAX_PROCESSES_PER_CORE * cores):
        return []
    of_machine = f"{cores} core{'s' * (cores != 1)} and {format_size(_memory_bytes())} of memory"
    message = f"{processes} processes share this machine, which has {of_machine}"
    hint = f"--set resources.nodes=1 --set resources.processes={cores}"
    return [plan.located(warning(message, hint, path=("resources", "processes")))]


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def host_checks(plan: Plan) -> list[Issue]:
    """Return problems that need a process: torch in another Python, the number of GPUs."""
    python = plan.host.config_as(LocalConfig).python
    required_gpus = plan.gpus
    issues = _torch(python) if python != sys.executable else []
    return issues or gpu_checks(plan, python, required_gpus, "per node")


def not_executed(plan: Plan, named_by: str) -> Issue:
    """Return a warning in place of the checks if a file beside the job names the Python.

    Such a program is not run for a plan.
    """
    message = (
        f"{plan.host.config_as(LocalConfig).python} is named by {named_by}, so it is not run before"
        " a submit"
    )
    return warning(message, "a Python that CLOUDTRAIN_PYTHON names is run at once")


def gpu_rules(plan: Plan, required_gpus: int, of: str) -> list[Issue]:
    """Return an error if GPUs are required without a driver. `of`: `per node` or `in all`."""
    return [] if _has_driver() else _too_few(plan, 0, required_gpus, of)


def gpu_checks(plan: Plan, python: str, required_gpus: int, of: str) -> list[Issue]:
    """Return an error if CUDA shows too few GPUs. `gpu_rules` covers a missing driver."""
    if not required_gpus or not _has_driver():
        return []
    return _too_few(plan, _gpus(python, plan.spec.env), required_gpus, of)


def _too_few(plan: Plan, visible_gpus: int, required_gpus: int, of: str) -> list[Issue]:
    if visible_gpus >= required_gpus:
        return []
    processes = min(plan.processes, 2)
    machine = _without_machine(plan)
    hint = (
        "to rehearse on the CPU: --set resources.gpus=0 --set"
        f" resources.processes={processes}{machine}"
    )
    message = f"this machine shows {visible_gpus} GPUs, the spec asks for {required_gpus} {of}"
    return [Issue((), message, hint)]


def location_checks(plan: Plan, *, in_container: bool = False) -> list[Issue]:
    """Check local inputs and secrets: missing or empty files, variables that are not set.

    `in_container`: the job runs in a container, without the user's credentials.
    """
    issues = []
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
    plan: Plan, name: str, stores: Mapping[str, str], in_container: bool
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
    chosen = {"gpu": resources.gpu, "instance": resources.instance}
    return "".join(f" --set resources.{name}=null" for name in chosen if chosen[name])


def _torch(python: str) -> list[Issue]:
    hint = 'pip install "cloudtrain[train]", or set CLOUDTRAIN_PYTHON to a Python that has torch'
    if python == sys.executable:
        has_torch = importlib.util.find_spec("torch") is not None
    else:
        probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
        try:
            answer = subprocess.run(
                [python, "-c", probe], timeout=30, check=False, capture_output=True
            )
            has_torch = answer.returncode == 0
        except (OSError, subprocess.TimeoutExpired) as error:
            return [Issue((), f"{python} cannot be run: {error}", hint)]
    return [] if has_torch else [Issue((), f"torch is not installed for {python}", hint)]


def _has_driver() -> bool:
    """Return True if a GPU driver of NVIDIA or WSL is loaded; always True outside Linux."""
    return sys.platform != "linux" or any(
        Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg")
    )


def _gpus(python: str, env: Mapping[str, str]) -> int:
    """Return the number of GPUs that CUDA shows the job, by the launcher's own code."""
    query = [python, str(bundled("entrypoints") / "cloudtrain_launcher" / "host.py")]
    chosen = {key: value for key, value in env.items() if key.startswith("CUDA_")}
    environ = {**os.environ, **chosen}
    answer = subprocess.run(
        query, env=environ, timeout=60, check=False, capture_output=True, text=True
    )
    return int(answer.stdout or 0)
