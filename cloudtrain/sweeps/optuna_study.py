"""Study of Optuna whose earlier trials are read in place.

Optuna's own storage copies every trial that it is given, and lets no ended one change: a trial at a
rung has a value already, and continues.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Literal

from optuna import Study, create_study
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState


def ask(
    earlier: list[FrozenTrial],
    distributions: Mapping[str, BaseDistribution],
    *,
    goal: Literal["minimize", "maximize"],
    seed: int,
) -> Mapping[str, Any]:
    """Return the values that TPE suggests after the earlier trials, which stay unchanged.

    Their numbers begin at 1: the new trial of the study has 0.
    """
    sampler = _Sampler(distributions, seed=seed)
    study = create_study(direction=goal, sampler=sampler, storage=_Storage(earlier))
    return study.ask(dict(distributions)).params


class _Sampler(TPESampler):  # type: ignore[misc, unused-ignore]  # Any without Optuna
    """TPE over settings that every trial has: Optuna's would look for them in each trial."""

    def __init__(self, distributions: Mapping[str, BaseDistribution], *, seed: int) -> None:
        super().__init__(seed=seed, constant_liar=True)
        varied = [name for name, item in distributions.items() if not item.single()]
        self._space = {name: distributions[name] for name in sorted(varied)}

    def infer_relative_search_space(
        self,
        study: Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Return the settings with more than one value, as Optuna orders them."""
        return self._space


class _Storage(InMemoryStorage):  # type: ignore[misc, unused-ignore]  # Any without Optuna
    """Storage of one study, in front of whose trials are earlier ones."""

    def __init__(self, earlier: list[FrozenTrial]) -> None:
        super().__init__()
        self._earlier = earlier

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the earlier trials without a copy, then the trials of the study."""
        trials = super().get_all_trials(study_id, deepcopy, states)
        earlier = self._earlier
        if states is not None:
            earlier = [trial for trial in earlier if trial.state in states]

        return earlier + trials
