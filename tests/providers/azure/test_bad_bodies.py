"""An answer that is not Azure's is named as such, and tried again, whichever call it answers."""

from __future__ import annotations

from functools import partial

import pytest

from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.messages import Call
from tests.providers.azure.jobs import reconnect
from tests.providers.azure.operations import OPERATIONS, Operation, submit
from tests.providers.bad_bodies import Do, calls_by_operation, complaints

pytestmark = pytest.mark.once

UNHARMED = {
    # The job is looked up, and found.
    Call("arm", "PutJob"),
    # The source is stored, and found at the next attempt.
    Call("arm", "PutCode"),
}
"""Calls whose answers are optional for an operation."""


@pytest.fixture
def operations(cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch) -> dict[str, Do]:
    """Everything that the client does."""
    for name in ("FINISHING_SECONDS", "NOTICE_SECONDS"):
        monkeypatch.setattr(f"cloudtrain.providers.azure.stop.{name}", 0)
    monkeypatch.setattr("cloudtrain.providers.azure.stop._grace_seconds", lambda _: 0.2)
    run = submit(cloud, None)  # type: ignore[arg-type]

    def do(operation: Operation) -> None:
        reconnect()
        operation.do(cloud, run)

    left_out = ("push an image", "doctor")
    return {
        name: partial(do, operation)
        for name, operation in OPERATIONS.items()
        if name not in left_out
    }


def test_every_call_names_an_answer_that_cannot_be_read(
    cloud: AzureCloud, operations: dict[str, Do], thorough: bool
) -> None:
    calls = calls_by_operation(cloud.endpoint, operations)
    assert len(calls) > 20
    problems = "\n".join(complaints(cloud.endpoint, operations, calls, UNHARMED, thorough))
    assert not problems, problems
