"""The texts that a line must hold for a pattern to match: they never refuse a line that it matches."""

from __future__ import annotations

import re

import pytest

from cloudtrain.diagnosis.rule import needed_literals
from cloudtrain.diagnosis.rules import RULES
from tests.unit.test_diagnosis_rules import EXAMPLES, HEALTHY, PUBLIC

LINES = [*EXAMPLES.values(), *HEALTHY, *(line for report in PUBLIC for line in report.lines)]


def test_no_line_that_a_rule_knows_is_refused_by_the_texts_it_needs() -> None:
    patterns = [(pattern, needed_literals(pattern)) for rule in RULES for pattern in rule.patterns]
    assert sum(bool(needed) for _, needed in patterns) > len(patterns) * 0.9, (
        "most patterns are fast"
    )
    wrong = [
        (pattern, line)
        for pattern, needed in patterns
        if needed
        for line in LINES
        if re.search(pattern, line) and not any(literal in line for literal in needed)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        (r"No space left|ENOSPC", ("No space left", "ENOSPC")),
        (r"[Cc]an't mount (it|them) here", ("an't mount ",)),
        (r"colou?r is broken", ("r is broken",)),
        (r"abc{0,3}def", ("def",)),
        (r"a\.b\(c\)", ("a.b(c)",)),
        (r"xy+z at \d+ o'clock", (" o'clock",)),
        (r"(this|that)", ()),
        (r"fine|(this|that)", ()),
        (r"(?i:loud) and clear", ()),
        (r"ab|cd", ()),
    ],
)
def test_each_alternative_needs_its_longest_plain_piece_or_nothing_is_said(
    pattern: str, needed: tuple[str, ...]
) -> None:
    assert needed_literals(pattern) == needed
