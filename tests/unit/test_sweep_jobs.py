"""A `sweep` section as an Azure ML sweep job: what it cannot express is refused at its line, and
money is held.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from cloudtrain.providers import get_provider
from cloudtrain.providers.azure.sweep_request import expression, sweep_document
from cloudtrain.providers.azure.trial_document import trial_document
from cloudtrain.spec.search_space import Choice, Integers, Uniform
from tests.golden.cases import AZURE_RANDOM, plan_of
from tests.support.native_sweeps import changed

# Each after "CLI (v2) sweep job YAML schema" or "Hyperparameter tuning a model (v2)", but for
# MLflow's names.
REFUSED = {
    "two names that become one": (
        ['sweep.space={"a-b": [1, 2], "a_b": [1, 2]}'], "a_b", "have the same name on Azure ML",
    ),
    "a quote in a word": (["""sweep.space={"a": ["it's", "b"]}"""], "sweep.space.a", "cannot be put into the command"),
    "a placeholder in a word": (['sweep.space={"a": ["${{name}}", "b"]}'], "sweep.space.a", "cannot be put into"),
    "a logarithm for bayesian": (
        ['sweep.space={"a": "loguniform(0.1, 1)"}'], "sweep.space.a", "takes choice, uniform and quniform",
    ),
    "a logarithm of whole numbers for bayesian": (
        ['sweep.space={"a": "logint(1, 9)"}'], "sweep.space.a", "takes choice, uniform and quniform",
    ),
    "successive halving": (["sweep.method=asha"], "sweep.method", "lacks successive halving"),
    "a part of a grid": (
        ["sweep.method=grid", 'sweep.space={"a": [1, 2, 3]}', "sweep.trials=2"], "sweep.trials", "does not say which 2",
    ),
    "too many trials": (["sweep.trials=1001"], "sweep.trials", "more than a sweep job has: 1000"),
    "too large a grid": (
        ["sweep.method=grid", 'sweep.space={"a": "int(1, 1001)"}', "sweep.trials=null"], "sweep.space", "1000",
    ),
    "a shell": (
        ["azure={services: [ssh], ssh_key: ssh-ed25519 AAAA me}"], "azure.services", "a sweep job cannot have",
    ),
    "a name that MLflow refuses": (
        ["entrypoint=train.py", 'sweep.objective.metric="loss{x}"'],
        "sweep.objective.metric", "not a valid metric name in MLflow",
    ),
    "three months": (["sweep.budget={max_time: 90 d}"], "sweep.budget.max_time", "runs for at most 60 d"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_sweep_job_cannot_express_is_refused_at_its_line(case: str) -> None:
    changes, path, fragment = REFUSED[case]
    issues = get_provider("azure").native_sweeps().rules(plan_of("azure", changed(*changes)))
    assert any(
        issue.is_error and issue.field.endswith(path) and fragment in issue.message
        for issue in issues
    ), issues


EXPRESSIONS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "words": (Choice((1, True, "a")), "random", {"type": "choice", "values": ["1", "true", "a"]}),
    "real": (Uniform(0.5, 2.0), "random", {"type": "uniform", "min_value": 0.5, "max_value": 2.0}),
    "magnitudes": (Uniform(1.0, math.e, log=True), "random", {"type": "loguniform", "min_value": 0.0, "max_value": 1}),
    "whole": (Integers(1, 9), "random", {"type": "quniform", "min_value": 0.5, "max_value": 9.5, "q": 1}),
    "whole for bayesian": (Integers(1, 9), "bayesian", {"type": "quniform", "min_value": 1, "max_value": 9, "q": 1}),
    "whole in a grid": (Integers(1, 3), "grid", {"type": "choice", "values": [1, 2, 3]}),
    "whole magnitudes": (
        Integers(1, 9, log=True), "random",
        {"type": "qloguniform", "min_value": math.log(0.5), "max_value": math.log(9.5), "q": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EXPRESSIONS)
def test_a_dimension_is_the_expression_with_the_same_values(case: str) -> None:
    dimension, method, expected = EXPRESSIONS[case]
    assert expression(dimension, method) == expected


def test_a_trial_is_the_command_job_that_the_same_plan_is_without_a_sweep() -> None:
    plan = plan_of("azure", AZURE_RANDOM)
    job = get_provider("azure").render(plan).document
    sweep = sweep_document(plan)
    trial = trial_document(sweep, "digits-k2x9_0", {"lr": "0.1", "batch-size": "16"})
    for name in (
        "code",
        "environment",
        "distribution",
        "resources",
        "inputs",
        "experiment_name",
        "limits",
    ):
        assert trial[name] == job[name]
    assert "CLOUDTRAIN_TUNED_lr='0.1' CLOUDTRAIN_TUNED_batch_size='16'" in trial["command"]
    assert trial["outputs"]["model"]["path"] == f"{job['outputs']['model']['path']}digits-k2x9_0/"
