"""Definition of a sweep, fixed before its first trial, and the checked reader of its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cloudtrain.spec.search_space import Dimension, Scalar, read_space
from cloudtrain_wire.event_record import InvalidValue, Timestamp, field_type

T = TypeVar("T")
Check = Callable[[Any], Any]
"""Return the value to use, or raise InvalidValue."""


def read_checked(kind: type[T], document: Any, **checks: Check) -> T:
    """Return the dataclass in a JSON object. Ignore unknown keys.

    `checks` replaces the checks of some fields. Raise ValueError if a field is missing or invalid.
    """
    try:
        return _read(kind, document, checks)
    except (InvalidValue, TypeError) as error:
        raise ValueError(str(error) or "not an object") from None


def check_parameters(value: Any) -> Mapping[str, Any]:
    """Check the values of a trial: text, numbers, true or false by name."""
    if not isinstance(value, dict):
        raise InvalidValue

    for item in value.values():
        if not isinstance(item, str | int | float):
            raise InvalidValue

    return value


def _read(kind: type[T], document: Any, overrides: Mapping[str, Check]) -> T:
    if not isinstance(document, dict):
        raise InvalidValue

    hashable: Any = kind
    checks = dict(_checks(hashable))
    checks |= overrides
    values = {}

    for name in checks.keys() & document.keys():
        try:
            values[name] = checks[name](document[name])
        except InvalidValue:
            raise InvalidValue(f"{name} has a value of another type") from None

    return kind(**values)


@cache
def _checks(kind: Any) -> Mapping[str, Check]:
    hints = get_type_hints(kind)
    checks = {item.name: _check_of(hints[item.name]) for item in fields(kind)}
    if "time" not in checks:
        return checks

    return {**checks, "time": _check_of(Timestamp)}


def _check_of(annotation: Any) -> Check:
    options = get_args(annotation)
    if NoneType in options:
        return _check_or_none(options)

    if get_origin(annotation) is tuple:
        check = _check_of(options[0])
        return lambda value: tuple(check(item) for item in _check_list(value))

    if is_dataclass(annotation):
        kind: Any = annotation
        return lambda value: _read(kind, value, {})

    if get_origin(annotation) is Mapping:
        return check_parameters

    value_or_none = field_type(annotation).check

    def check_value(value: Any) -> Any:
        checked = value_or_none(value)
        if checked is None:
            raise InvalidValue

        return checked

    return check_value


def _check_or_none(options: Sequence[Any]) -> Check:
    (other,) = [option for option in options if option is not NoneType]
    check = _check_of(other)

    def check_value(value: Any) -> Any:
        if value is None:
            return None

        return check(value)

    return check_value


def _check_list(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    raise InvalidValue


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
        document = {**document, "sampler": removed.get(str(sampler), sampler)}

        return read_checked(Definition, document, space=read_space)
