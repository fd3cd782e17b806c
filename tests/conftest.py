"""Shared by all tests: a home for each, no settings from outside, and no process left behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.machine import mark_by_fixtures, show_engine
from tests.support.page_checks import browser_fixture

if TYPE_CHECKING:
    from docker.client import DockerClient

__all__ = ["browser_fixture"]

# A pause is not a bug. Examples are the same everywhere; --hypothesis-profile=default draws others.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

# A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Imports and collection leave hardly any garbage, and each worker would look for it many times.
gc.disable()

OUTSIDE = (
    *("AWS_", "AZURE", "ARM_", "MSI_", "IDENTITY_"),  # accounts
    *("GIT_", "PIP_", "UV_"),  # of a hook, or an index of packages
    *("RAY_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_"),  # of a job
    *("COLUMNS", "LINES"),  # of a terminal
)
"""Prefixes of the person's variables that no fixture may see either. Tests set some of their own."""

for name in list(os.environ):
    if name.startswith(OUTSIDE) or name.lower().endswith("_proxy"):
        del os.environ[name]

SLOW_FIRST = ("e2e", "docker", "entrypoints", "examples", "providers", "fakes")
"""Folders whose files take longest: begun first, they do not keep everybody waiting at the end."""


THOROUGH = "--thorough"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make thorough` repeats what the suite does a few times as often as the claim says, and runs
    what takes long.
    """
    parser.addoption(
        THOROUGH,
        action="store_true",
        help="repeat kills and builds that the suite tries a few times",
    )


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Return whether a test may take minutes."""
    return bool(request.config.getoption(THOROUGH))


def pytest_make_parametrize_id(val: object, argname: str) -> None:
    """Called for a parameter without a written id; of bytes and paths pytest makes ids that may
    differ between two collections, as gzip's bytes hold a time. Every worker must collect the same
    tests, and pytest-xdist compares them.
    """
    if isinstance(val, bytes | bytearray | Path):
        raise pytest.UsageError(f"write ids for the parameter {argname}: {val!r}")


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Change only the order of files; within a file it stays. An id may not name a folder of this
    machine.
    """
    mark_by_fixtures(items)
    tests_folder = Path(__file__).parent

    @cache
    def position(path: Path) -> int:
        folder = (
            path.relative_to(tests_folder).parts[0] if path.is_relative_to(tests_folder) else ""
        )
        return SLOW_FIRST.index(folder) if folder in SLOW_FIRST else len(SLOW_FIRST)

    for item in items:
        if tempfile.gettempdir() in item.nodeid or str(tests_folder.parent) in item.nodeid:
            raise pytest.UsageError(f"write ids for the parameters of this test: {item.nodeid}")
    items.sort(key=lambda item: position(item.path))


def pytest_collection_finish() -> None:
    """Collect garbage again, but seldom, and not among what collection made: a tenth of the time of
    tests went there.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before any fixture is made
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what only Linux has elsewhere, naming what is missing, and what takes long unless it is
    asked for.
    """
    mark = item.get_closest_marker("linux")
    if mark is not None and sys.platform != "linux":
        pytest.skip(f"only Linux has it: {mark.args[0]}")
    if item.get_closest_marker("thorough") and not item.config.getoption(THOROUGH):
        pytest.skip("takes long: make thorough runs it")
    show_engine(item)


OUTER = ("CLOUDTRAIN_", "XDG_", "PET_", "TORCHELASTIC_", "GITHUB_")
"""Prefixes of the variables of a person, a job or a CI that tests must not see."""


@pytest.fixture(scope="session")
def new_home(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Return a function that makes the home of a test.

    Homes have a folder of their own: pytest lists its folder for each `tmp_path` that it makes.
    """
    folder = tmp_path_factory.mktemp("homes")
    numbers = count()

    def make() -> Path:
        home = folder / str(next(numbers))
        home.mkdir(mode=0o700)
        return home

    return make


@pytest.fixture(autouse=True)
def own_home(new_home: Callable[[], Path]) -> Iterator[Path]:
    """Provide a new home for each test, without the person's settings or runs.

    Undo changes of the environment by a test or an SDK.
    """
    home = new_home()
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(OUTER)]:
        del os.environ[name]
    os.environ["HOME"] = str(home)
    # Since Python 3.12 it keeps the certificates of its first use.
    urllib.request.install_opener(None)
    yield home
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def docker_with_image() -> Iterator[tuple[DockerClient, str]]:
    """Provide a Docker engine and an image of these tests alone; skip with the reason without one."""
    from tests.support.engine import engine_and_image

    with engine_and_image() as engine:
        yield engine


@pytest.fixture
def docker(docker_with_image: tuple[DockerClient, str]) -> DockerClient:
    """A client of the engine."""
    return docker_with_image[0]


@pytest.fixture
def image(docker_with_image: tuple[DockerClient, str]) -> str:
    """The image."""
    return docker_with_image[1]
