"""Faults during and after a submit to either cloud: one job or none, and every line once."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from cloudtrain.api.lookup import find_run
from cloudtrain.api.run import Run
from cloudtrain.errors import NOTHING_STARTED, CloudError
from tests.fakes.messages import FaultKind
from tests.providers.faults import PERMANENT, NthCall, name_of, run_id_of
from tests.providers.sites import (
    ALWAYS,
    CREATE_TIMEOUT,
    NEW_JOB,
    SUBMIT_CALLS,
    Site,
    new_source,
)
from tests.support.command_line import CommandLine
from tests.support.in_process import call as in_process
from tests.support.waiting import HANG_SECONDS, eventually

pytestmark = [
    pytest.mark.usefixtures("site_folder"),
]

SUBMIT = ("submit", "--detach", "--provider")


def test_a_submit_makes_these_calls(site: Site) -> None:
    site.reconnect()
    for run_id in ("calls-1", "calls-2"):  # what was uploaded once is not believed
        site.reconnect()
        site.cloud.endpoint.reset()
        site.submit(run_id)
        assert site.cloud.endpoint.calls == [call[:2] for call in SUBMIT_CALLS[site.provider]]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("expired", "the credentials have expired"),
        ("denied", "not authorized"),
        ("throttle", "wait a little"),
    ],
)
def test_a_refused_submit_exits_with_four_and_says_what_to_do(
    site: Site, kind: FaultKind, words: str
) -> None:
    Path("job.yaml").write_text(json.dumps(site.job))
    site.strike(f"create:{kind}x200")
    result = in_process(*SUBMIT, site.provider)
    assert result.code == 4
    assert words in result.err
    assert site.hints.get(kind, "hint: ") in result.err


@pytest.mark.once
def test_a_submit_whose_process_is_killed_leaves_one_job_or_none(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = site.command_line(tmp_path)
    monkeypatch.setenv("HOME", str(cli.folder / "home"))
    monkeypatch.chdir(cli.folder / "job")
    first, *_, last = SUBMIT_CALLS[site.provider]
    moments: list[tuple[FaultKind, NthCall]] = [
        ("hang", first),
        ("hang", last),
        ("hang_before", last),
    ]
    for when, call in moments:
        new_source(cli.folder / "job")
        kill_submit(site, cli, when, call)


def kill_submit(site: Site, cli: CommandLine, when: FaultKind, call: NthCall) -> None:
    """Kill a submit during a call, before or after it has an effect; look at what is left."""
    run_id = run_id_of("killed", when, name_of(call))
    submit = (*SUBMIT, site.provider, "--run-id", run_id)
    site.cloud.endpoint.fault(when, *call)
    client = cli.start(*submit)
    site.cloud.endpoint.wait_until_hanging()
    assert find_run(run_id).status().state == "submitting", run_id

    client.send_signal(signal.SIGKILL)
    client.communicate()
    eventually(lambda: not site.cloud.endpoint.hanging)
    site.cloud.endpoint.reset()

    is_sent = call[:2] == site.calls["create"]
    is_created = is_sent and when == "hang"
    assert (run_id in site.job_names()) is is_created, run_id
    state = find_run(run_id).status()
    if is_created:
        assert state.state == "pending"
    elif is_sent:
        assert state.state == "submitting"
    else:
        assert state.state == "failed", run_id
        assert f"interrupted before the job was created; {NOTHING_STARTED}" in state.reason

    assert in_process(*submit).code == 3
    assert (run_id in site.job_names()) is is_created, run_id
    if is_sent and not is_created:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CREATE_TIMEOUT, 0)
            state = find_run(run_id).status()
        assert state.state == "failed"
        assert NOTHING_STARTED in state.reason


# After a submit: a wait continues, and a line of a log is read once.


def submit_with_log(site: Site, run_id: str) -> Run:
    """Submit a run with a line in its log, and forget the connections."""
    run = site.submit(run_id)
    site.write_log(run_id, 0, "[rank 0] hello")
    site.reconnect()
    site.cloud.endpoint.reset()
    return run


def texts(run: Run, node: int | None = None) -> list[str]:
    return [line.text for line in run.logs(node=node)]


@pytest.mark.parametrize("kind", PERMANENT)
def test_a_wait_ends_with_an_error_when_a_retry_cannot_help(
    site: Site, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NEW_JOB, 0)
    run = submit_with_log(site, run_id_of("lasting", kind))
    site.cloud.endpoint.fault(kind, *site.calls["observe"], times=ALWAYS)
    with pytest.raises(CloudError) as failed:
        run.wait(HANG_SECONDS)
    assert site.hints[kind] in str(failed.value.hint)
    site.cloud.endpoint.reset()
    assert run.status().state == "pending"
    assert texts(run) == ["hello"]


def test_a_reader_killed_between_line_and_event_duplicates_nothing(site: Site) -> None:
    run = site.submit("torn-1")
    site.write_log(run.id, 0, "[rank 0] first")
    run.status()
    with (run.folder.path / "logs" / "node-0.log").open("a") as file:
        file.write("2026-11-21T00:00:00.000Z [rank 0] of a reader without a position\n")
    site.write_log(run.id, 0, "[rank 0] second")
    find_run(run.id).status()
    assert texts(run) == ["first", "second"]
