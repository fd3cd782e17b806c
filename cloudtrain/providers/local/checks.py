"""Whether this machine can run a plan: asked before anything starts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.bundle import bundled
from cloudtrain.planning import Plan
from cloudtrain.providers import Finding
from cloudtrain.source.inputs import is_empty


def machine_rules(plan: Plan) -> list[Finding]:
    """What stands in the way as far as the disk and the environment tell: no process is started."""
    python, findings = plan.host.facts["python"], []
    if python == sys.executable:
        findings += _torch(python)
    if plan.is_rehearsal and not (Path(python).parent / "python3").exists():
        message = f"there is no python3 beside {python}, which is what the container's command starts"
        findings.append(Finding(severity="error", message=message, hint="set CLOUDTRAIN_PYTHON to one called python3"))
    return [*findings, *gpu_rules(plan, plan.gpus, "per node"), *place_checks(plan)]


def machine_checks(plan: Plan) -> list[Finding]:
    """The rest: what takes a process to tell."""
    python, wanted = plan.host.facts["python"], plan.gpus
    findings = _torch(python) if python != sys.executable else []
    return findings or gpu_checks(plan, python, wanted, "per node")


def gpu_rules(plan: Plan, wanted: int, of: str) -> list[Finding]:
    """Whether GPUs are wanted of a machine that has no driver for any."""
    return [] if _has_driver() else _too_few(plan, 0, wanted, of)


def gpu_checks(plan: Plan, python: str, wanted: int, of: str) -> list[Finding]:
    """Whether this machine shows as many GPUs as are wanted; one without a driver is told by the rules."""
    return _too_few(plan, _gpus(python, plan.spec.env), wanted, of) if wanted and _has_driver() else []


def _too_few(plan: Plan, found: int, wanted: int, of: str) -> list[Finding]:
    if found >= wanted:
        return []
    processes, machine = min(plan.processes, 2), _without_machine(plan)
    hint = f"to rehearse on the CPU: --set resources.gpus=0 --set resources.processes={processes}{machine}"
    message = f"this machine shows {found} GPUs, the spec asks for {wanted} {of}"
    return [Finding(severity="error", message=message, hint=hint)]


def place_checks(plan: Plan, *, in_container: bool = False) -> list[Finding]:
    """Whether inputs and secrets are where the spec says that this machine has them.

    `in_container`: nothing of the person's own credentials is there.
    """
    findings = []
    for name, item in plan.spec.inputs.items():
        place_here = plan.host.place_of(item.uri) or ""
        if not place_here or "://" in place_here:  # of a rehearsal: brought from the cloud
            message = f"inputs.{name} is brought from {item.on(plan.target.provider)}, with your own credentials"
            hint = f"or rehearse with a folder: {{local: ./data, {plan.target.provider}: …}}"
            findings.append(Finding(severity="warning", message=message, hint=hint))
            continue
        place = Path(plan.facts.folder) / Path(place_here).expanduser()
        if not os.path.exists(place):  # noqa: PTH110  (false, not an error, for what no disk can hold)
            origin = plan.origins.get(f"inputs.{name}", "")
            findings.append(
                Finding(severity="error", message=f"{origin}: inputs.{name}: no such file or folder: {place}")
            )
        elif is_empty(str(place)):
            origin = plan.origins.get(f"inputs.{name}", "")
            message = f"{origin}: inputs.{name}: {place} is empty: the job would run on nothing"
            findings.append(Finding(severity="error", message=message))
    for name, places in plan.spec.secrets.items():
        kept = plan.host.place_of(places)
        if kept is None:  # of a rehearsal
            findings.append(_kept_in_the_cloud(plan, name, places, in_container))
            continue
        variable = kept.partition(":")[2]
        if variable not in os.environ:
            message = f"secret {name}: the environment variable {variable} is not set"
            findings.append(Finding(severity="error", message=message, hint=f"export {variable}=… and submit again"))
    return findings


def _kept_in_the_cloud(plan: Plan, name: str, places: Mapping[str, str], in_container: bool) -> Finding:
    hint = f"for rehearsals: local: 'env:{name}'"
    if "azure" in places and plan.target.provider == "azure":
        message = f"secret {name}: a Key Vault is asked by the job's identity, and this machine has none"
        return Finding(severity="error", message=message, hint=hint)
    if in_container:
        message = f"secret {name} is looked up by the job's role, and a container on this machine has none"
        return Finding(severity="error", message=message, hint=hint)
    message = f"secret {name} is looked up where the job would, with your own credentials"
    return Finding(severity="warning", message=message, hint=f"or add local: 'env:{name}'")


def _without_machine(plan: Plan) -> str:
    """The flags that take back the choice of a GPU machine, where the spec has made one."""
    resources = plan.spec.resources
    chosen = {"gpu": resources.gpu, "instance": resources.instance}
    return "".join(f" --set resources.{name}=null" for name in chosen if chosen[name])


def _torch(python: str) -> list[Finding]:
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
            return [Finding(severity="error", message=f"{python} cannot be run: {error}", hint=hint)]
    return [] if has_torch else [Finding(severity="error", message=f"torch is not installed for {python}", hint=hint)]


def _has_driver() -> bool:
    """Whether a driver of NVIDIA's is loaded, or WSL's: without one CUDA shows no GPU. Linux tells by its devices."""
    return sys.platform != "linux" or any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))


def _gpus(python: str, env: Mapping[str, str]) -> int:
    """GPUs that CUDA would show the job, by the same question that the launcher asks in it."""
    question = [python, str(bundled("entrypoints") / "cloudtrain_launcher" / "devices.py")]
    own = {key: value for key, value in env.items() if key.startswith("CUDA_")}
    environ = {**os.environ, **own}
    answer = subprocess.run(question, env=environ, timeout=60, check=False, capture_output=True, text=True)
    return int(answer.stdout or 0)
