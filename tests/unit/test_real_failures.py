"""A few failures are really made, without torch: each is diagnosed as what it is.
`bench_failures.py` makes all.
"""

from __future__ import annotations

import pytest

from tests.bench.failing import SKIPPED, run_program
from tests.bench.failing_programs import PLAIN

SAMPLE = (
    "memory beyond a limit",
    "disk full",
    "another user's folder",
    "too many open files",
    "module that is not installed",
    "library that is not there",
    "program for another processor",
    "host that does not answer",
    "killed by another process",
    "crash in native code",
    "an exception of its own",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_failure_that_is_really_made_is_diagnosed_as_what_it_is(name: str) -> None:
    outcome = run_program(name, *PLAIN[name])
    if outcome.found == SKIPPED:
        pytest.skip("only root may mount the small disk that this fills")
    assert outcome.found == outcome.expected, outcome
