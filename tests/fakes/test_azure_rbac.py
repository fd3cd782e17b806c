"""The imitated Azure RBAC: scopes inherit, an asterisk spans slashes, what is excluded is not
granted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.azure import wire
from tests.fakes.azure.account import Account
from tests.fakes.azure.permissions import attempts
from tests.fakes.azure.rbac import Access, Assignment, Attempt, Role, role_of
from tests.fakes.azure.rights import AUTHORIZATION
from tests.fakes.azure.roles import BLOBS, BUILT_IN, OWNER, READER, SCIENTIST
from tests.fakes.azure.storage import Storage
from tests.fakes.azure.tokens import Tokens
from tests.fakes.azure.wire import Place
from tests.fakes.messages import Call

GROUP = "/subscriptions/s/resourceGroups/lab"
STORAGE = f"{GROUP}/providers/Microsoft.Storage/storageAccounts/one"
BLOB = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read"


def access(role: str, scope: str) -> Access:
    assigned = Assignment(principal="me", role=role, scope=scope)
    return Access(roles=dict(BUILT_IN), assignments=[assigned], is_enforced=True)


def can_read(granted: Access, scope: str, who: str = "me") -> bool:
    return granted.allows(
        who, Attempt(action="Microsoft.Storage/storageAccounts/read", scope=scope)
    )


@pytest.mark.parametrize("scope", ["/", "/subscriptions/s", GROUP, GROUP.lower(), STORAGE])
def test_a_role_holds_at_its_scope_and_below(scope: str) -> None:
    assert can_read(access(READER, scope), STORAGE)
    assert not can_read(access(READER, scope), STORAGE, "you")


@pytest.mark.parametrize(
    "scope", [f"{GROUP}2", f"{STORAGE}/blobServices/default", f"{STORAGE}two", "/subscriptions/t"]
)
def test_a_role_holds_neither_above_its_scope_nor_beside_it(scope: str) -> None:
    assert not can_read(access(READER, scope), STORAGE)


def test_who_may_do_everything_with_an_account_reads_none_of_its_data() -> None:
    reads = Attempt(
        action=BLOB, scope=f"{STORAGE}/blobServices/default/containers/one", on_data=True
    )
    assert not access(OWNER, "/").allows("me", reads)
    assert access(BLOBS, STORAGE).allows("me", reads)


def test_what_is_excluded_is_not_granted_whatever_the_capitals() -> None:
    action = "microsoft.machinelearningservices/workspaces/computes/x/WRITE"
    assert access(OWNER, GROUP).allows("me", Attempt(action=action, scope=GROUP))
    assert not access(SCIENTIST, GROUP).allows("me", Attempt(action=action, scope=GROUP))


def test_an_asterisk_spans_slashes_and_stands_for_no_missing_part() -> None:
    role = Role(name="", actions=("Microsoft.A/b/*/read",))
    assert role.grants("Microsoft.A/b/c/d/read", on_data=False)
    assert not role.grants("Microsoft.A/b/read", on_data=False), (
        "whether Azure sees it so is not documented"
    )
    assert not role.without("Microsoft.A/b/*/read").grants("Microsoft.A/b/c/read", on_data=False)


def test_excluded_actions_of_a_template_role_are_not_granted() -> None:
    with pytest.raises(ValueError, match="excludes"):
        role_of("", [{"actions": ["*"], "notActions": ["*/delete"]}])


FREE = {
    "GetDiscovery",
    "GetToken",
    "GetResult",
    "ListResources",
    "GetRunToken",
    "LogMetric",
    "LogParameter",
}
"""Calls that need no role: addresses of services, a token, a result whose address the requester
got, and lists that the service filters by itself. With the token of a run: its next token, metrics
and parameters.
"""


def test_every_call_but_a_few_needs_an_action(tmp_path: Path) -> None:
    account = Account(folder=tmp_path, storage=Storage(tmp_path), tokens=Tokens())
    id_ = f"{account.scope}{AUTHORIZATION}/roleAssignments"
    place = Place(id_, {}, {"container": "one"})
    calls = [Call(route.service, route.operation) for route in wire.ROUTES]
    calls += [Call("blob", operation) for operation in wire.BLOB_CALLS.values()]
    assert len(calls) > 30
    free = {call.operation for call in calls if not list(attempts(call, place, account))}
    assert free <= FREE


def test_a_job_acts_as_its_cluster_or_as_who_submits_or_as_it_says(tmp_path: Path) -> None:
    account = Account(folder=tmp_path, storage=Storage(tmp_path), tokens=Tokens(), submitter="me")
    account.computes["gpu-cluster"].identity = "cluster"
    account.parts = {"identity": "workspace"}
    on_cluster = {"computeId": f"{account.scope}/computes/gpu-cluster"}
    assert account.identities_of(on_cluster) == ("cluster", "cluster")
    assert account.identities_of({**on_cluster, "identity": {"identityType": "UserIdentity"}}) == (
        "cluster",
        "me",
    )
    assert account.identities_of({}) == ("workspace", "me")
    assert account.identities_of({"identity": {"identityType": "Managed"}}) == (
        "workspace",
        "workspace",
    )
