"""Faults at either cloud while a run is fetched or read, and answers that are not its own.

A fetch brings everything or nothing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cloudtrain.api.lookup import find_run
from cloudtrain.api.run import Run, fetched_files
from cloudtrain.errors import CloudError
from tests.fakes.messages import Call, FaultKind
from tests.providers.faults import (
    PERMANENT,
    TRANSIENT,
    NthCall,
    assert_each_struck,
    calls_by_operation,
    complaints,
    fault_each,
    name_of,
    run_id_of,
)
from tests.providers.sites import ALWAYS, Site
from tests.support.samples import events_of

pytestmark = [
    pytest.mark.once,
    pytest.mark.usefixtures("site_folder"),
]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """These jobs never end by themselves, so do not wait for that."""
    monkeypatch.setattr("cloudtrain.providers.aws.status.TAG_DELAY_SECONDS", 0)
    monkeypatch.setattr("cloudtrain.api.run.RETRY_SECONDS", 0.01)


# Everything comes or nothing.

RESULTS = {"weights": "w" * 1000, "deep/tokens.json": "{}", "empty": ""}
STATUS = ("history", "sagemaker", "logs", "sts")
"""Services of calls that a fetch can do without: it need not know how the job stands."""


def with_results(site: Site, run_id: str) -> Run:
    """Return a run with a model and a checkpoint."""
    run = site.submit(run_id)
    site.put_model(run_id, **RESULTS)
    site.cloud.put(f"cloudtrain/runs/{run_id}/checkpoints/step-1/rank-0.pt", b"c" * 1000)
    return run


def fetch(site: Site, run: Run, folder: Path) -> list[NthCall]:
    """Fetch everything as a new process would; return the calls, each with its number."""
    site.reconnect()
    run.fetch(folder, checkpoints=True)
    assert {Path(path).relative_to(folder).as_posix() for path in fetched_files(folder)} == {
        "checkpoints/step-1/rank-0.pt",
        *(f"model/{name}" for name in RESULTS),
    }
    assert (folder / "model" / "weights").read_text() == RESULTS["weights"]
    assert [path for path in folder.parent.iterdir() if path.name.endswith(".part")] == []
    counts: Counter[Call] = Counter()
    calls = []
    for call in site.cloud.endpoint.calls:
        counts[call] += 1
        calls.append((*call, counts[call]))
    return calls


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_fetch_brings_everything_despite_a_transient_fault_in_each_of_its_calls(
    site: Site, tmp_path: Path, kind: FaultKind
) -> None:
    run = with_results(site, run_id_of("fetch", kind))
    site.cloud.endpoint.reset()
    calls = fetch(site, run, tmp_path / "first")
    site.cloud.endpoint.reset()
    fault_each(site.cloud.endpoint, kind, calls)
    fetch(site, run, tmp_path / "second")
    assert_each_struck(site.cloud.endpoint, kind, calls)


@pytest.mark.parametrize("kind", PERMANENT)
def test_refused_fetch_leaves_nothing_and_the_next_brings_everything(
    site: Site, tmp_path: Path, kind: FaultKind, thorough: bool
) -> None:
    """Unless `thorough`, each call is refused for one of the reasons."""
    run = with_results(site, run_id_of("refused", kind))
    site.cloud.endpoint.reset()
    calls = fetch(site, run, tmp_path / "first")
    for call in calls if thorough else calls[PERMANENT.index(kind) :: len(PERMANENT)]:
        site.reconnect()
        site.cloud.endpoint.reset()
        site.cloud.endpoint.fault(kind, *call)
        result = tmp_path / name_of(call)
        is_of_status = call[0] in STATUS or call[1] == "GetWorkspace"
        # An answer to HEAD has an empty body: the client asks again.
        if not is_of_status and (kind, call[1]) != ("expired", "HeadObject"):
            with pytest.raises(CloudError) as failed:
                run.fetch(result, checkpoints=True)
            assert failed.value.hint
            assert not result.exists()
        fetch(site, run, result)
        assert site.cloud.endpoint.struck == [(kind, call[:2])]


def test_an_unreadable_log_is_reported_once_and_its_recovery_once(site: Site) -> None:
    run = site.submit("note-1")
    site.write_log(run.id, 0, "[rank 0] hello")
    for is_denied in (True, True, False, False):
        site.cloud.endpoint.reset()
        if is_denied:
            site.cloud.endpoint.fault("denied", *site.observing[-1], times=ALWAYS)
            site.cloud.endpoint.fault("denied", *site.observing[-2], times=ALWAYS)
        site.reconnect()
        find_run(run.id).status()
    events = [event for event in events_of(run.folder) if event["type"] == "log_unread"]
    assert [event["reason"] != "" for event in events] == [True, False]


def test_lines_that_are_here_are_shown_before_what_cannot_be_read_is_reported(site: Site) -> None:
    run = site.submit("here-1")
    site.write_log(run.id, 0, "[rank 0] hello")
    run.status()
    site.cloud.endpoint.fault("denied", *site.calls["observe"], times=ALWAYS)
    shown: list[str] = []
    with pytest.raises(CloudError):
        # This run has not called the service a moment ago.
        shown.extend(line.text for line in find_run(run.id).logs())
    assert shown == ["hello"]


# An answer that is not the cloud's is named as such, and tried again, whichever call it answers.

UNHARMED = {
    # The job is looked up, and found.
    *(Call("sagemaker", f"Create{kind}Job") for kind in ("Training", "HyperParameterTuning")),
    Call("arm", "PutJob"),
    # The source is stored, and found at the next attempt.
    Call("arm", "PutCode"),
    # Their answers say nothing.
    *(Call("sagemaker", f"Stop{kind}Job") for kind in ("Training", "HyperParameterTuning")),
    Call("s3", "PutObject"),
    # Their purpose is met as far as possible.
    Call("s3", "AbortMultipartUpload"),
    Call("ecr", "GetDownloadUrlForLayer"),
}
"""Calls whose answers are optional for an operation."""


@pytest.mark.usefixtures("clock", "small_parts")
def test_every_call_names_an_answer_that_cannot_be_read(
    site: Site, thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    site.reconnect()
    operations = site.operations()
    calls = calls_by_operation(site.cloud.endpoint, operations)
    assert len(calls) > 20
    endpoint = site.cloud.endpoint
    problems = "\n".join(complaints(endpoint, operations, calls, UNHARMED, thorough))
    assert not problems, problems
    site.reconnect()
