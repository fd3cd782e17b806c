"""The suite that a provider's author runs with pytest: what every provider must keep to, each as a
test.

    from contextlib import contextmanager
    from cloudtrain.testing.conformance import Platform, ProviderConformance

    class TestMine(ProviderConformance):
        @classmethod
        @contextmanager
        def platform(cls, folder):
            yield Platform(provider="mine", job={"mine": {"host": "here"}})

Each failure says what the provider did and what the protocol says.
"""

from __future__ import annotations

from cloudtrain.testing.bench import GREETING, GREETING_FILE, SECRET, Platform
from cloudtrain.testing.planning_checks import PlanningChecks
from cloudtrain.testing.run_checks import RunChecks

__all__ = ["GREETING", "GREETING_FILE", "SECRET", "Platform", "ProviderConformance"]


class ProviderConformance(
    RunChecks, PlanningChecks
):  # pytest runs the tests of the last base first
    """All of it. Subclass it, name the class `Test…`, and say by `platform` where its jobs run.

    `timeout_seconds` is how long a job may take, its wait for a machine included.
    """
