"""Whether this machine can run a plan: asked before anything starts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
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
    found = _gpus(python) if wanted and not findings else wanted
    if found < wanted:
        processes = min(spec.resources.processes_per_node, 2)
        machine = _without_machine(plan)
        findings.append(
            Finding(
                severity="error",
                message=f"this machine shows {found} GPUs, the spec asks for {wanted} per node",
                hint=f"to rehearse on the CPU: --set resources.gpus=0 --set resources.processes={processes}{machine}",
            )
        )
    if spec.entrypoint is None:
        findings += _trainer_arguments(plan, python)
    for name, item in spec.inputs.items():
        place_here = item.on("local") or ""
        if not place_here or "://" in place_here:  # of a rehearsal: brought from the cloud
            message = f"inputs.{name} is brought from {item.on(plan.target.provider)}, with your own credentials"
            hint = f"or rehearse with a folder: {{local: ./data, {plan.target.provider}: …}}"
            findings.append(Finding(severity="warning", message=message, hint=hint))
            continue
        place = Path(plan.facts.folder) / Path(item.on("local") or "").expanduser()
        if not os.path.exists(place):  # noqa: PTH110  (false, not an error, for what no disk can hold)
            origin = plan.origins.get(f"inputs.{name}", "")
            findings.append(
                Finding(severity="error", message=f"{origin}: inputs.{name}: no such file or folder: {place}")
            )
    for name, places in spec.secrets.items():
        if "local" not in places and "azure" in places and plan.target.provider == "azure":
            message = f"secret {name}: a Key Vault is asked by the job's identity, and this machine has none"
            findings.append(Finding(severity="error", message=message, hint=f"for rehearsals: local: 'env:{name}'"))
            continue
        if "local" not in places:  # of a rehearsal: looked up in the cloud, as the job would
            message = f"secret {name} is looked up where the job would, with your own credentials"
            findings.append(Finding(severity="warning", message=message, hint=f"or add local: 'env:{name}'"))
            continue
        variable = places["local"].partition(":")[2]
        if variable not in os.environ:
            message = f"secret {name}: the environment variable {variable} is not set"
            findings.append(Finding(severity="error", message=message, hint=f"export {variable}=… and submit again"))
    return findings


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


_PARSE = """
import sys
folder = sys.argv.pop(1)
sys.path[:0] = [folder, folder + "/job"]
from arguments import Refused, parse
try:
    parse(sys.argv[1:])
except Refused as reason:
    sys.exit(str(reason))
"""


def _trainer_arguments(plan: Plan, python: str) -> list[Finding]:
    """What the shared trainer says of its arguments: it would say so in the job too, once per restart."""
    question = [python, "-c", _PARSE, str(bundled("entrypoints")), *plan.spec.args.argv]
    try:
        answer = subprocess.run(question, timeout=60, check=False, capture_output=True, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return []  # a Python that cannot be run has been told of already
    if answer.returncode == 0:
        return []
    origin = plan.origins.get("args", "args")
    return [Finding(severity="error", message=f"{origin}: args: the shared trainer says: {answer.stderr.strip()}")]


def _gpus(python: str) -> int:
    """GPUs that CUDA would show here, by the same question that the launcher asks in the job."""
    question = [python, str(bundled("entrypoints") / "devices.py")]
    answer = subprocess.run(question, timeout=60, check=False, capture_output=True, text=True)
    return int(answer.stdout or 0)
