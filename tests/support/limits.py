"""Time limits of a test: generous by the clock, strict in CPU time; a test beyond them fails alone
and by name.

A busy machine makes every test slow, and no test wrong. So the clock only ends what hangs
(pytest-timeout's signal method: the test fails where it stands, and its worker goes on), while CPU
time, which load hardly changes, ends what loops or does far too much.
"""

from __future__ import annotations

import faulthandler
import resource
import signal
from collections.abc import Generator
from types import FrameType

import pytest

HANG_SECONDS = 300
"""How long a test waits for one thing before it calls it a hang. Below the clock's limit for a
whole test.
"""
CPU_SECONDS = 240
"""CPU seconds that a test may take, its fixtures and the processes that it has waited for included;
for another number: `@pytest.mark.cpu_seconds(600)`.
"""
STUCK_SECONDS = 120
"""After the clock's limit: a test that sits in C code, where no handler of a signal runs, takes its
worker with it.
"""


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, and interrupts heard: a suite that a script starts in the background has
    them ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers", f"cpu_seconds(n): CPU time that this test may take instead of {CPU_SECONDS} s"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run one test under its CPU limit, with a traceback of all threads if it is stuck."""
    mark = item.get_closest_marker("cpu_seconds")
    limit: float = mark.args[0] if mark else CPU_SECONDS

    def end(signum: int, frame: FrameType | None) -> None:
        pytest.fail(f"{item.nodeid} has taken {limit:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, limit)
    faulthandler.dump_traceback_later(_clock_limit(item) + STUCK_SECONDS, exit=True, file=2)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.fixture(autouse=True)
def cpu_time(request: pytest.FixtureRequest) -> Generator[None]:
    """Fails a test that has taken too much in all: what its processes have taken is known when they
    have ended.
    """
    mark = request.node.get_closest_marker("cpu_seconds")
    limit: float = mark.args[0] if mark else CPU_SECONDS
    before = _cpu_seconds()
    yield
    if (taken := _cpu_seconds() - before) > limit:
        pytest.fail(f"took {taken:.0f} s of CPU time with its processes, {limit:g} s are allowed")


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _clock_limit(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0] if mark else item.config.getini("timeout"))
