"""A search over a job's settings does not change the request of the job itself."""

from __future__ import annotations

import pytest

from cloudtrain.providers import get_provider
from tests.golden.cases import CASES, plan_of

SWEEP = """
sweep:
  objective: {metric: val_loss, goal: minimize}
  space: {lr: loguniform(1e-4, 1e-1), env.SEED: [1, 2]}
  trials: 20
"""


@pytest.mark.parametrize("case", ["local", "docker", "aws", "azure"])
def test_a_job_with_a_sweep_is_sent_as_one_without(case: str) -> None:
    provider, text = CASES[case]
    plain = plan_of(provider, text)
    swept = plan_of(provider, text + SWEEP)
    assert swept.spec.sweep is not None
    one, second = (get_provider(provider).render(plan) for plan in (plain, swept))
    assert one.document == second.document
    assert one.job.to_json() == second.job.to_json()
