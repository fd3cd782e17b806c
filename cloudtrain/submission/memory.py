"""Estimate of a job's memory per GPU, by a Python with torch that rehearses one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.bundle import bundled
from cloudtrain.catalog import Instance, instances
from cloudtrain.catalog.machines import find_instance
from cloudtrain.declaration import declaration_of
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.local.machine import LocalConfig
from cloudtrain.settings import DEFAULT_PROVIDER

GIB = 1 << 30
PROGRAM = "cloudtrain_trainer.memory"
HOST_PROCESS = 2 * GIB
"""Host memory of a process with CUDA, besides tensors: an estimate, not measured."""
SECONDS = 600
"""Maximum time of an answer; a usual model takes seconds."""


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """Memory that one rank needs, or the reason for a missing estimate."""

    reason: str = ""
    """Reason for a missing estimate; empty if there is one."""
    low: int = 0
    expected: int = 0
    high: int = 0
    """Minimum, likely and maximum bytes."""
    memory: int = 0
    """Available bytes; 0 if unknown."""
    gpu: str = ""
    host: int = 0
    """Bytes that a machine needs beside its GPUs, with all its ranks; 0 without GPUs."""
    host_memory: int = 0
    """Bytes of that machine; 0 if unknown."""
    verdict: str = ""
    """Verdict `fits`, `may not fit` or `does not fit`; empty if the memory is unknown."""
    parts: Mapping[str, int] | None = None
    """Bytes of parameters, gradients, optimizer and activations."""
    remedies: tuple[str, ...] = ()
    """Computed changes that would make it fit."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON in bytes."""
        if self.reason:
            return {"reason": self.reason}
        document: dict[str, Any] = {
            "low": self.low,
            "expected": self.expected,
            "high": self.high,
            **(self.parts or {}),
        }
        document |= {"memory": self.memory or None, "gpu": self.gpu, "verdict": self.verdict}
        document |= {"host": self.host or None, "host_memory": self.host_memory or None}
        return document | {"remedies": list(self.remedies)}


def estimate_memory(plan: Plan) -> MemoryReport:
    """Return the memory that a rank of the plan needs. The user's model is built, on the CPU."""
    if plan.spec.entrypoint is not None:
        reason = f"only the shared trainer can be estimated, not {plan.spec.entrypoint}"
        return MemoryReport(reason=reason)
    python, refusal = _python(plan)
    if refusal:
        return MemoryReport(reason=refusal)
    row, request = _machine(plan)
    answer = _ask(python, {**request, "argv": list(plan.spec.args.argv)}, plan)
    return _report(answer, plan, row, str(request["gpu"]))


def _python(plan: Plan) -> tuple[str, str]:
    """Return the Python to ask, and the reason to ask none."""
    if plan.host.provider != DEFAULT_PROVIDER:
        return os.environ.get("CLOUDTRAIN_PYTHON") or sys.executable, ""
    python = plan.host.config_as(LocalConfig).python
    named_by = plan.host.origins.get("python")
    if named_by:
        return (
            "",
            (
                f"{python} is named by {named_by}, so it is not run for a check: set"
                " CLOUDTRAIN_PYTHON to it"
            ),
        )
    return python, ""


def _machine(plan: Plan) -> tuple[Instance | None, dict[str, Any]]:
    """Return the row of the first instance type, and the ranks and memory for the request."""
    ranks = {"ranks": plan.spec.resources.nodes * plan.processes, "per_node": plan.processes}
    row = (
        find_instance(plan.target.provider, plan.target.instances[0])
        if plan.target.instances
        else None
    )
    if row is not None and row.gpus:
        return row, {**ranks, "gpu": row.gpu, "gpu_gib": row.gpu_memory_gib or 0}
    if plan.gpus:
        return row, {**ranks, "gpu": (plan.spec.resources.gpu or ("GPU",))[0]}
    memory = int(row.memory_gib * GIB) if row is not None else _free_here()
    return row, {**ranks, "gpu": "", "memory": memory // max(1, plan.processes)}


def _free_here() -> int:
    """Return the available bytes of this machine, with what the kernel can drop; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):  # not everywhere
        return 0


def _ask(python: str, request: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the answer of the trainer's program, or `error` with a sentence."""
    entrypoints = bundled("entrypoints")
    root = Path(plan.context.source.root)
    env = {
        **os.environ,
        **plan.spec.env,
        **_inputs(plan),
        "PYTHONPATH": os.pathsep.join(map(str, (entrypoints, entrypoints / "job", root))),
    }
    command = [python, "-W", "ignore", "-m", PROGRAM, json.dumps(request)]
    try:
        result = subprocess.run(
            command,
            cwd=root,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"{python} gave no answer within {SECONDS // 60} minutes"}
    except OSError as error:
        return {"error": f"{python} cannot be run: {error}"}
    if "No module named 'torch'" in result.stdout + result.stderr:
        hint = "pip install 'cloudtrain[train]', or set CLOUDTRAIN_PYTHON"
        return {"error": f"{python} has no torch: {hint}"}
    try:
        answer: dict[str, Any] = json.loads((result.stdout.strip().splitlines() or [""])[-1])
    except ValueError:
        errors = result.stderr.strip()[-300:]
        return {"error": f"{python} ended with exit code {result.returncode}: {errors}"}
    problem = str(answer.get("error", ""))
    if problem.startswith("ModuleNotFoundError"):
        how = f"install it for {python}, or set CLOUDTRAIN_PYTHON"
        return {"error": f"{problem}; an estimate installs no packages: {how}"}
    return answer


def _inputs(plan: Plan) -> dict[str, str]:
    """Return the variables of inputs on this machine; an estimate downloads no data."""
    declaration = declaration_of(DEFAULT_PROVIDER)
    variables = {}
    for name, item in plan.spec.inputs.items():
        path = Path(plan.context.folder) / (declaration.location_for(item.uri) or "")
        if declaration.location_for(item.uri) and path.exists():
            variables[f"CLOUDTRAIN_INPUT_{name.upper().replace('-', '_')}"] = str(path)
    return variables


def _report(answer: Mapping[str, Any], plan: Plan, row: Instance | None, gpu: str) -> MemoryReport:
    reason = answer.get("refused") or answer.get("error")
    if reason:
        return MemoryReport(reason=str(reason))
    estimate = answer["plan"]
    memory = int(answer.get("memory", 0))
    low, expected, high = estimate["needed"]
    parts = {
        name: estimate["held"][name]
        for name in ("parameters", "gradients", "optimizer", "activations")
    }
    host = estimate["host"] + plan.processes * HOST_PROCESS if gpu else 0
    host_memory = int(row.memory_gib * GIB) if row is not None and gpu else 0
    remedies = [_remedy(option) for option in answer.get("alternatives", [])]
    if estimate["verdict"] in ("may not fit", "does not fit"):
        remedies += _other_machines(plan, row, high)
    return MemoryReport(
        low=low, expected=expected, high=high, memory=memory, gpu=gpu, verdict=estimate["verdict"], parts=parts,
        remedies=tuple(remedies), host=host, host_memory=host_memory,
    )  # fmt: skip


def _remedy(option: Mapping[str, Any]) -> str:
    flags = [f"--strategy {option['strategy']}"]
    flags += [f"--recompute {option['recompute']}"] if option["recompute"] != "none" else []
    return (
        f"{' '.join(flags)}: about {gib(option['needed'][1])}, at most {gib(option['needed'][2])}"
    )


def _other_machines(plan: Plan, row: Instance | None, high: int) -> list[str]:
    """Return the cheapest machine of this cloud with as many GPUs and enough memory."""
    if row is None or not row.gpus:
        return []
    enough = [
        machine
        for machine in instances(plan.target.provider)
        if machine.gpus == row.gpus and (machine.gpu_memory_gib or 0) * 0.9 * GIB >= high
    ]
    cheapest = min(enough, key=lambda machine: machine.usd_per_hour or float("inf"), default=None)
    if cheapest is None:
        return []
    price = f", {cheapest.usd_per_hour:.2f} USD per hour" if cheapest.usd_per_hour else ""
    return [
        f"{cheapest.instance_type}: {cheapest.gpu_memory_gib:g} GiB per GPU ({cheapest.gpu}{price})"
    ]


def gib(size: int) -> str:
    """Return bytes in GiB with one digit."""
    return f"{size / GIB:.1f} GiB"
