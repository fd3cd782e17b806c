"""The machine's parts that tests use by marks: its Docker engine and its browser."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from cloudtrain.providers.docker.errors import address

NO_ENGINE = "unix:///nonexistent/docker.sock"
"""DOCKER_HOST of every test that does not have the mark `docker`."""

FIXTURE_MARKS = {"docker_with_image": "docker", "browser": "browser"}
"""Marks of the tests that use a fixture."""

ENGINE_VARIABLES = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG")


def _machine_variables() -> dict[str, str]:
    """Variables that name the engine of this machine, whichever HOME a test has."""
    variables = {"DOCKER_HOST": address()[0]}
    if "DOCKER_CONFIG" in os.environ:
        variables["DOCKER_CONFIG"] = os.environ["DOCKER_CONFIG"]
    return variables


MACHINE_VARIABLES = _machine_variables()


def mark_by_fixtures(items: Iterable[pytest.Item]) -> None:
    """Mark the tests that use an engine or a browser, so that `-m` selects exactly those."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in FIXTURE_MARKS:
                item.add_marker(FIXTURE_MARKS[fixture])


def show_engine(item: pytest.Item) -> None:
    """Point DOCKER_HOST at this machine's engine for a container test, and at nothing otherwise."""
    for name in ENGINE_VARIABLES:
        os.environ.pop(name, None)

    if item.get_closest_marker("docker"):
        os.environ.update(MACHINE_VARIABLES)
    else:
        os.environ["DOCKER_HOST"] = NO_ENGINE
