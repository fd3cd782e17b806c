"""Definition of a sweep, fixed before its first trial, and the checked reader of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cloudtrain.spec.search_space import Dimension, Scalar, read_space
from cloudtrain_wire.event_record import field_type

T = TypeVar("T")
_field_type = cache(field_type)


def read_checked(kind: type[T], document: Any) -> T:
    """Return the dataclass in a JSON object. Ignore unknown keys.

    Raise ValueError if a field is missing or invalid.
    """
    if not isinstance(document, dict):
        raise ValueError("not an object")

    hashable: Any = kind
    annotations = _annotations(hashable)
    values = {}

    for name in annotations.keys() & document.keys():
        try:
            values[name] = _checked(annotations[name], document[name])
        except ValueError:
            raise ValueError(f"{name} has a value of another type") from None

    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(str(error)) from None


@cache
def _annotations(kind: Any) -> Mapping[str, Any]:
    annotations = get_type_hints(kind, include_extras=True)
    return {item.name: annotations[item.name] for item in fields(kind)}


def _checked(annotation: Any, value: Any) -> Any:
    """Return the value for a field with this annotation, or raise ValueError."""
    options = get_args(annotation)
    if NoneType in options and value is None:
        return None

    if is_dataclass(annotation):
        kind: Any = annotation
        return read_checked(kind, value)

    if get_origin(annotation) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError

        return tuple(_checked(options[0], item) for item in value)

    if get_origin(annotation) is Mapping:
        is_object = isinstance(value, dict)
        is_valid = is_object and all(isinstance(item, options[1]) for item in value.values())
        checked = value if is_valid else None
    else:
        checked = _field_type(annotation).check(value)
    if checked is None:
        raise ValueError

    return checked


@dataclass(frozen=True, kw_only=True, slots=True)
class Caps:
    """Maximum cost and time; None: no cap is known."""

    usd: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """Definition of a sweep, which only the event `extended` changes."""

    sweep_id: str
    name: str
    provider: str
    """Provider of its trials."""
    as_: str = ""
    """Provider whose requests are rehearsed; empty for none."""
    engine: Literal["portable", "native", "ray"] = "portable"
    metric: str
    goal: Literal["minimize", "maximize"]
    space: Mapping[str, Dimension]
    sampler: Literal["grid", "random", "tpe"]
    seed: int = 0
    target: float | None = None
    """Value of a trial that ends the sweep; a better one does, too."""
    try_first: tuple[Mapping[str, Scalar], ...] = ()
    """Values of the first trials; a setting that is left out is chosen."""
    trials: int
    parallel: int = 1
    retries: int = 0
    """Number of repetitions before a failed trial counts as failed."""
    rungs: tuple[int, ...] = ()
    """Reports of the metric, from 1, after which trials are compared; empty: no early stopping."""
    eta: int = 3
    last_report: int | None = None
    """Reports of a whole trial; None if unknown."""
    promotes: bool = False
    """True: trials pause at rungs, and the best continue from their checkpoints.

    False: trials that fall behind end.
    """
    budget: Caps = Caps()
    """Budget of all trials; seconds count from the start of the sweep."""
    trial_cap: Caps = Caps()
    """Cap of one run of a trial."""

    ray_cpus: int | None = None
    """CPUs that Ray lends a trial; None: as many as it has processes."""
    ray_gpus: float | None = None
    """GPUs that Ray lends a trial; None: as many as it asks for."""

    @property
    def method(self) -> str:
        """Name of the sampler for people."""
        return "bayesian (TPE)" if self.sampler == "tpe" else self.sampler

    @property
    def is_native(self) -> bool:
        """True if the cloud's own service runs the sweep; rehearsals run here."""
        return self.engine == "native" and not self.as_

    def most_runs(self, trials: int) -> int:
        """Return the maximum number of runs of these trials, with promotions and retries."""
        runs = promoted = trials
        if self.promotes:
            for _ in self.rungs:
                promoted //= self.eta
                runs += promoted

        return runs * (1 + self.retries)

    def worst_usd(self, trials: int, spent_usd: float = 0.0) -> float | None:
        """Return the maximum cost of these trials; None without costs or with an unknown price.

        `spent_usd`: part of the budget that other trials take.
        """
        if self.trial_cap.usd is None:
            return None

        worst = self.trial_cap.usd * self.most_runs(trials)
        if self.budget.usd is None:
            return worst

        return min(worst, self.budget.usd - spent_usd)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON with the version of the format. The space is written as in job.yaml."""
        space = {key: dimension.text() for key, dimension in self.space.items()}
        return {"version": 1, **asdict(self), "space": space}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Definition:
        """Return the definition that `to_json` wrote.

        Raise ValueError if a field is missing or of another type.
        """
        sampler = document.get("sampler")
        removed = {"qmc": "random", "gp": "tpe", "batch_size": "random"}  # of earlier versions
        space = read_space(document.get("space"))
        document = {**document, "space": space, "sampler": removed.get(str(sampler), sampler)}

        return read_checked(Definition, document)
