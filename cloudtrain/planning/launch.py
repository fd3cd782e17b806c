"""Launcher call on one node, job document for all nodes, and the plain contract. Pure values."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.catalog.machines import find_instance
from cloudtrain.source.tree import PAYLOAD_FOLDER

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan
    from cloudtrain.spec.model import JobSpec


TAG_PREFIX = "cloudtrain-"
"""Prefix of our tags, and of other names that we add to the user's."""

PACKAGES_DIR = "CLOUDTRAIN_PACKAGES_DIR"
"""Variable with this machine's folder of installed packages."""

PUBLISHED = "CLOUDTRAIN_PUBLISHED"
"""Variable with the folder that the client publishes files in."""

ARGUMENT = "$argv"
LONG_TEXT = 200
"""Minimum length of a value that refers to an argument by the key above."""

KNOWN_ON_NODES = ("CLOUDTRAIN_NODE_RANK", "CLOUDTRAIN_NODE_ADDR", "CLOUDTRAIN_MASTER_ADDR")
"""Variables of a launch that a platform without addresses at planning sets on its nodes."""

CLOUD_FIELDS = (
    "resources.gpu",
    "resources.instance",
    "resources.spot",
    "resources.disk",
    "limits.max_wait",
    "limits.max_cost",
    "limits.retries",
    "checkpoints.uri",
    "tags",
)
"""Fields of the spec without effect on machines that are not rented."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Launcher call of a node: command, folder and variables."""

    node: int
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    """Variables besides the machine's own. The rendezvous port is chosen at the start."""
    secrets: Mapping[str, str]
    """Variable -> source of its value at the start, such as `env:NAME`."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        document = asdict(self)
        for name, value in document.items():
            if isinstance(value, tuple):
                document[name] = list(value)

        return document

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Launch:
        """Read the result of `to_json`."""
        return Launch(**{**document, "argv": tuple(document["argv"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDocument:
    """Part of a plan for the launcher on every node; its own `Job` explains the fields.

    Fields with default values are not written.
    """

    run_id: str
    name: str
    kind: str
    target: str
    argv: tuple[str, ...]
    values: Any
    """Plain JSON. A long text may be a reference to an argument."""
    nodes: int
    processes: int
    gpus: int
    restarts: int
    grace_seconds: int
    checkpoint_every_seconds: int
    checkpoint_keep: int
    require_group: bool = False
    timings: bool = False
    hang_seconds: int = 1800
    network_gbps: int = 0
    warm: bool = True
    inputs: Mapping[str, Mapping[str, str]] | None = None
    masked: tuple[str, ...] = ()
    stop_after_seconds: int | None = None
    secrets: Mapping[str, str] | None = None
    dependencies: Mapping[str, Any] | None = None
    command: tuple[str, ...] = ()
    tf_config: bool = False
    rank_variables: bool = False
    setup: tuple[str, ...] = ()
    metrics: Mapping[str, str] | None = None
    keep: tuple[str, ...] = ()
    tuned: Mapping[str, Mapping[str, Any]] | None = None
    service_metric: str = ""
    trial: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON with the format version."""
        document: dict[str, Any] = {"version": 1}
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                if isinstance(value, tuple):
                    document[item.name] = list(value)
                else:
                    document[item.name] = value

        return document


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The request that starts a job: `plan --json` prints `document`, `start` sends it."""

    provider: str
    document: Mapping[str, Any]
    """Request in the platform's format: plain JSON."""
    job: JobDocument
    """Document for the launcher of every node, sent with the request."""
    wrapper: str = ""
    """Name of a request that holds the provider's own one, such as SubmitServiceJob; "" for none."""


def unfolded(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request with the body that it holds as text, if any, in place of the text."""
    if "serviceRequestPayload" not in document:
        return document

    return {**document, "serviceRequestPayload": json.loads(document["serviceRequestPayload"])}


def job_document(plan: Plan) -> JobDocument:
    """Return the job document, the same for every platform."""
    spec = plan.spec
    kind, target = entrypoint_of(spec)

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
        restarts=spec.limits.restarts,
        grace_seconds=plan.target.grace_seconds,
        checkpoint_every_seconds=spec.checkpoints.every,
        checkpoint_keep=spec.checkpoints.keep,
        require_group=spec.launch.require_group,
        timings=spec.launch.timings,
        hang_seconds=0 if kind == "command" else spec.limits.hang,
        network_gbps=_network_gbps(plan),
        warm=spec.launch.warm,
        dependencies=dependencies_document(plan) or None,
        command=command_words(spec)[1:],
        tf_config=spec.launch.tf_config,
        rank_variables=spec.launch.rank_variables,
        setup=spec.setup,
        metrics=dict(spec.metrics) or None,
        keep=spec.keep,
        trial=_trial(plan),
    )


def _network_gbps(plan: Plan) -> int:
    """Return the lowest bandwidth of the planned machines with GPUs; 0 for one node."""
    if plan.spec.resources.nodes < 2 or not plan.gpus:
        return 0
    rows = [find_instance(plan.target.provider, name) for name in plan.target.instances]
    return min((row.network_gbps for row in rows if row and row.network_gbps), default=0)


def _trial(plan: Plan) -> dict[str, Any] | None:
    """Return the rules of a trial without defaults, or None."""
    rules = plan.context.trial
    if rules is None:
        return None

    values = {item.name: (getattr(rules, item.name), item.default) for item in fields(rules)}
    changed = {name: value for name, (value, default) in values.items() if value != default}
    return {**changed, "rungs": list(rules.rungs)}


def dependencies_document(plan: Plan) -> dict[str, Any]:
    """Return the packages for the launcher; empty for none."""
    dependencies = plan.spec.dependencies
    file = dependencies.file or plan.context.source.requirements
    if dependencies.off or not (dependencies.packages or file):
        return {}

    document: dict[str, Any] = {}
    if dependencies.packages:
        document["packages"] = list(dependencies.packages)
    else:
        document["file"] = file

    if dependencies.replace_torch:
        document["replace_torch"] = True

    return document


def _values(value: Any, argv: tuple[str, ...]) -> Any:
    """Return the arguments with types. A long text in `argv` becomes its index."""
    if isinstance(value, str) and len(value) > LONG_TEXT and value in argv:
        return {ARGUMENT: argv.index(value)}
    if isinstance(value, Mapping):
        return {key: _values(item, argv) for key, item in value.items()}
    if not isinstance(value, (list, tuple)):
        return value

    return [_values(item, argv) for item in value]


def command_words(spec: JobSpec) -> tuple[str, ...]:
    """Return the words of a command that runs without torchrun; none for other jobs."""
    if spec.launcher != "none":
        return ()

    return tuple(shlex.split(spec.entrypoint or ""))


def entrypoint_of(spec: JobSpec) -> tuple[str, str]:
    """Return the kind of program (script, module, notebook, trainer, command) and its name."""
    if spec.launcher == "none":
        return "command", command_words(spec)[0]
    if spec.entrypoint is None:
        return "trainer", ""

    words = spec.entrypoint.split()
    if words[0] == "-m":
        return "module", words[1]

    name = spec.entrypoint.strip()
    kind = "notebook" if name.endswith(".ipynb") else "script"
    return kind, name


class Layout(NamedTuple):
    """Paths on the nodes of a run. `{node}` is the node's rank."""

    python: str
    job_file: str
    source: str
    output: str
    model: str
    checkpoints: str
    inputs: Mapping[str, str]
    packages: str = ""
    """Folder of installed packages for the next run; empty: the launcher's default."""
    stop_file: str = ""
    """File that stops the job, for platforms without SIGTERM; empty: none."""
    published: str = ""
    """Folder of files that the client publishes for a trial; empty: none."""
    resume: str = ""
    """Folder of an earlier run's checkpoints, which the launcher copies; empty: none."""


def plain_job(plan: Plan, *, keeps_time: bool = False) -> JobDocument:
    """Return the job document. Secrets are read before the launcher starts.

    `keeps_time`: the launcher itself enforces `limits.max_runtime`.
    """
    limit = plan.spec.limits.max_runtime if keeps_time else None
    return replace(
        job_document(plan),
        masked=tuple(sorted(plan.spec.secrets)),
        stop_after_seconds=limit or None,
    )


def launches(
    plan: Plan, layout: Layout, *, addresses: tuple[str, ...], interface: str, threads: int | None
) -> tuple[Launch, ...]:
    """Return a launch per node; the rendezvous is `addresses[0]`. `threads`: OMP_NUM_THREADS.

    An empty address is known on the node only: the launch then lacks the variables of its rank and
    addresses, and a script of the platform sets them.
    """
    own: dict[str, str] = {}
    if threads:
        own["OMP_NUM_THREADS"] = str(threads)

    own |= plan.spec.env
    optional = _optional_variables(plan, layout)
    result = []
    for node, address in enumerate(addresses):
        cwd = layout.source.replace("{node}", str(node))
        argv = (layout.python, "-u", f"{cwd}/{PAYLOAD_FOLDER}")
        env = own | {
            "CLOUDTRAIN_PLATFORM": "plain",
            "CLOUDTRAIN_JOB_FILE": layout.job_file,
            "CLOUDTRAIN_NODE_RANK": str(node),
            "CLOUDTRAIN_NODES": str(len(addresses)),
            "CLOUDTRAIN_NODE_ADDR": address,
            "CLOUDTRAIN_MASTER_ADDR": addresses[0],
            "CLOUDTRAIN_INTERFACE": interface,
            "CLOUDTRAIN_OUTPUT_DIR": layout.output,
            "CLOUDTRAIN_MODEL_DIR": layout.model,
            "CLOUDTRAIN_CHECKPOINT_DIR": layout.checkpoints,
        }
        env |= optional
        if not address:
            env = {name: value for name, value in env.items() if name not in KNOWN_ON_NODES}
        result.append(Launch(node=node, argv=argv, cwd=cwd, env=env, secrets=plan.secrets))

    return tuple(result)


def _optional_variables(plan: Plan, layout: Layout) -> dict[str, str]:
    """Return the variables that only some jobs have, the same on every node."""
    env: dict[str, str] = {}
    if layout.packages and dependencies_document(plan):
        env[PACKAGES_DIR] = layout.packages
    if layout.stop_file:
        env["CLOUDTRAIN_STOP_FILE"] = layout.stop_file
    if layout.published and plan.context.trial:
        env[PUBLISHED] = layout.published
    if layout.resume:
        env["CLOUDTRAIN_RESUME_DIR"] = layout.resume

    for name, path in layout.inputs.items():
        env[f"CLOUDTRAIN_INPUT_{name.upper().replace('-', '_')}"] = path

    return env
