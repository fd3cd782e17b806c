"""What runs on one node, and the job document that every node reads. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan

ARGUMENT, LONG_TEXT = "$argv", 200
"""The key by which values of a job document refer to an argument, and the length from which on they do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One node's launcher: what is executed, where, with which variables."""

    node: int
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    """Variables besides the machine's own. The rendezvous port is chosen at the start."""
    secrets: Mapping[str, str]
    """Variable -> where its value is looked up at the start, such as `env:NAME`."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Launch:
        """What `to_json` gave, read back."""
        return Launch(**{**document, "argv": tuple(document["argv"])})


def job_document(plan: Plan) -> dict[str, Any]:
    """What the launcher reads on every node, the same on every platform: plain JSON."""
    spec = plan.spec
    kind, target = entrypoint_of(spec.entrypoint)
    return {
        "version": 1,
        "run_id": plan.run_id,
        "name": spec.name,
        "kind": kind,
        "target": target,
        "argv": list(spec.args.argv),
        "values": _values(spec.args.values, spec.args.argv),
        "nodes": spec.resources.nodes,
        "processes": plan.processes,
        "gpus": plan.gpus,
        "restarts": spec.limits.restarts,
        "grace_seconds": plan.target.grace_seconds,
        "checkpoint_every_seconds": spec.checkpoints.every,
        "checkpoint_keep": spec.checkpoints.keep,
        **({"require_group": True} if spec.launch.require_group else {}),
    }


def _values(value: Any, argv: tuple[str, ...]) -> Any:
    """The arguments with their types. A long text that is in `argv` too is replaced by its index there."""
    if isinstance(value, str) and len(value) > LONG_TEXT and value in argv:
        return {ARGUMENT: argv.index(value)}
    if isinstance(value, Mapping):
        return {key: _values(item, argv) for key, item in value.items()}
    return [_values(item, argv) for item in value] if isinstance(value, (list, tuple)) else value


def masked_variables(plan: Plan) -> dict[str, list[str]]:
    """The part of the job document that names variables with secrets, whose values must not be logged."""
    return {"masked": sorted(plan.spec.secrets)} if plan.spec.secrets else {}


def entrypoint_of(entrypoint: str | None) -> tuple[str, str]:
    """The kind of program (`script`, `module`, `notebook` or `trainer`) and its path or name."""
    if entrypoint is None:
        return "trainer", ""
    words = entrypoint.split()
    if words[0] == "-m":
        return "module", words[1]
    name = entrypoint.strip()
    return ("notebook" if name.endswith(".ipynb") else "script"), name
