"""A sweep gives up when every value must fail, names the cause, and continues on request."""

from __future__ import annotations

import pytest

from cloudtrain.sweeps.events import Extended, RunEnded
from cloudtrain.sweeps.schedule import MAX_ALIKE, MAX_WITHOUT_RESULT, End, next_action
from tests.support.sweep_lives import SweepLife, definition_of


def sweep(trials: int = 40) -> SweepLife:
    """Return a sweep whose first trial runs."""
    life = SweepLife(definition_of(trials=trials))
    life.act()
    return life


def lose(life: SweepLife, count: int, *, cause: str = "", outcome: str = "failed") -> None:
    """End `count` trials without a report."""
    for _ in range(count):
        trial = life.state.trials[-1]
        life.write(
            RunEnded(
                time=life.now,
                trial=trial.number,
                run=trial.run,
                outcome=outcome,  # type: ignore[arg-type]
                reason=f"raised {cause}" if cause else "",
                cause=cause,
            )
        )
        life.act()


@pytest.mark.parametrize(
    ("cause", "outcome", "limit", "words"),
    [
        ("ModuleNotFoundError", "failed", MAX_ALIKE, "failed alike (raised ModuleNotFoundError)"),
        ("", "completed", MAX_ALIKE, "trained to their end without reporting loss"),
        (
            "OutOfMemoryError",
            "failed",
            MAX_WITHOUT_RESULT,
            "none has reported loss; the last one: raised OutOfMemory",
        ),
        ("", "failed", MAX_WITHOUT_RESULT, "none has reported loss"),
    ],
)
def test_a_sweep_is_given_up_when_no_value_can_help(
    cause: str, outcome: str, limit: int, words: str
) -> None:
    life = sweep()
    lose(life, limit - 1, cause=cause, outcome=outcome)
    assert life.state.state == "running"
    lose(life, 1, cause=cause, outcome=outcome)
    assert life.state.state == "failed"
    assert life.state.reason.startswith(f"given up: {limit} trials ")
    assert words in life.state.reason


def test_failures_that_settings_may_explain_do_not_end_a_sweep_early() -> None:
    life = sweep()
    lose(life, 3, cause="OutOfMemoryError")
    life.report(life.state.trials[-1], 0.5)
    life.end(life.state.trials[-1], "completed")
    life.act()
    lose(life, 20, cause="ModuleNotFoundError")
    assert life.state.state == "running"


def test_a_number_is_a_result_and_nan_is_none() -> None:
    life = sweep()
    for _ in range(MAX_WITHOUT_RESULT):
        life.report(life.state.trials[-1], None)
        life.end(life.state.trials[-1], "completed")
        life.act()
    assert life.state.state == "failed"


def test_more_trials_revive_a_sweep_that_was_given_up() -> None:
    life = sweep()
    lose(life, MAX_ALIKE, cause="ImportError")
    assert life.state.ended
    life.write(Extended(time=life.now, trials=len(life.state.trials) + 2))
    life.act()
    assert life.state.trials[-1].state == "running"
    life.report(life.state.trials[-1], 0.5)
    life.end(life.state.trials[-1], "completed")
    lose_all = next_action(life.state, life.now)
    assert not isinstance(lose_all, End)


def test_a_revived_sweep_is_given_up_again_for_the_same_cause() -> None:
    life = sweep()
    lose(life, MAX_ALIKE, cause="ImportError")
    life.write(Extended(time=life.now, trials=40))
    life.act()
    lose(life, MAX_ALIKE, cause="ImportError")
    assert life.state.reason.startswith(f"given up: {MAX_ALIKE} trials ")
    assert len(life.state.trials) == 2 * MAX_ALIKE
