"""`cloudtrain infra --provider azure` against an empty loopback Azure: set up, shown, set up again, removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.azure.clients import cheap_clients
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.resource_manager.manager import ResourceManager
from tests.fakes.azure.resource_manager.store import WORKSPACES
from tests.fakes.azure.tokens import OBJECT_ID
from tests.providers.azure.jobs import forget
from tests.support.command_line import CommandResult
from tests.support.in_process import call

UP = ("infra", "up", "--provider", "azure", "--region", "East US")


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureCloud]:
    """Takes the place of the workspace that other tests of this folder have."""
    forget()
    with AzureCloud(empty=True) as made, cheap_clients():
        yield made
        forget()
    assert not made.account.unexpected_errors, "\n".join(made.account.unexpected_errors)


@pytest.fixture
def ground(cloud: AzureCloud) -> ResourceManager:
    """The subscription of a test, with nothing in it."""
    assert cloud.ground is not None
    cloud.ground.empty()
    return cloud.ground


def up(*words: str) -> CommandResult:
    return call(*UP, "--yes", *words)


def kinds(ground: ResourceManager) -> dict[str, int]:
    """How many resources of each type there are."""
    found: dict[str, int] = {}
    for each in ground.store.resources.values():
        found[each.kind] = found.get(each.kind, 0) + 1
    return found


def test_up_shows_the_plan_and_its_cost_deploys_it_and_writes_the_settings(ground: ResourceManager) -> None:
    said = up()
    print(said.out, said.err)
    assert said.code == 0
