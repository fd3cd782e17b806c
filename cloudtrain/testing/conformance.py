"""Conformance suite for pytest: a test for each promise that a provider has to keep.

    from contextlib import contextmanager
    from cloudtrain.testing.conformance import Platform, ProviderConformance

    class TestMine(ProviderConformance):
        @classmethod
        @contextmanager
        def platform(cls, folder):
            yield Platform(provider="mine", job={"mine": {"host": "here"}})

Each failure shows the behavior of the provider and the promise of the protocol.
"""

from __future__ import annotations

from cloudtrain.testing.bench import GREETING, GREETING_FILE, SECRET, Platform
from cloudtrain.testing.planning_checks import PlanningChecks
from cloudtrain.testing.run_checks import RunChecks

__all__ = ["GREETING", "GREETING_FILE", "SECRET", "Platform", "ProviderConformance"]


# pytest runs the tests of the last base first
class ProviderConformance(RunChecks, PlanningChecks):
    """The whole suite. Subclass it as `Test…` and implement `platform`.

    `timeout_seconds`: maximum duration of a job, including its wait for a machine.
    """
