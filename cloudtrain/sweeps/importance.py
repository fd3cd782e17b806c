"""How much each setting of a sweep matters for its objective: by fANOVA where it can be had, else
by ranks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from cloudtrain.spec.search_space import Choice, Scalar
from cloudtrain.sweeps.state import SweepState, Trial

MIN_TRIALS = 4
"""Fewer say nothing about which setting it was."""

Sample = tuple[Trial, float]


@dataclass(frozen=True, slots=True)
class Importance:
    """How much each setting matters, from 0 to 1, the most important first; empty where too few
    trials tell.
    """

    shares: Mapping[str, float]
    method: str
    """In words: by what, and from which values."""


def importance(state: SweepState) -> Importance:
    """The importance of the settings that a sweep varies.

    All trials are compared after the same number of reports where there are rungs: those that were
    ended early have no other value that could be held against the others'.
    """
    samples, which = _samples(state)
    if len(samples) < MIN_TRIALS or len({value for _, value in samples}) < 2:
        return Importance({}, f"too few trials with different values tell ({len(samples)} of them)")
    shares = _fanova(state, samples)
    method = "fANOVA: the share of the variance that a setting explains by itself and with others"
    if shares is None:
        method = (
            "rank correlation of the objective with one setting at a time (fANOVA needs Optuna and"
            " scikit-learn)"
        )
        shares = {key: _rank_correlation(state, key, samples) for key in state.definition.space}
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1]))
    return Importance(ordered, f"{method}; from {which} of {len(samples)} trials")


def _samples(state: SweepState) -> tuple[Sequence[Sample], str]:
    """The trials whose values can be compared, with these, and which values they are."""
    for rung, values in reversed(list(zip(state.definition.rungs, state.rungs, strict=True))):
        known = [
            (state.trials[number], value)
            for number, value in values.items()
            if math.isfinite(value)
        ]
        if 2 * len(known) >= len(state.trials) and len(known) >= MIN_TRIALS:
            return known, f"the values at report {rung}"
    ended = [
        (trial, trial.value)
        for trial in state.trials
        if trial.state == "completed" and trial.value is not None and math.isfinite(trial.value)
    ]
    return ended, "the last values"


def _fanova(state: SweepState, samples: Sequence[Sample]) -> Mapping[str, float] | None:
    """Shares that sum to 1 (Hutter et al., ICML 2014), by Optuna; None where Optuna or scikit-learn
    is missing.
    """
    if find_spec("optuna") is None or find_spec("sklearn") is None:
        return None
    import optuna

    from cloudtrain.sweeps.optuna_study import distributions_of, optuna_values

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction=state.definition.goal)
    known = distributions_of(state.definition)
    study.add_trials(
        [
            optuna.trial.create_trial(
                params=dict(optuna_values(state.definition, trial.parameters)),
                distributions=dict(known),
                value=value,
            )
            for trial, value in samples
        ]
    )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(found.get(key, 0.0)) for key in state.definition.space}


def _rank_correlation(state: SweepState, key: str, samples: Sequence[Sample]) -> float:
    """Spearman's, without its sign; of a choice the correlation ratio of the ranks."""
    ranks = _ranks([value for _, value in samples])
    settings = [trial.parameters[key] for trial, _ in samples]
    if isinstance(state.definition.space[key], Choice):
        return _correlation_ratio(settings, ranks)
    return abs(_correlation(_ranks([float(value) for value in settings]), ranks))


def _ranks(values: Sequence[float]) -> Sequence[float]:
    """The rank of each value; equal ones share the mean of theirs."""
    places: dict[float, list[int]] = defaultdict(list)
    for place, value in enumerate(sorted(values)):
        places[value].append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    middle = (len(one) - 1) / 2  # of ranks, whatever they are of
    both = sum((a - middle) * (b - middle) for a, b in zip(one, other, strict=True))
    spread = math.sqrt(sum((a - middle) ** 2 for a in one) * sum((b - middle) ** 2 for b in other))
    return both / spread if spread else 0.0


def _correlation_ratio(settings: Sequence[Scalar], ranks: Sequence[float]) -> float:
    """The root of the share of the ranks' variance that lies between the values of the setting."""
    groups: dict[tuple[type, Scalar], list[float]] = defaultdict(list)
    for setting, rank in zip(settings, ranks, strict=True):
        groups[type(setting), setting].append(rank)
    middle = (len(ranks) - 1) / 2
    between = sum(len(each) * (sum(each) / len(each) - middle) ** 2 for each in groups.values())
    total = sum((rank - middle) ** 2 for rank in ranks)
    return math.sqrt(between / total) if total else 0.0
