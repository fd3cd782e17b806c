"""`cloudtrain infra --provider azure` against an empty loopback Azure: set up, shown, set up again,
removed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.azure.clients import cheap_clients
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.resource_manager.store import DEFINITIONS, WORKSPACES
from tests.fakes.azure.resource_manager.subscription import ResourceManager
from tests.fakes.azure.roles import ACCESS_CONTROL, CONTRIBUTOR
from tests.fakes.azure.tokens import OBJECT_ID
from tests.providers.azure.jobs import JOB, forget
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


def down(*words: str) -> CommandResult:
    return call("infra", "down", "--provider", "azure", "--yes", *words)


def test_up_shows_the_plan_and_its_cost_deploys_it_and_writes_the_settings(
    ground: ResourceManager,
) -> None:
    said = up()
    assert said.code == 0, said.err
    for part in (
        "resource group cloudtrain, eastus",
        "create  Azure ML workspace         cloudtrain ",
        "AcrPull on cloudtrain",
        f"for {OBJECT_ID}",
        "container registry: 0.167 USD a day with 10 GB (2026-11)",
        "while no job runs: 5.08 USD a month, and what is stored in 2 resources",
        "created   Azure ML workspace (cloudtrain)",
        '+ compute = "cpu"',
    ):
        assert part in said.err
    registry = next(
        each for each in ground.store.resources.values() if "loginServer" in each.answers
    )
    written = tomllib.loads(Path("cloudtrain.toml").read_text())["azure"]
    assert written == {
        "subscription": "11111111-2222-3333-4444-555555555555",
        "resource_group": "cloudtrain",
        "workspace": "cloudtrain",
        "location": "eastus",
        "compute": "cpu",
        "repository": f"{registry.answers['loginServer']}/train",
    }
    assert said.out.startswith("key vault: cloudtrainj")


def test_what_was_set_up_takes_a_job_by_the_settings_that_were_written(
    ground: ResourceManager, cloud: AzureCloud, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runs = tmp_path_factory.mktemp("runs")
    spec = {**JOB, "resources": {"nodes": 2, "gpus": 0}}
    Path("job.yaml").write_text(json.dumps(spec))
    words = ("submit", "--provider", "azure", "--detach", "--yes", "--run-id", "first-job")
    said = call("--data-dir", str(runs), *words)
    assert said.code == 2, "nothing is set yet"
    assert up().code == 0
    said = call("--data-dir", str(runs), *words)
    assert said.code == 0, said.err
    assert (
        cloud.service.jobs["first-job"]
        .properties["computeId"]
        .endswith("/workspaces/cloudtrain/computes/cpu")
    )
    assert down("--delete-data").code == 0
    forget()
    said = call("--data-dir", str(runs), "status", "first-job")
    assert f"{WORKSPACES}/cloudtrain" in said.out + said.err, (
        "the workspace is gone, and that is told"
    )


def test_up_twice_changes_nothing_and_asks_nothing(ground: ResourceManager) -> None:
    assert up().code == 0
    before = dict(ground.store.resources)
    calls = len(ground.deployments.known)
    said = call(*UP)
    assert said.code == 0, said.err
    assert "nothing to do" in said.err
    assert (dict(ground.store.resources), len(ground.deployments.known)) == (before, calls)


def test_a_dry_run_leaves_nothing_behind(ground: ResourceManager) -> None:
    said = call(*UP, "--dry-run", "--json")
    assert said.code == 0, said.err
    plan = json.loads(said.out)["plan"]
    assert {each["action"] for each in plan["changes"]} == {"create"}
    assert plan["idle_usd_per_month"] == 5.08
    assert (ground.groups, ground.store.resources, ground.deployments.known) == ({}, {}, {})


def test_a_no_leaves_a_group_that_was_there_and_removes_one_that_was_not(
    ground: ResourceManager,
) -> None:
    assert call(*UP).code == 3
    assert ground.groups == {}
    ground.groups["cloudtrain"] = {
        "id": ground.id_of("cloudtrain"),
        "name": "cloudtrain",
        "location": "westeurope",
    }
    assert call(*UP).code == 3
    assert set(ground.groups) == {"cloudtrain"}


def test_what_was_chosen_stays_chosen_until_something_else_is(ground: ResourceManager) -> None:
    assert (
        up(
            "--set",
            "clusters=gpu:Standard_NC24ads_A100_v4:4:spot",
            "--set",
            "budget=7",
            "--set",
            "registry=standard",
        ).code
        == 0
    )
    said = up("--set", "budget=9")
    assert said.code == 0, said.err
    changes = [
        line
        for line in said.err.splitlines()
        if line.startswith(("  update ", "  create ", "  changed", "  created"))
    ]
    assert [line.split()[0] for line in changes] == ["update", "changed"]
    assert "amount" in changes[0]
    assert set(ground.account.computes) == {"gpu"}
    shown = json.loads(call("infra", "show", "--provider", "azure", "--json").out)
    assert shown["parameters"]["budget"] == "9"
    assert shown["parameters"]["registry"] == "standard"
    assert shown["parameters"]["submitters"] == f"{OBJECT_ID}:user"


def test_show_tells_of_what_there_is(ground: ResourceManager) -> None:
    said = call("infra", "show", "--provider", "azure")
    assert said.out.startswith("azure: deployment cloudtrain in subscription")
    assert "does not exist" in said.out
    up()
    said = call("infra", "show", "--provider", "azure")
    for part in (
        "is ready",
        "cluster",
        "cpu-spot",
        "key vault: cloudtrainj",
        'workspace = "cloudtrain"',
    ):
        assert part in said.out


def test_github_and_a_private_network_are_there_on_request(ground: ResourceManager) -> None:
    said = up("--set", "github_subject=repo:me/mine:ref:refs/heads/main", "--set", "network=new")
    assert said.code == 0, said.err
    assert "client id for GitHub: " in said.out
    assert kinds(ground)["Microsoft.Network/privateEndpoints"] == 6
    assert "1.667 USD a day" in said.err, "a private registry is Premium"
    assert "while no job runs: 134.00 USD a month" in said.err


def test_down_deletes_what_costs_nothing_to_lose_and_says_what_it_leaves(
    ground: ResourceManager,
) -> None:
    up("--set", "github_subject=repo:me/mine:ref:refs/heads/main", "--set", "network=new")
    said = down()
    assert said.code == 0, said.err
    left = kinds(ground)
    roles = left.pop("Microsoft.Authorization/roleAssignments")
    assert left == {
        "Microsoft.Storage/storageAccounts": 1,
        "Microsoft.Storage/storageAccounts/blobServices": 1,
        "Microsoft.KeyVault/vaults": 2,
        "Microsoft.ContainerRegistry/registries": 1,
        "Microsoft.ManagedIdentity/userAssignedIdentities": 1,
        "Microsoft.OperationalInsights/workspaces": 1,
        "Microsoft.Insights/components": 1,
    }
    assert roles == 8, "the workspace's on six, for its recovery; a submitter's on data and images"
    for part in (
        "keep    storage account",
        "--delete-data deletes it",
        "can be recovered for 14 days",
        "what stays costs 50.70 USD a month (container registry)",
        "stay closed to public networks",
        "az group delete --name cloudtrain",
    ):
        assert part in said.err
    assert "does not exist" in call("infra", "show", "--provider", "azure").out
    assert "nothing to do" in down().err


def test_down_with_the_data_leaves_an_empty_group_and_vaults_that_up_brings_back(
    ground: ResourceManager,
) -> None:
    up()
    vaults = {
        each.name
        for each in ground.store.resources.values()
        if each.kind == "Microsoft.KeyVault/vaults"
    }
    said = down("--delete-data")
    assert said.code == 0, said.err
    assert ground.store.resources == {}
    assert ground.store.deleted_workspaces == set(), "purged, so that the name is free"
    assert set(ground.store.deleted_vaults) == vaults
    assert "the workspace is deleted for good" in said.err
    assert "infra up brings it back" in said.err
    said = up()
    assert said.code == 0, said.err
    assert ground.store.deleted_vaults == {}


def test_down_touches_nothing_of_others_in_the_same_group(ground: ResourceManager) -> None:
    up()
    id_ = f"{ground.id_of('cloudtrain')}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/theirs"
    ground.store.put(
        id_, "Microsoft.ManagedIdentity/userAssignedIdentities", {"location": "eastus"}
    )
    assert down("--delete-data").code == 0
    assert [each.name for each in ground.store.resources.values()] == ["theirs"]


def test_an_up_that_was_killed_is_gone_on_with(
    ground: ResourceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cloudtrain.providers.azure.infra.watch.Steps.tell", killed)
        said = up()
    assert said.code == 130
    assert "cloudtrain infra up --provider azure" in said.err
    half = len(ground.store.resources)
    assert 0 < half < 22
    assert "is being changed" in call("infra", "show", "--provider", "azure").out
    said = up()
    assert said.code == 0, said.err
    assert "a deployment is under way: infra up waits for it first" in said.err
    assert len(ground.store.resources) == 30


def failed(said: CommandResult) -> str:
    assert said.code == 4, said.err
    return said.err[said.err.index("error: ") :]


def test_a_workspace_whose_name_a_deleted_one_has_is_told_with_the_way_out(
    ground: ResourceManager,
) -> None:
    up()
    down()
    told = failed(up())
    assert f"{WORKSPACES} cloudtrain: Soft-deleted workspace exists." in told
    assert "hint: a deleted workspace of that name is kept for 14 days: recover it" in told
    ground.store.deleted_workspaces.clear()  # as the portal does
    assert up().code == 0


def test_who_may_not_assign_roles_is_told_before_anything_is_created(
    ground: ResourceManager,
) -> None:
    ground.appoint(CONTRIBUTOR)
    for words in ((), ("--set", "submitter_role=built-in")):
        told = failed(up(*words))
        assert (
            "does not have permission to perform action"
            " 'Microsoft.Authorization/roleAssignments/write'" in told
        )
        assert "Role Based Access Control Administrator" in told
        assert (ground.groups, ground.store.resources) == ({}, {})


def test_who_may_assign_roles_but_define_none_gives_submitters_the_built_in_one(
    ground: ResourceManager,
) -> None:
    ground.appoint(CONTRIBUTOR, ACCESS_CONTROL)
    told = failed(up())
    assert (
        "does not have permission to perform action 'Microsoft.Authorization/roleDefinitions/write'"
        in told
    )
    assert "--set submitter_role=built-in" in told.partition("hint: ")[2]
    said = up("--set", "submitter_role=built-in")
    assert said.code == 0, said.err
    assert f"AzureML Data Scientist on cloudtrain for {OBJECT_ID}" in said.err
    assert "cloudtrain submitter" not in said.err
    assert down().code == 0


def test_down_deletes_the_role_of_submitters_with_its_assignments_and_no_role_of_others(
    ground: ResourceManager,
) -> None:
    up()
    assert up("--name", "lab", "--set", "submitters=none").code == 0
    group = ground.id_of("cloudtrain")
    theirs = f"{group}/providers/Microsoft.Authorization/roleDefinitions/{'0' * 8}-0000-0000-0000-{'0' * 12}"
    about = {
        "roleName": "cloudtrain fan",
        "permissions": [{"actions": []}],
        "assignableScopes": [group],
    }
    ground.store.put(theirs, DEFINITIONS, {"properties": about})
    said = down("--name", "cloudtrain")
    assert said.code == 0, said.err
    assert "delete  role assignment" in said.err
    assert "cloudtrain submitter of cloudtrain " in said.err
    left = [
        each.body["properties"]["roleName"]
        for each in ground.store.resources.values()
        if each.kind == DEFINITIONS
    ]
    assert sorted(left)[0] == "cloudtrain fan"
    assert [each.startswith("cloudtrain submitter of lab ") for each in sorted(left)[1:]] == [True]


@pytest.mark.parametrize(
    ("words", "reason", "remedy"),
    [
        (
            ("clusters=gpu:Standard_ND1:2",),
            "VM size Standard_ND1 is not available in region eastus",
            "az vm list-skus",
        ),
        (
            ("submitters=dddddddd-bbbb-cccc-dddd-eeeeeeeeeeee",),
            "Principal dddddddd-bbbb-cccc-dddd-eeeeeeeeeeee does not exist in the directory",
            "az ad user show",
        ),
    ],
)
def test_a_failed_deployment_names_the_resource_the_reason_and_what_to_do_and_can_be_repeated(
    ground: ResourceManager, words: tuple[str, ...], reason: str, remedy: str
) -> None:
    told = failed(up(*(part for word in words for part in ("--set", word))))
    assert reason in told
    assert "Microsoft." in told.partition(reason)[0], "which resource it is"
    assert remedy in told.partition("hint: ")[2]
    assert "has failed" in call("infra", "show", "--provider", "azure").out
    assert up("--set", "clusters=none", "--set", "submitters=me").code == 0


def test_a_name_that_others_have_in_azure_is_told(ground: ResourceManager) -> None:
    plan = json.loads(call(*UP, "--dry-run", "--json").out)["plan"]
    ground.store.taken.add(
        next(each["resource"] for each in plan["changes"] if each["kind"] == "storage account")
    )
    assert "hint: another --name" in failed(up())


def test_a_role_that_an_identity_of_old_left_behind_is_told(ground: ResourceManager) -> None:
    up()
    identities = f"{ground.id_of('cloudtrain')}/providers/Microsoft.ManagedIdentity"
    identity = f"{identities}/userAssignedIdentities/cloudtrain-jobs"
    ground.store.delete(identity, {})  # by hand; its roles stay
    told = failed(up())
    assert "RoleAssignmentUpdateNotPermitted" in told
    assert "az role assignment delete --ids" in told


def test_a_cluster_of_another_size_needs_another_name(ground: ResourceManager) -> None:
    up()
    told = failed(up("--set", "clusters=cpu:Standard_D4s_v3:2"))
    assert "Changing property 'properties.vmSize' is not allowed" in told
    assert "az ml compute delete" in told
    assert up("--set", "clusters=other:Standard_D4s_v3:2").code == 0


def test_a_budget_of_an_earlier_month_keeps_its_start(ground: ResourceManager) -> None:
    up()
    budget = next(
        each
        for each in ground.store.resources.values()
        if each.kind == "Microsoft.Consumption/budgets"
    )
    budget.body["properties"]["timePeriod"]["startDate"] = "2026-01-01"
    assert "nothing to do" in up().err
    said = up("--set", "budget=60")
    assert said.code == 0, said.err


@pytest.mark.parametrize("fault", ["throttle", "error", "refused_lost"])
def test_a_fault_of_a_moment_is_no_failure(
    ground: ResourceManager, cloud: AzureCloud, fault: Any
) -> None:
    cloud.endpoint.fault(fault, "resources", "GetDeployment", nth=2)
    cloud.endpoint.fault(fault, "resources", "ListOperations")
    said = up()
    assert said.code == 0, said.err


def test_an_expired_login_says_so(ground: ResourceManager, cloud: AzureCloud) -> None:
    cloud.endpoint.fault("expired", "resources", times=9)
    told = failed(up())
    assert "az login" in told


def test_two_deployments_live_side_by_side(ground: ResourceManager) -> None:
    assert up().code == 0
    Path("cloudtrain.toml").unlink()
    assert up("--name", "lab").code == 0
    assert set(ground.groups) == {"cloudtrain", "lab"}
    assert down("--name", "lab", "--delete-data").code == 0
    Path("cloudtrain.toml").unlink()
    assert "is ready" in call("infra", "show", "--provider", "azure").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--name", "a"), "--name a: Azure takes no such names"),
        (("--set", "clusters=cpu"), "clusters, NAME:SIZE:NODES"),
        (("--set", "network=yes"), "'yes' is not one of none, new"),
    ],
)
def test_what_is_wrong_in_itself_is_told_without_asking_azure(
    ground: ResourceManager, cloud: AzureCloud, words: tuple[str, ...], message: str
) -> None:
    said = up(*words)
    assert said.code == 2
    assert message in said.err
    assert cloud.endpoint.calls == []


def test_render_prints_the_template_without_an_account(
    ground: ResourceManager, cloud: AzureCloud
) -> None:
    said = call("infra", "render", "--provider", "azure")
    assert json.loads(said.out)["contentVersion"] == "1.0.0.0"
    assert cloud.endpoint.calls == []
