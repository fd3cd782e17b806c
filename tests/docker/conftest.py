"""Fixtures of the image's tests: a real engine, or a plain word why there is none, and the image
built once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docker.engine import ROOT, Engine, NoEngine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    try:
        docker_engine = Engine()
    except NoEngine as why:
        pytest.skip(str(why))
    yield docker_engine
    docker_engine.close()


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """Build the repository's CPU image and return its tag."""
    build = engine.build(ROOT / "docker", "image", "REVISION=cafe")
    assert build.returncode == 0, build.stdout[-4000:]
    return "image"
