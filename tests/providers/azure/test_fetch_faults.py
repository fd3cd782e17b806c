"""Results and logs of Azure ML: nothing gets out of its folder, and every line comes once."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from cloudtrain.api.lookup import find_run
from cloudtrain.errors import StorageError
from tests.fakes.azure.cloud import AzureCloud
from tests.providers.azure.operations import append_log, log_of, submitted
from tests.providers.test_submit_faults import texts
from tests.support.samples import events_of
from tests.support.waiting import HANG_SECONDS

pytestmark = pytest.mark.once

HOSTILE = ["../outside", "deep/../../outside", "a//b", "a\0b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_and_leaves_nothing(
    cloud: AzureCloud, tmp_path: Path, name: str
) -> None:
    run = submitted(f"hostile-{HOSTILE.index(name)}")
    cloud.put(f"cloudtrain/runs/{run.id}/model/good", b"x")
    cloud.put(f"cloudtrain/runs/{run.id}/model/{name}", b"x")
    with pytest.raises(StorageError, match="is not a path inside a folder"):
        run.fetch(tmp_path / "deep" / "result")
    assert not (tmp_path / "outside").exists()
    assert list((tmp_path / "deep").iterdir()) == []


def test_folders_that_some_accounts_list_are_no_files(cloud: AzureCloud, tmp_path: Path) -> None:
    run = submitted("folders-1")
    store = cloud.account.storage.create(cloud.container)
    for name in ("model", "model/deep"):
        store.write(f"cloudtrain/runs/{run.id}/{name}/", b"", {"hdi_isfolder": "true"})
        store.write(f"cloudtrain/runs/{run.id}/{name}", b"", {"hdi_isfolder": "true"})
    cloud.put(f"cloudtrain/runs/{run.id}/model/deep/weights", b"w")
    run.fetch(tmp_path / "result")
    assert (tmp_path / "result" / "model" / "deep" / "weights").read_bytes() == b"w"


def test_links_come_back_if_they_stay_inside_and_are_named_if_not(
    cloud: AzureCloud, tmp_path: Path
) -> None:
    run = submitted("links-1")
    place = f"cloudtrain/runs/{run.id}/model"
    for name, content in {
        "step-2/weights": b"w",
        "latest.cloudtrain-link": b"step-2",
        "step-2/up.cloudtrain-link": b"../latest/weights",
        "absolute.cloudtrain-link": b"/etc/passwd",
        "out.cloudtrain-link": b"../../x",
        "zero.cloudtrain-link": b"a\0b",
        "large.cloudtrain-link": b"a file of the user's own" * 1000,
    }.items():
        cloud.put(f"{place}/{name}", content)
    notes: list[str] = []
    run.fetch(tmp_path / "result", note=notes.append)
    model = tmp_path / "result" / "model"
    assert sorted(path.name for path in model.iterdir()) == [
        "large.cloudtrain-link",
        "latest",
        "step-2",
    ]
    assert (model / "latest").readlink() == Path("step-2")
    assert (model / "step-2" / "up").read_bytes() == b"w"
    assert [note.partition(":")[0] for note in sorted(notes)] == [
        f"model/{name} was left out" for name in ("absolute", "out", "zero")
    ]


# Whatever goes wrong while logs are read: every line and event of every node comes once, in its
# order.


def event_of(number: int) -> str:
    values = {"loss": number}
    event = {"type": "metrics", "time": 1, "node": 0, "rank": 0, "seq": number, "values": values}
    return f"::cloudtrain:: {json.dumps(event)}"


def test_what_is_not_a_whole_line_yet_waits_for_its_end(cloud: AzureCloud) -> None:
    run = submitted("halves-1")
    append_log(cloud, run.id, 0, "[rank 0] first", "[rank 0] sec", end="")
    run.status()
    assert texts(run) == ["first"]
    append_log(cloud, run.id, 0, "ond", "[rank 0] third", end="")
    run.status()
    assert texts(run) == ["first", "second"]
    cloud.service.jobs[run.id].finish("Completed")
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert texts(run) == ["first", "second", "third"]


def test_a_log_that_was_replaced_is_read_from_its_beginning_after_what_was_there(
    cloud: AzureCloud,
) -> None:
    run = submitted("preempted-1")
    append_log(cloud, run.id, 0, "[rank 0] before", event_of(0))
    append_log(cloud, run.id, 1, "[rank 1] stays")
    run.status()
    container, blob = log_of(cloud, run.id, 0)
    container.renew(blob)
    run.status()
    append_log(
        cloud, run.id, 0, "[rank 0] after, and this is longer than what had been there", event_of(1)
    )
    find_run(run.id).status()
    assert texts(run, 0) == [
        "before",
        "loss 0",
        "after, and this is longer than what had been there",
        "loss 1",
    ]
    assert texts(run, 1) == ["stays"]
    assert [e["seq"] for e in events_of(run.folder) if e["type"] == "metrics"] == [0, 1]


@pytest.mark.parametrize(
    "line", ["[rank 0] short", f"[rank 0] long {'x' * 500}"], ids=["shorter", "longer"]
)
def test_a_log_replaced_during_a_read_is_found_by_the_next_read(
    cloud: AzureCloud, line: str
) -> None:
    run = submitted(f"amid-{len(line)}")
    append_log(cloud, run.id, 0, "[rank 0] before")
    run.status()
    append_log(cloud, run.id, 0, "[rank 0] lost with its log")
    cloud.endpoint.fault("hang_before", "blob", "GetBlob")
    look = threading.Thread(target=run.status)
    look.start()
    cloud.endpoint.wait_until_hanging()
    container, blob = log_of(cloud, run.id, 0)
    container.renew(blob)
    append_log(cloud, run.id, 0, line)
    cloud.endpoint.release()
    look.join()
    run.status()
    assert texts(run) == ["before", line.removeprefix("[rank 0] ")]


def test_many_lines_arrive_in_batches_and_complete(
    cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted("flood-1")
    monkeypatch.setattr("cloudtrain.providers.azure.storage.MAX_BYTES", 1 << 14)
    lines = [f"line {number} {'é' * (number % 50)}" for number in range(10_000)]
    append_log(cloud, run.id, 0, *lines, end="")
    run.status()
    before = len(texts(run))
    assert 0 < before < 10_000
    cloud.service.jobs[run.id].finish("Completed")
    assert run.wait(HANG_SECONDS).state == "succeeded"
    assert texts(run) == lines


def test_logs_that_are_not_ours_and_logs_that_are_gone_are_passed_over(cloud: AzureCloud) -> None:
    run = submitted("gone-1")
    append_log(cloud, run.id, 0, "[rank 0] here")
    job = cloud.service.jobs[run.id]
    job.open_log("user_logs/std_log_process_1.txt", f"{job.log_folder}never-written.txt")
    job.open_log("system_logs/lifecycler.log", f"{job.log_folder}lifecycler.log")
    run.status()
    assert texts(run) == ["here"]


@pytest.mark.parametrize("process", ["_0", "_00", ""])
def test_the_log_of_a_single_node_may_have_no_number(cloud: AzureCloud, process: str) -> None:
    run = submitted(f"single-{len(process)}", resources={"nodes": 1})
    job = cloud.service.jobs[run.id]
    name = f"user_logs/std_log{'_process' * bool(process)}{process}.txt"
    append_log(cloud, run.id, 0, "[rank 0] hello")
    _, blob = log_of(cloud, run.id, 0)
    job.logs.clear()
    job.open_log(name, blob)
    run.status()
    assert [(line.node, line.text) for line in run.logs()] == [(0, "hello")]
