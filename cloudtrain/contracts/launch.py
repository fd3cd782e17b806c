"""What runs on one node, and the job document that every node reads. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan

ARGUMENT, LONG_TEXT = "$argv", 200
"""How the values of a job document refer to an argument, and from how many characters on they do."""


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
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Launch:
        """What `to_json` gave, read back."""
        return Launch(**{**document, "argv": tuple(document["argv"])})


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
    """The arguments with their types kept; a long text that `argv` has is said by its place there, and not twice."""
    if isinstance(value, str) and len(value) > LONG_TEXT and value in argv:
        return {ARGUMENT: argv.index(value)}
    if isinstance(value, Mapping):
        return {key: _values(item, argv) for key, item in value.items()}
    return [_values(item, argv) for item in value] if isinstance(value, (list, tuple)) else value


def masked_variables(plan: Plan) -> dict[str, list[str]]:
    """What the job document adds where secrets come as variables: those whose values the log is not to show."""
    return {"masked": sorted(plan.spec.secrets)} if plan.spec.secrets else {}


def entrypoint_of(entrypoint: str | None) -> tuple[str, str]:
    """The kind of program (script, module, notebook, trainer) and its path or name."""
    if entrypoint is None:
        return "trainer", ""
    words = entrypoint.split()
    if words[0] == "-m":
        return "module", words[1]
    name = entrypoint.strip()
    return ("notebook" if name.endswith(".ipynb") else "script"), name
