"""Export of a sweep as an Optuna study, a file for `optuna.load_study`."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError
from cloudtrain.runs.files import private_opener
from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.state import SweepState, Trial

if TYPE_CHECKING:
    import optuna

INSTALL = "pip install 'cloudtrain[sweeps]'"


def distributions_of(definition: Definition) -> Mapping[str, Any]:
    """Return the space of a sweep as Optuna's distributions."""
    return {key: _distribution(item) for key, item in definition.space.items()}


def optuna_values(definition: Definition, parameters: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """Return the values of a trial in these distributions."""
    space = definition.space
    return {key: _optuna_value(space[key], parameters[key]) for key in space}


def write_study(state: SweepState, times: Mapping[int, tuple[float, float]], file: Path) -> None:
    """Write all trials into an SQLite file, as a study with the sweep's id.

    `times`: suggestion and latest event of each trial (Unix timestamps). Raise UsageError without
    Optuna, OSError if writing fails.
    """
    try:
        import optuna
    except ImportError as error:
        raise UsageError(
            f"{file.name} needs Optuna, which is not installed ({error})", hint=INSTALL
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    trials = [_frozen(state, trial, times.get(trial.number, (0.0, 0.0))) for trial in state.trials]
    # A database URL does not allow every character, and readers must not see a partial file.
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "study.db"
        storage = optuna.storages.RDBStorage(f"sqlite:///{made}")
        try:
            study = optuna.create_study(
                storage=storage,
                study_name=state.definition.sweep_id,
                direction=state.definition.goal,
            )
            study.set_user_attr("metric", state.definition.metric)
            study.add_trials(trials)
        finally:
            storage.remove_session()
            storage.engine.dispose()
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        with open(made, "rb") as source, open(draft, "wb", opener=private_opener) as copy:
            shutil.copyfileobj(source, copy)
    draft.replace(file)


def _frozen(
    state: SweepState, trial: Trial, times: tuple[float, float]
) -> optuna.trial.FrozenTrial:
    import optuna

    kind = getattr(optuna.trial.TrialState, _state(state, trial))
    value = trial.value if kind.is_finished() and kind.name != "FAIL" else None
    frozen = optuna.trial.create_trial(
        state=kind,
        value=value if value is not None and math.isfinite(value) else None,
        params=dict(optuna_values(state.definition, trial.parameters)),
        distributions=dict(distributions_of(state.definition)),
        intermediate_values=dict(enumerate(trial.curve, start=1)),
        user_attrs={
            "state": trial.state,
            "run": trial.run,
            "reason": trial.reason,
            "usd": trial.spent_usd,
            "seconds": trial.seconds,
        },
    )
    began, heard = (datetime.fromtimestamp(time) for time in times)
    frozen.datetime_start = began
    frozen.datetime_complete = heard if kind.is_finished() else None
    return frozen


def _state(state: SweepState, trial: Trial) -> str:
    """Return Optuna's name of a trial's state, the closest for paused and stopped trials."""
    if trial.state == "completed":
        return "COMPLETE" if trial.value is not None and math.isfinite(trial.value) else "FAIL"
    if trial.state == "pruned" or (trial.state == "paused" and state.ended):
        return "PRUNED"
    return "FAIL" if trial.state in ("failed", "too_large", "stopped") or state.ended else "RUNNING"


def _distribution(item: Dimension) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(item, Choice):
        return CategoricalDistribution([_optuna_value(item, value) for value in item.values])
    if isinstance(item, Integers):
        return IntDistribution(item.low, item.high, log=item.log, step=item.step)
    return FloatDistribution(item.low, item.high, log=item.log)


def _optuna_value(item: Dimension, value: Scalar) -> Scalar:
    """Return a value for Optuna: text if values of the choice are equal, such as 1 and true."""
    if isinstance(item, Choice) and len(set(item.values)) < len(item.values):
        return repr(value)
    return value
