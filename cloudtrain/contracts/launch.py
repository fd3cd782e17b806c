"""What runs on one node, and the job document that every node reads. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from cloudtrain.source.tree import PAYLOAD_FOLDER

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan

ARGUMENT = "$argv"
LONG_TEXT = 200
"""The key by which values of a job document refer to an argument, and the length from which on they
do.
"""

PACKAGES_DIR = "CLOUDTRAIN_PACKAGES_DIR"
"""The variable that tells a launcher where this machine keeps what it has installed."""

PUBLISHED = "CLOUDTRAIN_PUBLISHED"
"""The variable that tells a launcher where it reads what the client publishes for its job."""

WHEELS = f"{PAYLOAD_FOLDER}/wheels"
"""The folder of the archive that holds the wheels that a submit has downloaded."""


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
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Launch:
        """What `to_json` gave, read back."""
        return Launch(**{**document, "argv": tuple(document["argv"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDocument:
    """The part of a plan that the launcher reads on every node; its own `Job` says what each field
    means.

    A field that is as by default is not written.
    """

    run_id: str
    name: str
    kind: str
    target: str
    argv: tuple[str, ...]
    values: Any
    """Plain JSON, in which a long text may be a reference to an argument."""
    nodes: int
    processes: int
    gpus: int
    restarts: int
    grace_seconds: int
    checkpoint_every_seconds: int
    checkpoint_keep: int
    require_group: bool = False
    hang_seconds: int = 1800
    warm: bool = True
    inputs: Mapping[str, Mapping[str, str]] | None = None
    masked: tuple[str, ...] = ()
    stop_after_seconds: int | None = None
    secrets: Mapping[str, str] | None = None
    dependencies: Mapping[str, Any] | None = None
    metrics: Mapping[str, str] | None = None
    keep: tuple[str, ...] = ()
    tuned: Mapping[str, Mapping[str, Any]] | None = None
    service_metric: str = ""
    trial: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, with the version of the format."""
        found: dict[str, Any] = {"version": 1}
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                found[item.name] = list(value) if isinstance(value, tuple) else value
        return found


def job_document(plan: Plan) -> JobDocument:
    """What every platform's job document has in common."""
    spec = plan.spec
    kind, target = entrypoint_of(spec.entrypoint)
    return JobDocument(
        run_id=plan.run_id,
        name=spec.name,
        kind=kind,
        target=target,
        argv=spec.args.argv,
        values=_values(spec.args.values, spec.args.argv),
        nodes=spec.resources.nodes,
        processes=plan.processes,
        gpus=plan.gpus,
        restarts=0 if plan.context.trial and plan.context.trial.measures else spec.limits.restarts,
        grace_seconds=plan.target.grace_seconds,
        checkpoint_every_seconds=spec.checkpoints.every,
        checkpoint_keep=spec.checkpoints.keep,
        require_group=spec.launch.require_group,
        hang_seconds=spec.limits.hang,
        warm=spec.launch.warm,
        dependencies=dependencies_document(plan) or None,
        metrics=dict(spec.metrics) or None,
        keep=spec.keep,
        trial=_trial(plan),
    )


def _trial(plan: Plan) -> dict[str, Any] | None:
    """The rules by which a trial of a sweep ends itself, those that are as by default left out;
    None for any other.
    """
    rules = plan.context.trial
    if rules is None:
        return None
    values = {item.name: (getattr(rules, item.name), item.default) for item in fields(rules)}
    found = {name: value for name, (value, default) in values.items() if value != default}
    return {**found, "rungs": list(rules.rungs)}


def dependencies_document(plan: Plan) -> dict[str, Any]:
    """The packages that the launcher installs, as its job document says them; empty for none."""
    said = plan.spec.dependencies
    file = said.file or plan.context.source.requirements
    if said.off or not (said.packages or file):
        return {}
    limits = plan.spec.limits
    resources = plan.spec.resources
    comes_back = plan.target.contract != "plain" and bool(resources.spot or limits.retries)
    return {
        **({"packages": list(said.packages)} if said.packages else {"file": file}),
        **({"wheels": WHEELS} if said.vendor else {}),
        **({"replace_torch": True} if said.replace_torch else {}),
        **({"keep": True} if comes_back else {}),
    }


def _values(value: Any, argv: tuple[str, ...]) -> Any:
    """The arguments with their types. A long text that is in `argv` too is replaced by its index
    there.
    """
    if isinstance(value, str) and len(value) > LONG_TEXT and value in argv:
        return {ARGUMENT: argv.index(value)}
    if isinstance(value, Mapping):
        return {key: _values(item, argv) for key, item in value.items()}
    return [_values(item, argv) for item in value] if isinstance(value, (list, tuple)) else value


def entrypoint_of(entrypoint: str | None) -> tuple[str, str]:
    """The kind of program (`script`, `module`, `notebook` or `trainer`) and its path or name."""
    if entrypoint is None:
        return "trainer", ""
    words = entrypoint.split()
    if words[0] == "-m":
        return "module", words[1]
    name = entrypoint.strip()
    return ("notebook" if name.endswith(".ipynb") else "script"), name
