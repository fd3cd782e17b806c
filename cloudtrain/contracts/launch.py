"""What runs on one node, and the job document that every node reads. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cloudtrain.planning import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One node's launcher: what is executed, where, with which variables."""

    node: int
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    """Variables on top of the machine's own. The rendezvous port is not among them: it is chosen at start."""
    secrets: Mapping[str, str]
    """Variables whose values are looked up at start, from where the spec says they are kept."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**asdict(self), "argv": list(self.argv)}


def job_document(plan: Plan) -> dict[str, Any]:
    """What the launcher needs to know of the plan, the same on every platform."""
    spec = plan.spec
    kind, target = entrypoint_of(spec.entrypoint)
    return {
        "version": 1,
        "run_id": plan.run_id,
        "name": spec.name,
        "kind": kind,
        "target": target,
        "argv": list(spec.args.argv),
        "values": spec.args.values or ([] if isinstance(spec.args.values, tuple) else {}),
        "nodes": spec.resources.nodes,
        "processes": spec.resources.processes_per_node,
        "gpus": spec.resources.gpus,
        "restarts": spec.limits.restarts,
        "grace_seconds": plan.target.grace_seconds,
        "checkpoint_every_seconds": spec.checkpoints.every,
        "checkpoint_keep": spec.checkpoints.keep,
    }


def entrypoint_of(entrypoint: str | None) -> tuple[str, str]:
    """The kind of program (script, module, notebook, trainer) and its path or name."""
    if entrypoint is None:
        return "trainer", ""
    words = entrypoint.split()
    if words[0] == "-m":
        return "module", words[1]
    name = entrypoint.strip()
    return ("notebook" if name.endswith(".ipynb") else "script"), name
