"""The imitation of Azure ML runs jobs like the service, for the unmodified client of the SDK."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.samples import (
    CURATED,
    Document,
    call,
    client,
    document,
    ended,
    logs,
    submit,
    wait_for_output,
)
from tests.support.waiting import eventually

UPLOAD = [
    ("arm", "ListCodes"),
    ("arm", "StartPendingUpload"),
    ("blob", "HeadBlob"),
    ("blob", "PutBlob"),
    ("blob", "PutBlob"),
    ("blob", "SetBlobMetadata"),
    ("arm", "PutCode"),
]
FOUND = [("arm", "ListCodes"), ("arm", "GetCode")]
SPOT = {"compute": "azureml:gpu-spot"}


@pytest.fixture
def ml(azure_account: AzureCloud) -> Any:
    """The genuine client."""
    return client(azure_account)


def start(
    cloud: AzureCloud, ml: Any, name: str, folder: Path, wish: str, nodes: int = 1, **changes: Any
) -> Document:
    job = document(cloud, name, folder, wish, nodes, **changes)
    submit(ml, job)
    return job


def details(cloud: AzureCloud, name: str) -> dict[str, Any]:
    """As run history tells it, over the wire."""
    status, run_details = call(
        cloud, "GET", f"/history/v1.0{cloud.account.scope}/runs/{name}/details"
    )
    assert status == 200, run_details
    return run_details


@pytest.mark.parametrize(
    ("environment", "more"),
    [({"image": "ghcr.io/loopback/new:1"}, [("arm", "PutEnvironment")]), (CURATED, [])],
)
def test_a_first_submit_uploads_and_the_next_one_does_not(
    azure_account: AzureCloud,
    ml: Any,
    tmp_path: Path,
    environment: Any,
    more: list[tuple[str, str]],
) -> None:
    azure_account.account.phase_seconds = 3600
    tag = "image" if more else "curated"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own.txt").write_text(tag)
    job = document(azure_account, f"first-{tag}", tmp_path, "talk", environment=environment)
    (tmp_path / "code" / "deep" / "more.txt").unlink()
    assert submit(ml, job).status == "NotStarted"
    assert azure_account.endpoint.calls == [*UPLOAD, *more, ("arm", "PutJob")]
    azure_account.endpoint.reset()
    submit(ml, {**job, "name": f"next-{tag}"})
    assert azure_account.endpoint.calls == [*FOUND, *more, ("arm", "PutJob")]
    assert {f"first-{tag}", f"next-{tag}"} <= azure_account.service.jobs.keys()


def test_two_nodes_connect_and_their_outputs_are_visible_at_once(
    azure_account: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    start(azure_account, ml, "meets", tmp_path, "meet", nodes=2)
    assert ended(azure_account, "meets") == "Completed"
    phases = ["NotStarted", "Queued", "Preparing", "Starting", "Running", "Finalizing", "Completed"]
    assert azure_account.service.jobs["meets"].statuses == phases
    assert ml.jobs.get("meets").status == "Completed"
    blobs = azure_account.blobs("out/meets/")
    assert sorted(blobs) == ["out/meets/deep/0.json", "out/meets/deep/1.json"]
    written = json.loads(blobs["out/meets/deep/1.json"])
    assert written["data"] == "data"
    assert Path(written["cwd"]).name == "wd"
    assert {"MSI_ENDPOINT", "MSI_SECRET", "NCCL_DEBUG", "RANK", "NODE_RANK", "MASTER_PORT"} <= set(
        written["env"]
    )
    assert "PYTEST_CURRENT_TEST" not in written["env"]
    assert (
        b"met 1 from 127.0.0.102" in logs(azure_account, "meets")["user_logs/std_log_process_0.txt"]
    )
    run = details(azure_account, "meets")
    assert run["endTimeUtc"] > run["startTimeUtc"] > run["createdTimeUtc"]
    assert (run["status"], run["error"]) == ("Completed", None)


def test_logs_of_all_processes_are_read_from_where_one_left_off(
    azure_account: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    start(azure_account, ml, "talks", tmp_path, "talk", nodes=2)
    ended(azure_account, "talks")
    files = details(azure_account, "talks")["logFiles"]
    assert sorted(files) == ["user_logs/std_log_process_0.txt", "user_logs/std_log_process_1.txt"]
    for url in files.values():
        with urllib.request.urlopen(url) as answer:
            whole = answer.read()
        assert whole.splitlines()[1:501] == [b"line %d" % number for number in range(500)]
        assert whole.endswith(
            "\nlast \u00e9\t\x1b[1m words\n".encode() + b"bad \xff byte, no end of line"
        )
        with urllib.request.urlopen(
            urllib.request.Request(url, headers={"Range": "bytes=100-"})
        ) as answer:
            assert (answer.status, answer.read()) == (206, whole[100:])
            assert answer.headers["Content-Range"] == f"bytes 100-{len(whole) - 1}/{len(whole)}"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(
                urllib.request.Request(url, headers={"Range": f"bytes={len(whole)}-"})
            )
        with caught.value as refused:
            assert (refused.code, refused.headers["x-ms-error-code"]) == (416, "InvalidRange")


def test_logs_have_the_number_of_their_process_at_equal_width(
    azure_account: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    start(azure_account, ml, "single", tmp_path, "talk")
    many = {"type": "pytorch", "process_count_per_instance": 11}
    start(azure_account, ml, "many", tmp_path, "talk", distribution=many)
    assert (ended(azure_account, "single"), ended(azure_account, "many")) == (
        "Completed",
        "Completed",
    )
    assert [*logs(azure_account, "single")] == ["user_logs/std_log.txt"]
    expected = [f"user_logs/std_log_process_{index:02}.txt" for index in range(11)]
    assert [*logs(azure_account, "many")] == expected


def test_the_process_that_fails_first_ends_the_others(
    azure_account: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    start(azure_account, ml, "fails", tmp_path, "fail", nodes=2)
    assert ended(azure_account, "fails") == "Failed"
    assert details(azure_account, "fails")["error"]["error"] == {
        "code": "UserError",
        "message": (
            "Execution failed. User process 'python3' exited with status code 17. Please check log"
            " file 'user_logs/std_log_process_1.txt' for error details."
        ),
        "details": [],
    }
    assert [*azure_account.blobs("out/fails/")] == ["out/fails/0.txt"]
    start(azure_account, ml, "nothing", tmp_path, "talk", command="no-such-program")
    assert ended(azure_account, "nothing") == "Failed"
    assert b"not found" in logs(azure_account, "nothing")["user_logs/std_log.txt"]


def test_a_cancel_kills_at_once_unless_grace_is_given(
    azure_account: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    start(azure_account, ml, "canceled", tmp_path, "train")
    wait_for_output(azure_account, "canceled", "ready")
    azure_account.endpoint.reset()
    ml.jobs.begin_cancel("canceled").result()
    assert azure_account.endpoint.calls[:2] == [("arm", "CancelJob"), ("arm", "GetOperation")]
    assert ml.jobs.get("canceled").status == "Canceled"
    assert azure_account.service.jobs["canceled"].statuses[-3:] == [
        "Running",
        "CancelRequested",
        "Canceled",
    ]
    assert sorted(azure_account.blobs("out/canceled/")) == ["out/canceled/0.txt"]
    ml.jobs.begin_cancel("canceled").result()  # once more changes nothing

    azure_account.account.grace_seconds = 10
    start(azure_account, ml, "gently", tmp_path, "train")
    wait_for_output(azure_account, "gently", "ready")
    ml.jobs.begin_cancel("gently").result()
    assert azure_account.blobs("out/gently/")["out/gently/0-stopped.txt"] == b"saved at the stop"
    assert azure_account.service.jobs["gently"].status == "Canceled"


def test_a_job_over_its_time_limit_is_canceled_with_its_children(
    azure_account: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    start(azure_account, ml, "late", tmp_path, "stubborn", limits={"timeout": 1})
    assert ended(azure_account, "late") == "Canceled"
    assert details(azure_account, "late")["error"]["error"]["message"] == "Job timed out"


def test_a_preempted_job_begins_again_with_its_outputs_and_new_logs(
    azure_account: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    start(azure_account, ml, "spot", tmp_path, "train 2", nodes=2, **SPOT)
    wait_for_output(azure_account, "spot", "ready", times=2)
    url = details(azure_account, "spot")["logFiles"]["user_logs/std_log_process_1.txt"]
    with urllib.request.urlopen(url) as answer:
        created = answer.headers["x-ms-creation-time"]
        before = answer.read()
    azure_account.service.interrupt("spot")
    assert ended(azure_account, "spot") == "Completed"
    assert azure_account.service.jobs["spot"].statuses.count("Queued") == 2
    assert azure_account.blobs("out/spot/") == {"out/spot/0.txt": b"2", "out/spot/1.txt": b"2"}
    with urllib.request.urlopen(url) as answer:
        assert answer.headers["x-ms-creation-time"] != created
        after = answer.read()
    assert (b"saved 1" in before, b"saved 1" in after, b"saved 2" in after) == (True, False, True)
    start(azure_account, ml, "dedicated", tmp_path, "talk")
    with pytest.raises(ValueError, match="dedicated machines"):
        azure_account.service.interrupt("dedicated")


def test_a_job_waits_in_the_queue_for_machines(
    azure_account: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    azure_account.account.capacity = {"Standard_NC24ads_A100_v4"}
    start(azure_account, ml, "waits", tmp_path, "talk")
    job = azure_account.service.jobs["waits"]
    eventually(lambda: job.status == "Queued")
    azure_account.account.capacity.clear()
    assert ended(azure_account, "waits") == "Completed"


def test_serverless_jobs_and_uploads_and_downloads(
    azure_account: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    store = "azureml://datastores/workspaceblobstore/paths"
    azure_account.put("one/a.txt", b"data")
    changes: dict[str, Any] = {
        "resources": {"instance_type": "Standard_ND96isr_H100_v5", "instance_count": 1},
        "queue_settings": {"job_tier": "Spot"},
        "inputs": {
            "train": {"type": "uri_file", "mode": "download", "path": f"{store}/one/a.txt"},
            "lr": 0.5,
        },
        "outputs": {"out": {"type": "uri_folder", "mode": "upload", "path": f"{store}/sent/"}},
        "command": "python3 program.py meet ${{outputs.out}} ${{inputs.train}} --lr ${{inputs.lr}}",
    }
    job = document(azure_account, "serverless", tmp_path, "meet", **changes)
    del job["compute"]
    submit(ml, job)
    assert ended(azure_account, "serverless") == "Completed"
    assert azure_account.service.jobs["serverless"].low_priority
    assert json.loads(azure_account.blobs("sent/")["sent/deep/0.json"])["data"] == "data"


def test_what_is_missing_fails_the_job(azure_account: AzureCloud, ml: Any, tmp_path: Path) -> None:
    azure_account.account.missing_images.add(azure_account.image)
    start(azure_account, ml, "no-image", tmp_path, "talk")
    ended(azure_account, "no-image")
    assert (
        "Unable to pull docker image"
        in details(azure_account, "no-image")["error"]["error"]["message"]
    )
    azure_account.account.missing_images.clear()
    path = "azureml://datastores/workspaceblobstore/paths/nothing/"
    start(
        azure_account,
        ml,
        "no-data",
        tmp_path,
        "meet",
        inputs={"train": {"type": "uri_folder", "path": path}},
    )
    assert ended(azure_account, "no-data") == "Failed"
    message = details(azure_account, "no-data")["error"]["error"]["message"]
    assert f"Found no resources for the input provided: '{path}'" in message


def test_a_job_fetches_a_secret_by_the_identity_of_its_machine(
    azure_account: AzureCloud, ml: Any, tmp_path: Path
) -> None:
    azure_account.account.secrets["token"] = "hunter2"
    start(azure_account, ml, "asks", tmp_path, f"ask {azure_account.vault} token")
    assert ended(azure_account, "asks") == "Completed", logs(azure_account, "asks")
    assert azure_account.blobs("out/asks/")["out/asks/secret.txt"] == b"hunter2"
    assert [call for call in azure_account.endpoint.calls if call.service in ("msi", "vault")] == [
        ("msi", "GetToken"),
        ("vault", "GetSecret"),
    ]
    start(azure_account, ml, "asks-in-vain", tmp_path, f"ask {azure_account.vault} other")
    assert ended(azure_account, "asks-in-vain") == "Failed"
    assert b"404" in logs(azure_account, "asks-in-vain")["user_logs/std_log.txt"]


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_the_sdk_streams_and_downloads(azure_account: AzureCloud, ml: Any, tmp_path: Path) -> None:
    start(azure_account, ml, "streams", tmp_path, "talk")
    ended(azure_account, "streams")
    ml.jobs.stream("streams")
    ml.jobs.download("streams", download_path=tmp_path / "got", all=True)
    (log,) = (tmp_path / "got").rglob("std_log.txt")
    assert b"line 499\n" in log.read_bytes()
