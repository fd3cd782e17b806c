"""A client that is killed at any call of a submit to Azure ML: one job or none, and the next look
says which.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.faults import FaultKind
from tests.providers.azure.jobs import (
    FIRST_SUBMIT_CALLS,
    command_line_of,
    exists,
    name_of,
    run_id_of,
)
from tests.providers.faults import NthCall
from tests.support.in_process import call as in_process
from tests.support.waiting import eventually


@pytest.mark.parametrize("when", ["hang_before", "hang"])
@pytest.mark.parametrize("call", FIRST_SUBMIT_CALLS, ids=name_of)
def test_a_submit_that_is_killed_at_any_call_leaves_one_job_or_none(
    cloud: AzureCloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: FaultKind,
    call: NthCall,
) -> None:
    cli = command_line_of(cloud, tmp_path)
    run_id = run_id_of("killed", when, name_of(call))
    submit = ("submit", "--provider", "azure", "--detach", "--run-id", run_id)
    cloud.endpoint.fault(when, *call)
    client = cli.start(*submit)
    cloud.endpoint.wait_until_hanging()
    monkeypatch.setenv(
        "HOME", str(cli.folder / "home")
    )  # what follows need not be processes of their own
    monkeypatch.chdir(cli.folder / "job")
    assert json.loads(in_process("status", run_id, "--json").out)["state"] == "submitting"
    client.send_signal(signal.SIGKILL)
    client.communicate()
    eventually(lambda: not cloud.endpoint.hanging)
    cloud.endpoint.reset()
    sent = call[1] == "PutJob"
    made = sent and when == "hang"
    assert exists(cloud, run_id) is made
    status = json.loads(in_process("status", run_id, "--json").out)
    assert status["state"] == ("pending" if made else "submitting" if sent else "failed")
    if not sent:
        assert "interrupted before the job was created; nothing was started" in status["reason"]
    assert in_process(*submit).code == 3
    assert exists(cloud, run_id) is made
    if sent and not made:
        monkeypatch.setattr(
            "cloudtrain.providers.cloud.idempotent_create.CREATE_TIMEOUT_SECONDS", 0
        )
        status = json.loads(in_process("status", run_id, "--json").out)
        assert (status["state"], "nothing was started" in status["reason"]) == ("failed", True)
