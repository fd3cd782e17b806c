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
from cloudtrain.provider import Finding


def machine_checks(plan: Plan) -> list[Finding]:
    """Everything that stands in the way, at once."""
    spec, findings = plan.spec, []
    python = plan.host.facts["python"]
    findings += _torch(python)
    if plan.is_rehearsal and not (Path(python).parent / "python3").exists():
        message = f"there is no python3 beside {python}, which is what the container's command starts"
        findings.append(Finding(severity="error", message=message, hint="set CLOUDTRAIN_PYTHON to one called python3"))
    wanted = spec.resources.gpus
    if wanted and not findings:
        findings += gpu_checks(plan, python, wanted, "per node")
    findings += place_checks(plan)
    return findings


def gpu_checks(plan: Plan, python: str, wanted: int, of: str) -> list[Finding]:
    """Whether this machine shows as many GPUs as are wanted."""
    found = _gpus(python)
    if found >= wanted:
        return []
    processes, machine = min(plan.spec.resources.processes_per_node, 2), _without_machine(plan)
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


def _gpus(python: str) -> int:
    """GPUs that CUDA would show here, by the same question that the launcher asks in the job."""
    question = [python, str(bundled("entrypoints") / "devices.py")]
    answer = subprocess.run(question, timeout=60, check=False, capture_output=True, text=True)
    return int(answer.stdout or 0)
