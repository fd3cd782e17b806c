"""Azure ML's words in ours: statuses, times, money, environments, places in datastores, machines
and quotas.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from threading import Barrier
from typing import TYPE_CHECKING, Any, cast

import pytest

from cloudtrain.errors import CloudError, RefusedError, StorageError, UsageError
from cloudtrain.providers.azure.account import account, workspace_of
from cloudtrain.providers.azure.client import Cluster, QuotaUsage, VmFamily
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.logs import new_lines
from cloudtrain.providers.azure.phases import ENDED, billing, final_state, phase_of, timestamp
from cloudtrain.providers.azure.results import datastore_path
from cloudtrain.providers.azure.section import AzureSection
from cloudtrain.providers.azure.storage import LogChunk
from cloudtrain.providers.azure.submit import refuse_machines
from cloudtrain.settings import Settings
from cloudtrain_wire.events import Billing
from tests.support.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
HOUR = {
    "startTimeUtc": "2026-11-21T11:00:00.0000000+00:00",
    "endTimeUtc": "2026-11-21T12:00:00.0000000+00:00",
}


@pytest.mark.parametrize("status", ["Frobnicating", "completed"])
def test_an_unknown_status_is_shown_as_it_is_and_is_no_end(status: str) -> None:
    details = {"status": status, "error": {"error": {"message": "no"}}, **HOUR}
    assert (phase_of(details), final_state(details)) == (status, None)


@pytest.mark.parametrize(
    ("status", "state"), [("Completed", "succeeded"), ("Failed", "failed"), ("Canceled", "stopped")]
)
def test_an_ended_job_has_a_state_and_what_azure_says_of_it(status: str, state: str) -> None:
    assert ENDED[status] == state
    assert final_state({"status": status}) == (state, "")
    for error in ({"error": {"message": "no disk"}}, {"error": {"code": "no disk"}}):
        assert final_state({"status": status, "error": error}) == (
            state,
            "" if state == "succeeded" else "no disk",
        )
    nothings: list[Any] = [{}, {"error": None}, {"error": {}}, None]
    for nothing in nothings:
        assert final_state({"status": status, "error": nothing}) == (state, "")


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2026-11-21T12:00:00.1234567+00:00", NOON + 0.123456),
        ("2026-11-21T12:00:00.5Z", NOON + 0.5),
        ("2026-11-21T14:00:00+02:00", NOON),
        (None, 0),
        ("soon", 0),
    ],
)
def test_times_come_with_seven_digits_or_fewer_or_not_at_all(text: str | None, when: float) -> None:
    assert timestamp(text) == pytest.approx(when, abs=1e-6)


def test_the_bill_is_for_the_time_of_all_nodes() -> None:
    assert billing(HOUR, 2, 3.5) == Billing(training_seconds=3600, usd=7.0)


@pytest.mark.parametrize("missing", ["startTimeUtc", "endTimeUtc"])
def test_a_job_that_never_ran_or_still_runs_has_no_bill(missing: str) -> None:
    assert billing({**HOUR, missing: None}, 2, 3.5) is None


def test_clocks_that_disagree_earn_nobody_money() -> None:
    backwards = {"startTimeUtc": HOUR["endTimeUtc"], "endTimeUtc": HOUR["startTimeUtc"]}
    assert billing(backwards, 2, 3.5) == Billing(training_seconds=0, usd=0.0)


WORKSPACE = AzureConfig(subscription="s", resource_group="g", workspace="w")


def settings(**values: str) -> Settings:
    named = {f"azure.{name}": value for name, value in values.items()}
    return Settings(values=named, origins=dict.fromkeys(named, "cloudtrain.toml:1"))


@pytest.mark.parametrize("written", ["East US 2", "eastus2", "EastUS2", "east-us-2"])
def test_a_location_is_one_however_it_is_written(written: str) -> None:
    config, issues = account(AzureSection(location=written), settings(), rehearsal=True)
    assert (config.location, issues.problems) == ("eastus2", [])


def test_a_workspace_is_named_whole_or_not_at_all() -> None:
    subscription = "00000000-0000-0000-0000-000000000000"
    assert workspace_of(
        settings(subscription=subscription, resource_group="g", workspace="wsp")
    ) == (
        subscription,
        "g",
        "wsp",
    )
    with pytest.raises(
        UsageError, match=r"cloudtrain.toml:1: azure.workspace: 'a;b' is not a workspace"
    ):
        workspace_of(settings(subscription=subscription, resource_group="g", workspace="a;b"))
    with pytest.raises(UsageError, match=r"azure\.subscription: is not set") as refused:
        workspace_of(settings(resource_group="g"))
    assert "CLOUDTRAIN_AZURE_SUBSCRIPTION" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        ("azureml://datastores/d_1/paths/a/b/", ("d_1", "a/b/")),
        ("azureml://datastores/d/paths/", ("d", "")),
        (
            "azureml://subscriptions/s/resourcegroups/g/workspaces/w/datastores/d/paths/a",
            ("d", "a"),
        ),
        (
            "azureml://datastores/d/paths/copy/datastores/e/paths/x",
            ("d", "copy/datastores/e/paths/x"),
        ),
    ],
)
def test_a_place_in_a_datastore_has_two_parts(place: str, parts: tuple[str, str]) -> None:
    assert datastore_path(place) == parts


@pytest.mark.parametrize(
    "place", ["", "s3://b/x", "azureml:x:1", "azureml://datastores/d", "/datastores/d/paths/x"]
)
def test_another_place_cannot_be_fetched_from(place: str) -> None:
    with pytest.raises(StorageError, match="is not a datastore path"):
        datastore_path(place)


QUOTAS = {
    "family": "Standard NDSH100v5 Family Cluster Dedicated vCPUs",
    "short_family": "standardNDSH100v5Family",
    "total": "Total Cluster Dedicated Regional vCPUs",
    "spot": "Total Cluster LowPriority Regional vCPUs",
    "short_spot": "lowPriorityCores",
    "spot_family": "Standard NDSH100v5 Family Cluster LowPriority vCPUs",
    "longer_family": "Standard NDSH100v5x Family Cluster Dedicated vCPUs",
}
"""Names of quotas, as the service and older answers have them."""


class Stub:
    """A workspace with one cluster, one size of 96 vCPUs, and some quota."""

    name = "my-workspace"
    location = "eastus"

    def __init__(self, *, kind: str = "amlcompute", nodes: int | None = 4, **quotas: int) -> None:
        self.found = Cluster(kind=kind, size="Standard_ND96isr_H100_v5", max_nodes=nodes)
        self.denied = False
        self.opened = list[str]()
        self.quotas = {QUOTAS[name]: limit for name, limit in quotas.items()} | {
            "standardDSv2Family": 0
        }

    def cluster(self, name: str) -> Cluster | None:
        return self.found if name == "my-cluster" else None

    def vm_family(self, size: str) -> VmFamily | None:
        is_known = size == "Standard_ND96isr_H100_v5"
        return VmFamily(name="StandardNDSH100v5Family", vcpus=96) if is_known else None

    def quota_usages(self) -> list[QuotaUsage]:
        if self.denied:
            raise CloudError("not authorized", code="Denied")
        return [QuotaUsage(name=name, used=96, limit=limit) for name, limit in self.quotas.items()]

    def container(self, datastore: str) -> None:
        self.opened.append(datastore)


def ask(stub: Stub, *, nodes: int = 2, **more: Any) -> str:
    """Return the error with its hint, or an empty text if the request is accepted."""
    resources = {
        "instance_count": nodes,
        "instance_type": more.pop("size", "Standard_ND96isr_H100_v5"),
    }
    config = replace(WORKSPACE, location=more.pop("location", None), prices={"x": 1.0})
    planned = more.pop("planned", [])
    outputs = {"model": {"path": "azureml://datastores/mine/paths/x/"}}
    gpus = more.pop("gpus", 8)
    try:
        document = {"resources": resources, "outputs": outputs, **more}
        refuse_machines(cast("Workspace", stub), document, config, next(iter(planned), ""), gpus)
    except RefusedError as refused:
        return f"{refused.message}; {refused.hint}"
    return ""


def test_a_cluster_that_is_large_enough_is_fine() -> None:
    assert ask(Stub(), nodes=4, compute="azureml:my-cluster") == ""
    assert ask(Stub(nodes=None), nodes=40, compute="azureml:my-cluster") == ""
    assert (
        ask(Stub(kind="ComputeInstance", nodes=None), nodes=1, compute="azureml:my-cluster") == ""
    )


def test_more_nodes_than_the_cluster_has_are_refused() -> None:
    message = ask(Stub(), nodes=5, compute="azureml:my-cluster")
    assert "my-cluster has at most 4 nodes, the job asks for 5" in message
    assert "--max-instances 5" in message


def test_a_cluster_of_kubernetes_is_refused() -> None:
    message = ask(Stub(kind="Kubernetes", nodes=1), nodes=5, compute="azureml:my-cluster")
    assert "my-cluster is a cluster of Kubernetes" in message


SPOT = {"queue_settings": {"job_tier": "spot"}}


@pytest.mark.parametrize(
    ("quotas", "more"),
    [
        ({"family": 288, "total": 288, "spot": 0, "longer_family": 0}, {}),
        ({"short_family": 288, "short_spot": 0}, {}),
        ({"family": -1, "total": -1}, {}),
        ({"family": 0, "total": 0, "spot": 288, "spot_family": -1}, SPOT),
        ({"short_spot": 288}, SPOT),
    ],
)
def test_serverless_machines_within_every_quota_are_accepted(
    quotas: dict[str, Any], more: dict[str, Any]
) -> None:
    assert ask(Stub(**quotas), **more) == ""


@pytest.mark.parametrize(
    ("quotas", "more", "small"),
    [
        ({"family": 287, "total": 1000, "spot": 1000}, {}, "family"),
        ({"short_family": 287}, {}, "short_family"),
        ({"family": 1000, "total": 287}, {}, "total"),
        ({"family": 1000, "total": 1000, "spot": 287}, SPOT, "spot"),
        ({"short_spot": 287}, SPOT, "short_spot"),
        ({"spot": 1000, "spot_family": 287}, SPOT, "spot_family"),
    ],
)
def test_serverless_machines_beyond_one_quota_are_refused(
    quotas: dict[str, Any], more: dict[str, Any], small: str
) -> None:
    refusal = ask(Stub(**quotas), **more)
    name = QUOTAS[small]
    message = (
        f"2 x Standard_ND96isr_H100_v5 are 192 vCPUs; the quota '{name}' is 287, 96 are in use"
    )
    assert refusal.startswith(message)
    assert f"Quota > Azure Machine Learning > {name}" in refusal


def test_a_cluster_of_other_machines_than_were_planned_and_priced_is_refused() -> None:
    message = ask(Stub(), compute="azureml:my-cluster", planned=["Standard_DS3_v2"])
    assert (
        "the machines of my-cluster are Standard_ND96isr_H100_v5, the job was planned for"
        " Standard_DS3_v2" in message
    )
    assert ask(Stub(), compute="azureml:my-cluster", planned=["STANDARD_ND96ISR_H100_V5"]) == ""


def test_a_cluster_with_another_number_of_gpus_is_refused() -> None:
    message = ask(Stub(), compute="azureml:my-cluster", gpus=4)
    assert "(Standard_ND96isr_H100_v5) have 8 x H100, the job uses 4 per node" in message


def test_a_place_that_is_not_the_workspaces_is_refused_where_prices_depend_on_it() -> None:
    message = ask(Stub(), compute="azureml:my-cluster", location="westeurope")
    assert (
        message
        == "the workspace my-workspace is in eastus, not in westeurope; azure.location: eastus"
    )
    assert ask(Stub(), compute="azureml:my-cluster", location="eastus") == ""


def test_who_may_not_see_the_quota_may_try_all_the_same() -> None:
    stub = Stub(family=1)
    assert "the quota 'Standard NDSH100v5 Family Cluster Dedicated vCPUs' is 1" in ask(stub)
    stub.denied = True
    assert ask(stub) == ""


def test_the_datastore_that_the_job_writes_to_is_opened_before_it_is_paid_for() -> None:
    stub = Stub()
    ask(stub, compute="azureml:my-cluster")
    assert stub.opened == ["mine"]


def test_the_logs_of_many_nodes_are_read_at_the_same_time_and_yielded_in_order() -> None:
    both_read = Barrier(2)

    class Cloud:
        def read_log(self, address: str, start: int, created: str) -> LogChunk:
            both_read.wait(HANG_SECONDS)
            return LogChunk(f"{address} from {start}\n".encode(), start, created, more=False)

    logs = {f"user_logs/std_log_process_{node}.txt": f"log {node}" for node in range(4)}
    cloud: Any = Cloud()
    parts = list(new_lines(cloud, logs, {}, is_over=False))
    assert [(part.node, part.lines[0][1]) for part in parts] == [
        (node, f"log {node} from 0".encode()) for node in range(4)
    ]
