"""The suite itself: ids of tests are the same everywhere, and only container tests see an engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import pytest_make_parametrize_id
from tests.support import machine


@pytest.mark.parametrize(
    "value", [b"\x1f\x8b", bytearray(2), Path("folder")], ids=["bytes", "bytearray", "path"]
)
def test_a_parameter_whose_own_id_may_differ_between_workers_is_refused(value: object) -> None:
    """pytest-xdist checks in every run that all workers, each with its hash seed, collect the same."""
    with pytest.raises(pytest.UsageError, match="write ids for the parameter content"):
        pytest_make_parametrize_id(value, "content")
    pytest_make_parametrize_id("a text", "content")


def test_only_container_tests_see_the_engine_of_the_machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.environ["DOCKER_HOST"] == machine.NO_ENGINE
    assert "DOCKER_CONTEXT" not in os.environ

    monkeypatch.setattr(
        machine, "_MACHINE_VARIABLES", {"DOCKER_HOST": "unix:///run/an-engine.sock"}
    )
    request.node.add_marker("docker")
    machine.show_engine(request.node)
    assert os.environ["DOCKER_HOST"] == "unix:///run/an-engine.sock"
