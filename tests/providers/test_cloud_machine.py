"""Each cloud under random sequences of submits, faults, kills, stops, other machines and reruns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from tests.providers.cloud_machine import CloudMachine
from tests.providers.known_sequences import KNOWN, PLANTED, strike_each_request
from tests.providers.sites import ALWAYS, Site
from tests.support.clock import Clock

SEQUENCES = 20
THOROUGH_SEQUENCES = 200
STEPS = 12
"""Most steps of one sequence."""

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("site_folder")]
NewMachine = Callable[[], CloudMachine]


@pytest.fixture
def new_machine(
    site: Site, site_folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> NewMachine:
    """Return a function that makes the machine of a sequence, whose time passes at once."""
    monkeypatch.setenv(f"CLOUDTRAIN_{site.provider.upper()}_POLL", "2")
    site.reconnect()
    return lambda: CloudMachine(site, clock, site_folder.parent)


def sequences(count: int) -> settings:
    return settings(
        max_examples=count,
        stateful_step_count=STEPS,
        suppress_health_check=list(HealthCheck),
    )


def run_sequences(new_machine: NewMachine, how: settings) -> None:
    make: Any = new_machine  # Hypothesis calls it as it would a class
    run_state_machine_as_test(make, settings=how)


def strike_submits(new_machine: NewMachine, times: int, *, thorough: bool) -> None:
    machine = new_machine()
    try:
        strike_each_request(
            ("error", "lost", "expired", "denied"), times, machine, thorough=thorough
        )
    finally:
        machine.teardown()


@pytest.mark.timeout(5000)
def test_every_job_is_known_whatever_happens(new_machine: NewMachine, thorough: bool) -> None:
    run_sequences(new_machine, sequences(THOROUGH_SEQUENCES if thorough else SEQUENCES))


@pytest.mark.parametrize("name", KNOWN)
def test_every_job_is_known_in_a_rare_sequence(new_machine: NewMachine, name: str) -> None:
    machine = new_machine()
    try:
        KNOWN[name](machine)
        machine.every_job_has_our_tags()
    finally:
        machine.teardown()


@pytest.mark.parametrize("times", [1, ALWAYS], ids=["once", "for good"])
def test_every_job_is_known_whichever_request_is_struck(
    new_machine: NewMachine, times: int, thorough: bool
) -> None:
    strike_submits(new_machine, times, thorough=thorough)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found_by_its_sequence(
    site: Site, new_machine: NewMachine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake = PLANTED[name]
    mistake.plant(monkeypatch, site.provider)
    machine = new_machine()
    try:
        with pytest.raises(AssertionError, match=mistake.found):
            mistake.sequence(machine)
    finally:
        machine.teardown()


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in PLANTED if not PLANTED[name].is_rare])
def test_a_planted_mistake_is_found_by_chance(
    site: Site, new_machine: NewMachine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTED[name].plant(monkeypatch, site.provider)
    quick = settings(sequences(THOROUGH_SEQUENCES), phases=[Phase.generate])
    # Flaky: Hypothesis plays a sequence again, and the jobs of the first time are still there.
    with pytest.raises((AssertionError, Flaky)):
        run_sequences(new_machine, quick)
