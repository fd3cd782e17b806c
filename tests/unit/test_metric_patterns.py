"""`metrics` in job.yaml: accepted expressions, and the definitions that SageMaker gets."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import SpecError
from cloudtrain.providers.aws.request import _of_first_rank
from cloudtrain.spec.fields import FieldErrors
from cloudtrain.spec.load import load_spec
from cloudtrain.spec.metric_patterns import MAX_METRICS, read_metrics


def issues(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(SpecError) as error:
        load_spec(tmp_path / "job.yaml")
    return [issue.render() for issue in error.value.issues]


@pytest.mark.parametrize(
    "pattern",
    [
        "Accuracy: ([0-9.]+)",
        r"^epoch \d+ .*loss=(-?\d+\.\d+(?:e-?\d+)?)",
        r"'loss': ([^,}]+)",
        "(?:acc|accuracy)[ :=]+([0-9.]+)",
        "a{1,5}([0-9]{1,20})",
        "x ((?:[0-9]{1,3},?){1,4})",
    ],
)
def test_ordinary_expressions_are_taken(pattern: str) -> None:
    assert read_metrics({"x": pattern}) == {"x": pattern}


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("Accuracy: [0-9.]+", "has no group"),
        ("(a) ([0-9]+)", "has 2 groups"),
        ("Accuracy: (?P<value>[0-9.]+)", "names its group"),
        ("([0-9", "is not a valid regular expression"),
        ("((?:a+)+)$", "has a repeat inside a repeat, which may run forever on some lines"),
        ("(?:a|a)*([0-9])", "repeats a choice"),
        ("(?:ab|[a]b)*([0-9])", "repeats a choice"),
        ("((?:x*)*)y", "has a repeat inside a repeat, which may run forever on some lines"),
        (r"([0-9]+) \1", "a reference to a group"),
        ("(?i)acc ([0-9]+)", "sets flags"),
        ("([0-9]*)", "matches every line, even an empty one"),
        ("a++([0-9])", "a possessive repeat"),
        ("(?=a)b([0-9])", "a look-around"),
        ("(" + "a" * 500 + ")", "has 502 characters"),
        (3, "expected a regular expression, got 3"),
    ],
)
def test_an_expression_that_is_none_or_may_hang_is_refused(pattern: Any, why: str) -> None:
    with pytest.raises(FieldErrors, match=re.escape(why)):
        read_metrics({"x": pattern})


def test_what_the_trainer_reports_itself_is_not_looked_for(tmp_path: Path) -> None:
    (problem,) = issues(tmp_path, "metrics: {val_loss: 'val ([0-9.]+)'}\n")
    assert "is already reported by the shared trainer" in problem


def test_more_metrics_than_sagemaker_takes_are_refused() -> None:
    with pytest.raises(FieldErrors, match=f"the limit is {MAX_METRICS}"):
        read_metrics({f"m{n}": f"m{n} ([0-9]+)" for n in range(MAX_METRICS + 1)})


@pytest.mark.parametrize(
    ("pattern", "sagemakers"),
    [
        ("Accuracy: ([0-9.]+)", r"\[rank 0\] .*?Accuracy: ([0-9.]+)"),
        ("^loss ([0-9.]+)", r"\[rank 0\] loss ([0-9.]+)"),
        ("a ([0-9])|b", r"\[rank 0\] .*?(?:a ([0-9])|b)"),
    ],
)
def test_sagemaker_looks_at_the_first_ranks_lines(pattern: str, sagemakers: str) -> None:
    assert _of_first_rank(pattern) == sagemakers


@given(
    st.sampled_from(["a+", "b*", "[0-9]+", "x", " ", r"\w+", ".*", "(?:ab)+", "c{0,9}"]).flatmap(
        lambda first: st.lists(st.sampled_from([first, "a+", "x", "(?:a|b)", "[ab]+"]), max_size=3)
    )
)
def test_what_is_taken_is_quick_on_a_hostile_line(parts: list[str]) -> None:
    pattern = "".join(parts) + "y([0-9])"
    try:
        read_metrics({"x": pattern})
    except FieldErrors:
        return
    begin = time.process_time()
    re.compile(pattern).search("a" * 60)
    assert time.process_time() - begin < 1, json.dumps(pattern)
