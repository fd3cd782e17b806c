"""Whether this machine can run a plan: asked before anything starts."""

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


def host_rules(plan: Plan) -> list[Issue]:
    """What stands in the way as far as the disk and the environment tell: no process is started."""
    python, issues = plan.host.config_as(LocalConfig).python, []
    if python == sys.executable:
        issues += _torch(python)
    if plan.is_rehearsal and not (Path(python).parent / "python3").exists():
        message = f"there is no python3 beside {python}, which is what the container's command starts"
        issues.append(Issue((), message, "set CLOUDTRAIN_PYTHON to one called python3"))
    return [*issues, *gpu_rules(plan, plan.gpus, "per node"), *location_checks(plan)]


def host_checks(plan: Plan) -> list[Issue]:
    """The rest: what takes a process to tell."""
    python, wanted = plan.host.config_as(LocalConfig).python, plan.gpus
    issues = _torch(python) if python != sys.executable else []
    return issues or gpu_checks(plan, python, wanted, "per node")


def not_executed(plan: Plan, named_by: str) -> Issue:
    """What is said instead of the checks where the job's own settings file names the Python and nothing is started."""
    message = (
        f"{plan.host.config_as(LocalConfig).python} is named by {named_by}, so nothing is asked of it before a submit"
    )
    return warning(message, "CLOUDTRAIN_PYTHON names one that is asked at once")


def gpu_rules(plan: Plan, wanted: int, of: str) -> list[Issue]:
    """Whether GPUs are wanted of a machine that has no driver for any."""
    return [] if _has_driver() else _too_few(plan, 0, wanted, of)


def gpu_checks(plan: Plan, python: str, wanted: int, of: str) -> list[Issue]:
    """Whether this machine shows as many GPUs as are wanted; one without a driver is reported by the rules."""
    return _too_few(plan, _gpus(python, plan.spec.env), wanted, of) if wanted and _has_driver() else []


def _too_few(plan: Plan, found: int, wanted: int, of: str) -> list[Issue]:
    if found >= wanted:
        return []
    processes, machine = min(plan.processes, 2), _without_machine(plan)
    hint = f"to rehearse on the CPU: --set resources.gpus=0 --set resources.processes={processes}{machine}"
    message = f"this machine shows {found} GPUs, the spec asks for {wanted} {of}"
    return [Issue((), message, hint)]


def location_checks(plan: Plan, *, in_container: bool = False) -> list[Issue]:
    """Whether inputs and secrets are where the spec says that this machine has them.

    `in_container`: nothing of the person's own credentials is there.
    """
    issues = []
    for name, item in plan.spec.inputs.items():
        place_here = plan.host.location_for(item.uri) or ""
        if not place_here or "://" in place_here:  # of a rehearsal: brought from the cloud
            message = f"inputs.{name} is brought from {item.on(plan.target.provider)}, with your own credentials"
            hint = f"or rehearse with a folder: {{local: ./data, {plan.target.provider}: …}}"
            issues.append(warning(message, hint))
            continue
        place = Path(plan.context.folder) / Path(place_here).expanduser()
        if not os.path.exists(place):  # noqa: PTH110  (false, not an error, for what no disk can hold)
            issues.append(
                Issue((), f"inputs.{name}: no such file or folder: {place}", origin=plan.where(f"inputs.{name}"))
            )
        elif is_empty(str(place)):
            message = f"inputs.{name}: {place} is empty: the job would run on nothing"
            issues.append(Issue((), message, origin=plan.where(f"inputs.{name}")))
    for name, places in plan.spec.secrets.items():
        kept = plan.host.location_for(places)
        if kept is None:  # of a rehearsal
            issues.append(_cloud_secret_issue(plan, name, places, in_container))
            continue
        variable = kept.partition(":")[2]
        if variable not in os.environ:
            message = f"secret {name}: the environment variable {variable} is not set"
            issues.append(Issue((), message, f"export {variable}=… and submit again"))
    return issues


def _cloud_secret_issue(plan: Plan, name: str, places: Mapping[str, str], in_container: bool) -> Issue:
    hint = f"for rehearsals: local: 'env:{name}'"
    why = plan.target.declaration.no_local_secrets
    if why and plan.target.provider in places:
        return Issue((), f"secret {name}: {why}", hint)
    if in_container:
        message = f"secret {name} is looked up by the job's role, and a container on this machine has none"
        return Issue((), message, hint)
    message = f"secret {name} is looked up where the job would, with your own credentials"
    return warning(message, f"or add local: 'env:{name}'")


def _without_machine(plan: Plan) -> str:
    """The flags that take back the choice of a GPU machine, where the spec has made one."""
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
            has_torch = (
                subprocess.run([python, "-c", probe], timeout=30, check=False, capture_output=True).returncode == 0
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return [Issue((), f"{python} cannot be run: {error}", hint)]
    return [] if has_torch else [Issue((), f"torch is not installed for {python}", hint)]


def _has_driver() -> bool:
    """Whether a driver of NVIDIA's is loaded, or WSL's: without one CUDA shows no GPU. Linux tells by its devices."""
    return sys.platform != "linux" or any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))


def _gpus(python: str, env: Mapping[str, str]) -> int:
    """GPUs that CUDA would show the job, by the same question that the launcher asks in it."""
    question = [python, str(bundled("entrypoints") / "cloudtrain_launcher" / "host.py")]
    own = {key: value for key, value in env.items() if key.startswith("CUDA_")}
    environ = {**os.environ, **own}
    answer = subprocess.run(question, env=environ, timeout=60, check=False, capture_output=True, text=True)
    return int(answer.stdout or 0)
