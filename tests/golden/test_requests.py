"""Requests held against files: what would be sent changes only when somebody means it to.

`CLOUDTRAIN_REWRITE_GOLDEN=1 pytest tests/golden` writes the files anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.planning.launch import Request
from cloudtrain.providers import get_provider
from tests.golden.cases import CASES, SWEEPS, plan_of

# Read at import: the tests' own home has no such variable.
REWRITE = os.environ.get("CLOUDTRAIN_REWRITE_GOLDEN")
FOLDER = Path(__file__).parent
WRITTEN_BY = "0.1.0"
"""The version in the tags of the files, the same after a release."""


@pytest.mark.parametrize("case", CASES)
def test_a_request_is_what_it_was(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    provider, text = CASES[case]
    hold(case, get_provider(provider).render(plan_of(provider, text)))


@pytest.mark.parametrize("case", SWEEPS)
def test_the_request_of_a_sweep_is_what_it_was(case: str) -> None:
    provider, text = SWEEPS[case]
    hold(case, get_provider(provider).native_sweeps().render(plan_of(provider, text)))


def hold(case: str, request: Request) -> None:
    """Compare a request with its file."""
    content = {"request": request.document, "job": request.job.to_json()}
    path = FOLDER / f"{case}.json"
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    text = text.replace(json.dumps(cloudtrain.__version__), json.dumps(WRITTEN_BY))
    if REWRITE:
        path.write_text(text)
    assert text == path.read_text()


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
