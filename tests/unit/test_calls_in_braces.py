"""`{lr: loguniform(1e-4, 1e-1), b: 3}` is what it looks like, though YAML ends a word in braces at
each comma.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import SpecError
from cloudtrain.spec.yaml_document import Document, parse_document, parse_scalar


def read(text: str) -> Document:
    return parse_document(text, name="job.yaml")


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("{lr: uniform(0, 1), b: 3}", {"lr": "uniform(0, 1)", "b": 3}),
        ("{lr: uniform(0,1)}", {"lr": "uniform(0,1)"}),
        (
            "{a: {lr: uniform(0, 1)}, b: choice(1, 2, 3)}",
            {"a": {"lr": "uniform(0, 1)"}, "b": "choice(1, 2, 3)"},
        ),
        ("{a: f(1, g(2, 3), 4), b: 1}", {"a": "f(1, g(2, 3), 4)", "b": 1}),
        ("{a: choice(x, x), x: 1}", {"a": "choice(x, x)", "x": 1}),
        ("{a: f(1,2,  3)}", {"a": "f(1,2,  3)"}),  # an argument arrives verbatim
        ("{a: choice(1,\n     2), b: 1}", {"a": "choice(1, 2)", "b": 1}),
        ("{a: 'choice(1, 2)', b: 1}", {"a": "choice(1, 2)", "b": 1}),
        ("{a: choice(), b: 1}", {"a": "choice()", "b": 1}),
        # Text that is not a call stays unchanged.
        ("{a: (1, b: 2)}", {"a": "(1", "b": "2)"}),
        ("{a: int(1, 2, b: 3}", {"a": "int(1", "2": None, "b": 3}),
        ("{a: choice(1, 2)x, b: 1}", {"a": "choice(1", "2)x": None, "b": 1}),
        ("{a: choice(1, 2), 3), b: 1}", {"a": "choice(1, 2)", "3)": None, "b": 1}),
        ('{a: "f(1", 2), b: 1}', {"a": "f(1", "2)": None, "b": 1}),
    ],
)
def test_a_call_in_braces_is_one_value(written: str, values: dict[str, Any]) -> None:
    assert read(f"space: {written}").values == {"space": values}
    assert parse_scalar(written) == values


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{lr: uniform(0, 1), lr: 2}", "job.yaml:1:28: space.lr: is given twice (first on line 1)"),
        (
            '{a: choice("x", "y")}',
            "job.yaml:1:27: is not YAML: did not find expected ',' or '}'\n"
            '  hint: in braces, quote the call as a whole: \'choice("a", "b")\'',
        ),
    ],
)
def test_what_is_wrong_in_braces_is_told_at_its_place(written: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(f"space: {written}")
    assert [issue.render() for issue in caught.value.issues] == [message]


@given(
    st.lists(
        st.lists(st.sampled_from(["1", "1e-4", "a", "0.5"]), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_any_calls_beside_each_other_are_read_like_those_on_lines_of_their_own(
    calls: list[list[str]],
) -> None:
    pairs = [f"k{at}: choice({', '.join(words)})" for at, words in enumerate(calls)]
    assert read(f"s: {{{', '.join(pairs)}}}").values["s"] == read("\n".join(pairs)).values
