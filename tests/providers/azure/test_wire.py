"""The wire traffic of a job on Azure ML: the number of calls, and exactly the planned request."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.api.lookup import find_run
from cloudtrain.api.run import Run
from cloudtrain.errors import NOTHING_STARTED, CloudError
from tests.fakes.azure.cloud import AzureCloud, client
from tests.fakes.azure.wire import json_response
from tests.fakes.messages import Call, Request, Response
from tests.providers.azure.operations import ALWAYS, JOB, append_log, reconnect, submitted
from tests.support.in_process import call as in_process
from tests.support.samples import events_of

STORE = "azureml://datastores/workspaceblobstore/paths"
SECRET = "hunter2-never-send-this"
FULL: dict[str, Any] = {
    **JOB,
    "args": {"lr": 1e-3, "note": "${{inputs.train}} – 5 €"},
    "inputs": {"train": {"azure": f"{STORE}/data/", "mode": "stream"}},
    "checkpoints": {"every": "10 min"},
    "limits": {"max_runtime": "6 h", "restarts": 2},
    "secrets": {"TOKEN": {"azure": "keyvault:my-vault/token", "local": "env:TOKEN"}},
    "tags": {"team": "vision"},
    "env": {"NCCL_DEBUG": "WARN"},
}
CONDA = "conda.yaml"
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "spot": {"resources": {"gpus": 1, "gpu": "T4", "spot": True}},
    "on a cluster": {"azure": {"compute": "cpu-cluster", "services": ["jupyter", "tensorboard"]}},
    "with shared memory": {"resources": {"nodes": 2, "shm": "16 GiB"}},
    "in a curated environment": {"image": "auto"},
    "with a conda file": {"image": "docker.io/library/python:3.11", "azure": {"conda": CONDA}},
    "with words for the studio": {
        "azure": {"description": "a larger model", "experiment": "vision", "display_name": "A 1"}
    },
    "with the distribution of TensorFlow": {
        "launcher": "none",
        "entrypoint": "python train.py",
        "limits": {"max_runtime": "6 h"},
        "azure": {"request": {"distribution": {"type": "tensorflow", "worker_count": 2}}},
    },
    "with the distribution of MPI": {
        "launcher": "none",
        "entrypoint": "python train.py",
        "limits": {"max_runtime": "6 h"},
        "azure": {"request": {"distribution": {"type": "mpi"}}},
    },
    "with keys of its own": {
        "azure": {
            "request": {
                "description": "a larger model",
                "resources": {"docker_args": "--ulimit memlock=-1"},
                "identity": {"client_id": "12345678-1234-1234-1234-123456789012"},
            },
            "identity": "managed",
        }
    },
}


def sent(cloud: AzureCloud, operation: str) -> list[dict[str, Any]]:
    return [body for call, body in cloud.endpoint.sent if call.operation == operation]


def put(cloud: AzureCloud, **more: Any) -> tuple[Run, dict[str, Any]]:
    """The run of a submit, and the body that created its job."""
    reconnect()
    cloud.endpoint.reset()
    run = cloudtrain.submit(cloudtrain.plan(cloudtrain.load({**FULL, **more}), "azure"))
    (body,) = sent(cloud, "PutJob")
    return run, body


def without_time(body: dict[str, Any]) -> dict[str, Any]:
    """All of it but when it was planned."""
    properties = body["properties"]
    less = {"cloudtrain-planned": ""}
    shown = {"tags": properties["tags"] | less, "properties": properties["properties"] | less}
    return {**body, "properties": {**properties, **shown}}


def test_observing_a_run_is_one_call_and_one_for_each_log(cloud: AzureCloud) -> None:
    run = submitted("looks-1")
    run.status()
    cloud.endpoint.reset()
    run.status()
    assert cloud.endpoint.calls == [("history", "GetRunDetails")]
    for node in range(2):
        append_log(cloud, run.id, node, "hello")
    run.status()
    cloud.endpoint.reset()
    run.status()
    assert cloud.endpoint.calls == [
        ("history", "GetRunDetails"),
        ("blob", "HeadBlob"),
        ("blob", "HeadBlob"),
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_an_exported_job_is_what_submit_sends(cloud: AzureCloud, folder: Path, shape: str) -> None:
    """The SDK does with it what `az ml job create --file` does."""
    from azure.ai.ml import load_job

    (folder / CONDA).write_text("dependencies: [python=3.11]\n")
    (folder / "job.yaml").write_text(json.dumps({**FULL, **SHAPES[shape]}))
    exported = in_process("plan", "--provider", "azure", "--export", "my job")
    assert exported.code == 0, exported.err
    command = shlex.split((folder / "my job" / "start.sh").read_text().splitlines()[-1])
    assert command[:6] == ["az", "ml", "job", "create", "--file", "request.json"]
    assert dict(zip(command[6::2], command[7::2], strict=True)) == {
        "--subscription": cloud.account.subscription,
        "--resource-group": cloud.account.resource_group,
        "--workspace-name": cloud.account.workspace,
    }

    file = folder / "my job" / "request.json"
    name = json.loads(file.read_text())["name"]
    result = in_process("submit", "--provider", "azure", "--detach", "--run-id", name)
    assert result.code == 0, result.err
    twin = f"{name}-twin"  # a name is used once
    file.write_text(file.read_text().replace(name, twin))
    client(cloud).jobs.create_or_update(load_job(file))
    job_body, sdk_body = sent(cloud, "PutJob")
    for body in (job_body, sdk_body):  # each submit sends its code anew
        assert body["properties"].pop("codeId")
    assert without_time(json.loads(json.dumps(job_body).replace(name, twin))) == without_time(
        sdk_body
    )


def test_an_input_may_be_mounted_to_write_into_it(cloud: AzureCloud, folder: Path) -> None:
    """Microsoft's schema for files does not know it, so the Azure CLI could not start it."""
    writes = {"azure": {"request": {"inputs": {"train": {"mode": "rw_mount"}}}}}
    _, body = put(cloud, **writes)
    assert body["properties"]["inputs"]["train"]["mode"] == "ReadWriteMount"
    (folder / "job.yaml").write_text(json.dumps({**FULL, **writes}))
    exported = in_process("plan", "--provider", "azure", "--export", "job")
    assert exported.code != 0
    assert "the Azure CLI refuses the input train" in exported.err


def test_no_secret_is_sent_or_kept(
    cloud: AzureCloud, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    remote = f"https://somebody:{SECRET}@git.example/repository.git"
    for words in (["init", "-q"], ["remote", "add", "origin", remote]):
        subprocess.run(["git", *words], check=True, capture_output=True)
    run, body = put(cloud)
    document = json.loads(body["properties"]["environmentVariables"]["CLOUDTRAIN_JOB"])
    assert document["secrets"] == {"TOKEN": "keyvault:my-vault/token"}
    assert SECRET not in json.dumps(cloud.endpoint.sent)
    contents = [path.read_bytes() for path in run.folder.path.rglob("*") if path.is_file()]
    assert contents
    assert all(SECRET.encode() not in content for content in [*contents, *cloud.blobs().values()])


# A list of machines: the next one is planned and tried if the cloud refuses one of them.

T4 = "Standard_NC4as_T4_v3"
A100 = "Standard_NC24ads_A100_v4"
LIST = {"nodes": 2, "instance": {"azure": [T4, A100]}}


def submit_list(
    cloud: AzureCloud, run_id: str, resources: dict[str, Any] = LIST, **quotas: int
) -> tuple[Run, list[str]]:
    """Submit a job with a list of machines; return its run and the remarks on its start."""
    reconnect()
    cloud.account.quotas |= quotas
    notes: list[str] = []
    job = cloudtrain.load({**JOB, "resources": resources})
    run = cloudtrain.submit(cloudtrain.plan(job, "azure", run_id=run_id), note=notes.append)
    return run, notes


def test_a_machine_without_quota_is_replaced_by_the_next_of_the_list(
    cloud: AzureCloud, folder: Path
) -> None:
    reconnect()
    cloud.account.quotas["standardNCASv3_T4Family"] = 4
    (folder / "job.yaml").write_text(json.dumps({**JOB, "resources": LIST}))
    result = in_process("submit", "--provider", "azure", "--detach", "--run-id", "other-1")
    assert result.code == 0, result.err
    assert f"2 x {T4} are 8 vCPUs; the quota" in result.err
    assert f"trying {A100}, 7.35 USD/h, at most " in result.err
    (body,) = sent(cloud, "PutJob")
    assert body["properties"]["resources"]["instanceType"] == A100

    run = find_run("other-1")
    assert run.status().state == "pending"
    assert [event["type"] for event in events_of(run.folder)].count("ended") == 0
    assert not list(run.folder.path.parent.glob(".other-1*"))
    plan = run.folder.document("plan.json")
    assert plan["target"]["facts"]["instances"] == [A100]
    assert plan["overrides"] == [f"resources.instance.azure=[{A100}]"]
    assert in_process("submit", "--provider", "azure", "--run-id", "other-1").code == 3


def test_a_refusal_of_the_service_itself_leads_to_the_next_machine(cloud: AzureCloud) -> None:
    cloud.endpoint.fault("denied", "arm", "ListUsages", times=ALWAYS)
    models = {"gpus": 1, "gpu": ["T4", "A100"]}
    run, notes = submit_list(cloud, "other-2", models, standardNCASv3_T4Family=0)
    assert cloud.service.jobs[run.id].vm_size == A100
    assert len(sent(cloud, "PutJob")) == 2
    (note,) = [text for text in notes if f"trying {A100}" in text]
    assert note.startswith(f"{T4}: creating the job")
    assert run.status().state == "pending"


def test_a_list_for_a_cluster_is_planned_for_the_machine_that_it_has(cloud: AzureCloud) -> None:
    reconnect()
    job = cloudtrain.load({**JOB, "resources": LIST, "azure": {"compute": "gpu-cluster"}})
    run = cloudtrain.submit(cloudtrain.plan(job, "azure", run_id="cluster-1"))
    assert run.folder.document("plan.json")["target"]["facts"]["instances"] == [A100]
    (body,) = sent(cloud, "PutJob")
    assert body["properties"]["computeId"].endswith("gpu-cluster")


def test_a_list_without_quota_for_any_machine_names_each_reason(cloud: AzureCloud) -> None:
    with pytest.raises(cloudtrain.RefusedError) as refused:
        submit_list(cloud, "none-1", dedicatedCores=7)
    assert "none-1" not in cloud.service.jobs
    message = refused.value.message
    assert f"{T4}: 2 x {T4} are 8 vCPUs" in message
    assert f"; {A100}: 2 x {A100} are 48 vCPUs" in message
    assert message.endswith(NOTHING_STARTED)
    assert refused.value.hint
    assert refused.value.hint.count("Total Cluster Dedicated Regional vCPUs") == 1
    state = find_run("none-1").status()
    assert (state.state, state.reason) == ("failed", message)


def test_a_run_named_after_a_quota_is_not_taken_for_a_refusal_of_its_machine(
    cloud: AzureCloud,
) -> None:
    cloud.endpoint.fault("denied", "arm", "PutJob", times=ALWAYS)
    with pytest.raises(CloudError):
        submit_list(cloud, "quota-study")
    sizes = {body["properties"]["resources"]["instanceType"] for body in sent(cloud, "PutJob")}
    assert sizes == {T4}


def test_no_other_machine_is_tried_while_a_job_may_exist(cloud: AzureCloud) -> None:
    cloud.endpoint.fault("denied", "arm", "ListUsages", times=ALWAYS)
    cloud.endpoint.fault("error", "arm", "PutJob")
    with pytest.raises(CloudError, match=r"quota.*not known yet"):
        submit_list(cloud, "maybe-1", standardNCASv3_T4Family=0)
    sizes = {body["properties"]["resources"]["instanceType"] for body in sent(cloud, "PutJob")}
    assert sizes == {T4}
    assert find_run("maybe-1").status().state == "submitting"


@pytest.mark.parametrize(
    ("member", "value"),
    [("runId", None), ("status", None), ("startTimeUtc", 5), ("logFiles", ["a"]), ("error", "e")],
)
def test_details_of_another_form_are_an_error_and_not_a_job_without_logs(
    cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch, member: str, value: object
) -> None:
    run = submitted(f"details-{member.lower()}")

    def change(response: Response) -> Response:
        details = json.loads(response.body)
        if value is None:
            details[f"{member}_of_another_version"] = details.pop(member)
        else:
            details[member] = value
        return json_response(200, details)

    change_answers(cloud, monkeypatch, "GetRunDetails", change)
    with pytest.raises(CloudError, match=f"the answer cannot be read: .*{member}"):
        run.status()


@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [
        ("AuthorizationFailure", "firewall keeps this machine out", "virtual network"),
        ("AuthorizationPermissionMismatch", "not authorized", "Storage Blob Data Contributor"),
    ],
)
def test_a_refusal_of_storage_is_told_by_its_code_though_a_head_has_no_body(
    cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch, code: str, words: str, hint: str
) -> None:
    refusal = Response(403, [("x-ms-error-code", code), ("x-ms-version", "2025-11-05")], b"")
    change_answers(cloud, monkeypatch, "HeadBlob", lambda _: refusal)
    with pytest.raises(CloudError, match=rf"{words}.*\({code}\); {NOTHING_STARTED}") as caught:
        submitted(f"refused-{code.lower()}")
    assert hint in str(caught.value.hint)


def change_answers(
    cloud: AzureCloud,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    change: Callable[[Response], Response],
) -> None:
    """Change the answers to one operation on their way to the client."""
    execute = cloud.endpoint.execute

    def answer(request: Request, call: Call | None) -> Response:
        response = execute(request, call)
        return change(response) if call and call.operation == operation else response

    monkeypatch.setattr(cloud.endpoint, "execute", answer)


def test_underscores_of_a_name_arrive(cloud: AzureCloud) -> None:
    run, body = put(cloud, name="aml_distributed")
    assert run.id.startswith("aml_distributed-")
    assert body["properties"]["experimentName"] == "aml_distributed"
    assert find_run("aml_distributed").id == run.id


def test_a_busy_service_gets_the_pause_that_it_asks_for(
    cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("cloudtrain.providers.shared.idempotent_create.time.sleep", pauses.append)
    cloud.account.throttled = {"PutJob": 2}
    cloud.account.retry_after = 30
    Path("job.yaml").write_text(json.dumps(JOB))
    result = in_process("submit", "--provider", "azure", "--detach", "--run-id", "busy-1")
    assert result.code == 0, result.err
    assert [pause for pause in pauses if pause >= 30] == [30, 30]
    assert result.err.count("waiting 30 s before another request, as the service asks") == 2
    assert len(sent(cloud, "PutJob")) == 3


def test_a_run_gives_the_job_of_azure_ai_ml(cloud: AzureCloud) -> None:
    from azure.ai.ml.entities import Command

    run = submitted("native-1")
    job = run.native()
    assert isinstance(job, Command)
    assert (job.name, (job.tags or {})["cloudtrain-run"]) == (run.id, run.id)
    cloud.service.jobs.pop(run.id)
    with pytest.raises(CloudError) as error:
        run.native()
    assert error.value.code == "NotFound"
