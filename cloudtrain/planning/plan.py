"""Plan: spec, context and target as one frozen value. No network, process or SDK."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from cloudtrain.declaration import declarations, is_local
from cloudtrain.errors import Issue, SpecError, dotted
from cloudtrain.planning.target import Target
from cloudtrain.version import __version__

if TYPE_CHECKING:  # watching a run must not import pydantic
    from cloudtrain.planning.launch import Request
    from cloudtrain.planning.registry import ResolvedImage
    from cloudtrain.spec.model import JobSpec
    from cloudtrain.spec.yaml_document import Document

    Renderer = Callable[["Plan", ResolvedImage | None], Request]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSummary:
    """The source folder at planning time."""

    root: str
    digest: str
    files: int
    bytes: int
    warning: str = ""
    """A warning about its size; empty for none."""
    secrets: tuple[str, ...] = ()
    """Paths that are left out because they probably contain secrets."""
    missed: tuple[str, ...] = ()
    """Paths that are left out and that the job names, each with the rule, for people."""
    requirements: str = ""
    """Requirements file; empty for none or for a list in the spec."""
    packages: tuple[str, ...] = ()
    """Its requirements, for people."""
    offline: bool = False
    """True if they name no package index (`--no-index`)."""


UNREAD = "content-not-read-yet"
"""Placeholder of the digest of an input that is too large to be read for a plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalInput:
    """An input on this machine, of which a job in a cloud gets a copy."""

    path: str
    """Absolute path of the folder or file."""
    files: int = 0
    bytes: int = 0
    digest: str = UNREAD
    """Digest of its content, which names the copy."""
    file: str = ""
    """Name of a single file; empty for a folder."""
    problem: str = ""
    """Reason why it cannot be copied; empty if it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRules:
    """Rules that end a trial of a sweep at a rung."""

    trial: int
    """Number of the trial."""
    metric: str
    goal: str
    """minimize or maximize."""
    rungs: tuple[int, ...]
    """Reports after which trials are compared, from 1, including past ones."""
    eta: int
    until: int | None = None
    """Report that pauses it for promotion; None: it ends only if it falls behind."""
    reports: int = 0
    """Number of reports of earlier runs."""
    position: float | None = None
    """Step or epoch of the last report; None if it has neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """A successful rehearsal of the job on this machine."""

    run: str
    time: float
    """Submission time as a Unix timestamp."""
    changes: tuple[str, ...] = ()
    """Changes of the request since then, `path: old → new`; empty if it is the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanContext:
    """Facts from disk, git and the clock for a plan."""

    run_id: str
    time: float
    """A Unix timestamp."""
    folder: str
    """Folder of the job, the base of relative paths in the spec."""
    data_dir: str
    """Folder of the runs on this machine."""
    submitted_from: str = ""
    """Working directory of the command, where commands without a name look for runs."""
    source: SourceSummary
    local_files: tuple[str, ...] = ()
    """Names of inputs that are single files on this machine."""
    uploads: Mapping[str, LocalInput] = field(default_factory=dict)
    """Inputs by name that a cloud's job gets from this machine."""
    git_commit: str = ""
    git_dirty: bool | None = None
    """True if tracked files differ from the commit; None if unknown."""
    owner: str = ""
    """User who plans it, for shared accounts: `alice@laptop`."""
    strict: bool = False
    """True if security findings refuse the job (setting `policy`)."""
    resume_run: str = ""
    """Run that this one continues."""
    rerun_of: str = ""
    """Run whose source and spec this one repeats."""
    mlflow_run: str = ""
    """Id of its run in MLflow, if the submit has made one."""
    resume_from: str = ""
    """Folder or URI of that run's checkpoints."""
    trial: TrialRules | None = None
    """Rules of a trial that may end early; None for any other run."""
    trials_at_once: int = 1
    """Number of parallel trials, which share the cores of one machine."""
    rehearsal: Rehearsal | None = None
    """The newest successful rehearsal of a cloud job, or None."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All decisions about a run, before anything happens."""

    run_id: str
    spec: JobSpec
    spec_digest: str
    target: Target
    context: PlanContext
    unused: tuple[str, ...]
    """Fields of the spec that this provider does not use."""
    origins: Mapping[str, str]
    """Origin of each field of the spec, by dotted path."""
    host: Target
    """Place of execution. A rehearsal executes the request of `target` elsewhere."""
    renderer: Renderer = field(repr=False, compare=False)
    """Function of the target's provider that renders a plan, with the image that submit found."""
    checker: Callable[[Plan], Sequence[Issue]] = field(repr=False, compare=False)
    """Function that checks a plan by rules, tables and disk."""
    spec_text: str = ""
    overrides: tuple[str, ...] = ()

    @cached_property
    def request(self) -> Request:
        """Request of the job, rendered once. A submit that builds an image renders another."""
        return self.renderer(self, None)

    @cached_property
    def issues(self) -> tuple[Issue, ...]:
        """Errors and warnings by rules, tables and disk, errors first. Found once."""
        return tuple(sorted(self.checker(self), key=lambda issue: not issue.is_error))

    def _repr_html_(self) -> str:
        """Return a table of its main decisions for notebooks."""
        from cloudtrain.planning.plan_table import plan_table  # rarely needed

        return plan_table(self)

    @property
    def provider(self) -> str:
        """Name of the provider that runs it."""
        return self.host.provider

    @property
    def is_rehearsal(self) -> bool:
        """True if another provider's request is executed."""
        return self.host.provider != self.target.provider

    @property
    def gpus(self) -> int:
        """GPUs per node that the job uses."""
        if self.target.gpus is not None:
            return self.target.gpus

        gpus = self.spec.resources.gpus
        return gpus if isinstance(gpus, int) else 0

    @property
    def processes(self) -> int:
        """Processes per node."""
        if self.spec.launcher == "none":
            return 1

        return self.spec.resources.processes_on(self.gpus)

    @property
    def inputs(self) -> dict[str, str]:
        """Location of each input for the target, by name."""
        return {
            name: self.target.location_for(item.uri) or ""
            for name, item in self.spec.inputs.items()
        }

    @property
    def secrets(self) -> dict[str, str]:
        """Location of each secret for the target, by variable."""
        return {
            name: self.target.location_for(places) or ""
            for name, places in self.spec.secrets.items()
        }

    def where(self, path: str) -> str:
        """Return the origin of a field, or of the nearest field around it, or ""."""
        keys = path
        while keys and keys not in self.origins:
            cut = max(keys.rfind("."), keys.rfind("["))
            if cut > 0:
                keys = keys[:cut]
            else:
                keys = ""

        return self.origins.get(keys, "")

    def located(self, issue: Issue) -> Issue:
        """Return the same issue with the origin of its field."""
        return issue.at(self.where(issue.field))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for the run folder. `facts` is the context."""
        return {
            "version": __version__,
            "run_id": self.run_id,
            "spec": spec_values(self.spec),
            "spec_digest": self.spec_digest,
            "overrides": list(self.overrides),
            "provider": self.provider,
            "host": self.host.to_json() if self.is_rehearsal else None,
            "target": self.target.to_json(),
            "facts": asdict(self.context),
            "unused": list(self.unused),
            "origins": dict(self.origins),
        }


def make_plan(
    spec: JobSpec,
    document: Document,
    context: PlanContext,
    target: Target,
    host: Target | None = None,
    *,
    render: Renderer,
    check: Callable[[Plan], Sequence[Issue]],
) -> Plan:
    """Combine spec, context and target. Raise SpecError for anything the target cannot do.

    `render`: the `render` of the target's provider. `check`: finds the issues of the plan. `host`:
    place of execution for a rehearsal; default: the target.
    """
    origins = {dotted(keys): origin for keys, origin in document.origins.items() if keys}
    origins |= {name: origin for name, origin in target.origins.items() if origin}
    issues = [
        issue.at(origins.get(issue.field) or document.origin(issue.path))
        for issue in (*target.problems, *_unsupported(spec, target))
    ]

    if issues:
        raise SpecError(issues)

    return Plan(
        run_id=context.run_id,
        spec=spec,
        spec_digest=json_digest(_values_of_job(spec)),
        target=target,
        context=context,
        unused=tuple(_unused(spec, document, target)),
        origins=origins,
        host=host or target,
        renderer=render,
        checker=check,
        spec_text=document.text,
        overrides=document.overrides,
    )


def spec_values(spec: JobSpec) -> dict[str, Any]:
    """Return the spec as plain JSON, without defaults."""
    values: dict[str, Any] = json.loads(
        json.dumps(spec.model_dump(exclude_defaults=True), default=list)
    )
    return values


def _values_of_job(spec: JobSpec) -> dict[str, Any]:
    """Return the spec without its search, which does not change the job."""
    return {key: value for key, value in spec_values(spec).items() if key != "sweep"}


def json_digest(value: Any) -> str:
    """Return the sha256 of a JSON value, independent of key order."""
    return sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _unsupported(spec: JobSpec, target: Target) -> list[Issue]:
    """Return issues for everything that the target cannot do."""
    issues: list[Issue] = []
    name = target.provider
    resources = spec.resources

    if resources.nodes > target.max_nodes:
        message = f"{resources.nodes} nodes exceed the limit of {name} ({target.max_nodes})"
        issues.append(Issue(("resources", "nodes"), message))

    for key, item in spec.inputs.items():
        uri = target.location_for(item.uri)
        if uri is None:
            issues.append(
                Issue(("inputs", key), f"has no URI for provider {name}", f"add {name}: …")
            )
            continue

        scheme = ""
        if not is_local(uri):
            scheme = uri.partition(":")[0].lower()

        if scheme not in target.declaration.input_schemes:
            example = target.declaration.input_example
            hint = f"name one per provider: {{{name}: '{example}', {_owner(scheme)}: '{uri}'}}"
            issues.append(
                Issue(("inputs", key), f"{uri} cannot be read by the {name} provider", hint)
            )

    for key, locations in spec.secrets.items():
        if target.location_for(locations) is None:
            if "env" in target.declaration.secret_stores:
                hint = f"add {name}: 'env:{key}'"
            else:
                hint = f"add {name}: …"

            issues.append(Issue(("secrets", key), f"has no URI for provider {name}", hint))

    return issues


def _owner(scheme: str) -> str:
    """Return the provider of a URI scheme, or `uri`, which means all."""
    owners = (
        declaration.name
        for declaration in declarations()
        if scheme and declaration.input_example.startswith(f"{scheme}://")
    )

    return next(owners, "uri")


def _unused(spec: JobSpec, document: Document, target: Target) -> Iterator[str]:
    """Yield fields that the target does not use, and sections of other providers."""
    yield from (name for name in target.unused if _is_set(document.values, name))
    mine = (target.provider, *target.declaration.fallback_providers)
    yield from (name for name in spec.sections if name not in mine)


def _is_set(values: Mapping[str, Any], path: str) -> bool:
    value: Any = values
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]

    return value is not None  # null unsets a field
