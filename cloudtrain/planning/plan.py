"""The plan: spec, context and target put together into one frozen value. No network, no process, no
SDK.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from cloudtrain import __version__
from cloudtrain.declaration import declarations
from cloudtrain.errors import SpecError
from cloudtrain.issues import Issue, dotted
from cloudtrain.planning.target import Target

if TYPE_CHECKING:  # a provider that looks after a run needs no pydantic
    from cloudtrain.spec.model import JobSpec
    from cloudtrain.spec.yaml_document import Document


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSummary:
    """The source folder at the time of planning."""

    root: str
    digest: str
    files: int
    bytes: int
    warning: str = ""
    """A warning about its size; empty for none."""
    secrets: tuple[str, ...] = ()
    """Paths that are left out since they are likely to hold secrets."""
    requirements: str = ""
    """The file that says which packages are installed; empty for none, or for a list in the spec.
    """
    packages: tuple[str, ...] = ()
    """What it asks for, a requirement each, for people."""
    wheels: int = 0
    """How many wheels are sent along."""
    kept: tuple[tuple[str, str], ...] = ()
    """Patterns of `keep` that match files of the source, each with the first of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRules:
    """What a run needs to know as a trial of a sweep, to end itself at a rung."""

    trial: int
    """The number of the trial, by which the values of the others are told from its own."""
    metric: str
    goal: str
    """minimize or maximize."""
    rungs: tuple[int, ...]
    """At which reports of the metric it is compared with the others, from 1; those that it has
    passed, too.
    """
    eta: int
    until: int | None = None
    """At which report it ends, to wait for its promotion; None: it ends at a rung only if it is
    behind there.
    """
    reports: int = 0
    """How many reports earlier runs of the trial have made."""
    position: float | None = None
    """The step, or else the epoch, of the latest of them; None where it has neither."""
    measures: bool = False
    """Whether it is to measure the metric once, and end there: a trial of a search for a batch
    size.
    """

    @staticmethod
    def of_measurement(trial: int, metric: str, goal: str) -> TrialRules:
        """The rules of a trial that is compared with no other."""
        return TrialRules(
            trial=trial, metric=metric, goal=goal, rungs=(), eta=2, until=1, measures=True
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """A rehearsal of the job that succeeded on this machine."""

    run: str
    time: float
    """When it was submitted, as a Unix timestamp."""
    changes: tuple[str, ...] = ()
    """In what the request has changed since, `path: old → new`; empty: it is the same request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanContext:
    """What is read from disk, git and the clock: all that a plan knows besides spec and target."""

    run_id: str
    time: float
    """A Unix timestamp."""
    folder: str
    """The job's folder; relative paths in the spec count from it."""
    data_dir: str
    """Where runs are kept on this machine."""
    submitted_from: str = ""
    """The folder in which the command was typed: commands without a name look for runs from there.
    """
    source: SourceSummary
    local_files: tuple[str, ...] = ()
    """Inputs, by name, that are single files on this machine."""
    git_commit: str = ""
    git_dirty: bool | None = None
    """Whether tracked files differ from that commit; None when that is not known."""
    owner: str = ""
    """Who plans it, for those who share an account: `alice@laptop`."""
    strict: bool = False
    """Whether security findings refuse the job: the setting `policy`."""
    resume_run: str = ""
    """The run that this one goes on from."""
    resume_from: str = ""
    """Where the checkpoints of that run are: a folder, or a URI."""
    trial: TrialRules | None = None
    """As a trial of a sweep that ends trials early; None for any other run."""
    trials_at_once: int = 1
    """How many trials of a sweep run at once: on one machine they share its cores."""
    rehearsal: Rehearsal | None = None
    """The newest that succeeded, for a job that is sent to a cloud; None where there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything that is decided before anything is done."""

    run_id: str
    spec: JobSpec
    spec_digest: str
    target: Target
    context: PlanContext
    unused: tuple[str, ...]
    """Fields that the spec sets and this provider does not use."""
    origins: Mapping[str, str]
    """Where each field of the spec was set, by dotted path."""
    host: Target
    """Where it runs. In a rehearsal that is not `target`, whose request is executed there."""
    spec_text: str = ""
    overrides: tuple[str, ...] = ()

    @property
    def provider(self) -> str:
        """The name of the provider that runs it."""
        return self.host.provider

    @property
    def is_rehearsal(self) -> bool:
        """Whether another provider's request is executed."""
        return self.host.provider != self.target.provider

    @property
    def gpus(self) -> int:
        """GPUs per node that the job uses."""
        return (self.spec.resources.gpus or 0) if self.target.gpus is None else self.target.gpus

    @property
    def processes(self) -> int:
        """Processes per node."""
        return self.spec.resources.processes_on(self.gpus)

    @property
    def inputs(self) -> dict[str, str]:
        """Where the target finds each input, by name, as the spec says it."""
        return {
            name: self.target.location_for(item.uri) or ""
            for name, item in self.spec.inputs.items()
        }

    @property
    def secrets(self) -> dict[str, str]:
        """Where the target finds each secret, by the variable that is to hold it, as the spec says
        it.
        """
        return {
            name: self.target.location_for(places) or ""
            for name, places in self.spec.secrets.items()
        }

    def where(self, path: str) -> str:
        """Where a field was set, or else the nearest field around it; empty when none of them was
        set.
        """
        keys = path
        while keys and keys not in self.origins:
            cut = max(keys.rfind("."), keys.rfind("["))
            keys = keys[:cut] if cut > 0 else ""
        return self.origins.get(keys, "")

    def located(self, issue: Issue) -> Issue:
        """The same issue, with the place where its field was set."""
        return issue.at(self.where(issue.field))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; the run folder keeps it beside the spec's own text. Its `facts` are the
        context.
        """
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
) -> Plan:
    """Put spec, context and target together. SpecError lists what this target cannot do, each at
    its line.

    `host`: where it is executed, for a rehearsal; by default at the target itself.
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
        spec_text=document.text,
        overrides=document.overrides,
    )


def spec_values(spec: JobSpec) -> dict[str, Any]:
    """The spec as plain JSON, defaults left out."""
    values: dict[str, Any] = json.loads(
        json.dumps(spec.model_dump(exclude_defaults=True), default=list)
    )
    return values


def _values_of_job(spec: JobSpec) -> dict[str, Any]:
    """What the job itself is: a search over its settings changes nothing of it."""
    return {key: value for key, value in spec_values(spec).items() if key != "sweep"}


def json_digest(value: Any) -> str:
    """sha256 of a JSON value, independent of the order of its keys."""
    return sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _unsupported(spec: JobSpec, target: Target) -> list[Issue]:
    """What the target cannot do: reported before anything is spent."""
    found: list[Issue] = []
    name = target.provider
    resources = spec.resources
    if resources.nodes > target.max_nodes:
        message = f"{resources.nodes} nodes are more than {name} runs at once ({target.max_nodes})"
        found.append(Issue(("resources", "nodes"), message))
    for key, item in spec.inputs.items():
        uri = target.location_for(item.uri)
        if uri is None:
            found.append(
                Issue(("inputs", key), f"has no URI for provider {name}", f"add {name}: …")
            )
            continue
        scheme = uri.partition("://")[0].lower() if "://" in uri else ""
        if scheme not in target.declaration.input_schemes:
            example = target.declaration.input_example
            hint = f"name one per provider: {{{name}: '{example}', {_owner(scheme)}: '{uri}'}}"
            found.append(
                Issue(("inputs", key), f"{uri} cannot be read by the {name} provider", hint)
            )
    for key, locations in spec.secrets.items():
        if target.location_for(locations) is None:
            hint = (
                f"add {name}: 'env:{key}'"
                if "env" in target.declaration.secret_stores
                else f"add {name}: …"
            )
            found.append(Issue(("secrets", key), f"has no URI for provider {name}", hint))
    return found


def _owner(scheme: str) -> str:
    """The provider that owns the scheme; `uri`, which means all of them, where none does."""
    own = (
        each.name
        for each in declarations()
        if scheme and each.input_example.startswith(f"{scheme}://")
    )
    return next(own, "uri")


def _unused(spec: JobSpec, document: Document, target: Target) -> Iterator[str]:
    """Fields that the target does not use, and sections of other providers."""
    yield from (name for name in target.unused if _is_set(document.values, name))
    mine = (target.provider, *target.declaration.fallback_providers)
    yield from (name for name in spec.sections if name not in mine)


def _is_set(values: Mapping[str, Any], path: str) -> bool:
    value: Any = values
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return value is not None  # null takes a field back
