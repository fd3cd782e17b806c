"""The grants of infra/azure on the wire: without one action or role exactly its operations fail,
with a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cloudtrain.api import doctor
from cloudtrain.api.run import Run
from cloudtrain.diagnosis.rules import rule_of
from cloudtrain.planning.registry import RegistryImage
from cloudtrain.providers.azure.rights import READ_BLOBS, WRITE_BLOBS, rights_of
from cloudtrain.runs.record import RunRecord
from cloudtrain_launcher.stored_secrets import KeyVault
from tests.fakes.azure.cloud import AzureCloud, cheap_clients, client, document, ended, submit
from tests.fakes.azure.permissions import GET_SECRET, PULL, PUSH
from tests.fakes.azure.rights import BLOBS as BLOB_ROLE
from tests.fakes.azure.rights import BUILT_IN, READER, Assignment
from tests.fakes.azure.rights import PULL as PULL_ROLE
from tests.fakes.azure.rights import PUSH as PUSH_ROLE
from tests.fakes.azure.rights import SECRETS as SECRET_ROLE
from tests.fakes.azure.tokens import OBJECT_ID
from tests.providers.azure.operations import OPERATIONS, forget, reconnect
from tests.providers.faults import failure
from tests.support.azure_template import SUBMITTER, deploy
from tests.support.in_process import call

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureCloud]:
    """A subscription whose jobs stay in their first phase."""
    forget()
    with AzureCloud(phase_seconds=3600) as made, cheap_clients():
        yield made
        forget()


@pytest.fixture(scope="module")
def object_ids(azure: AzureCloud) -> Mapping[str, str]:
    """The object ids of the identities of the template, which is deployed for one submitter."""
    return deploy(azure, submitters=[{"id": OBJECT_ID, "type": "User"}])


@pytest.fixture(scope="module")
def settings(
    azure: AzureCloud, object_ids: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The cloudtrain.toml that `infra settings` writes for a reader of the resource group."""
    access = azure.account.access
    scope = azure.account.scope.partition("/providers/")[0]
    reader = Assignment(principal=OBJECT_ID, role=READER, scope=scope)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("settings"))
        for name, value in azure.environment().items():
            patch.setenv(name, value)
        for name in ("RESOURCE_GROUP", "WORKSPACE", "LOCATION"):
            patch.delenv(f"CLOUDTRAIN_AZURE_{name}")
        access.assignments.append(reader)
        result = call("infra", "settings", "--provider", "azure", "--yes")
        access.assignments.remove(reader)
        assert result.code == 0, result.err
        assert "key vault for secrets of jobs" in result.out
        return Path("cloudtrain.toml").read_text()


@pytest.fixture(autouse=True)
def everything_is_granted_again(
    settings: str,
    cloud: AzureCloud,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    (folder / "cloudtrain.toml").write_text(settings)
    for name in ("FINISHING_SECONDS", "NOTICE_SECONDS"):
        monkeypatch.setattr(f"cloudtrain.providers.azure.stop.{name}", 0)
    for name in ("jobs", "sweeps"):  # without those of other tests: a list asks for their ends
        monkeypatch.setattr(cloud.service, name, {})
    monkeypatch.setattr(RunRecord, "grace_seconds", 0.2)
    monkeypatch.setattr(
        doctor, "inspect_image", lambda _: RegistryImage("sha256:0", frozenset({"amd64"}))
    )
    access = cloud.account.access
    roles = dict(access.roles)
    assignments = list(access.assignments)
    yield
    access.roles = roles
    access.assignments[:] = assignments


@pytest.fixture
def run(cloud: AzureCloud) -> Run:
    """Return an existing job."""
    return OPERATIONS["submit"].do(cloud, None)  # type: ignore[arg-type,return-value]


def error_of(cloud: AzureCloud, run: Run, name: str) -> str:
    """Return an operation's error message, or an empty text."""
    reconnect()
    return failure(lambda: OPERATIONS[name].do(cloud, run))


@pytest.mark.parametrize("name", OPERATIONS)
def test_with_all_roles_an_operation_needs_exactly_its_actions(
    cloud: AzureCloud, run: Run, name: str
) -> None:
    """Unneeded actions are not missed either: the decision ignores everything else."""
    cloud.account.access.attempted.clear()
    assert error_of(cloud, run, name) == ""
    assert cloud.account.access.attempted == OPERATIONS[name].needs


def take_away(cloud: AzureCloud, action: str) -> None:
    """Take an action out of the role that the template defines."""
    roles = cloud.account.access.roles
    [own_role] = set(roles) - set(BUILT_IN)
    assert action in roles[own_role].actions
    roles[own_role] = roles[own_role].without(action)


def revoke(cloud: AzureCloud, principal: str, role: str) -> None:
    """Take a role from somebody."""
    assignments = cloud.account.access.assignments
    [revoked] = [
        assignment
        for assignment in assignments
        if (assignment.principal, assignment.role) == (principal, role)
    ]
    assignments.remove(revoked)


def test_every_action_is_needed_by_some_operation() -> None:
    needed = set().union(*(operation.needs for operation in OPERATIONS.values()))
    assert needed - {READ_BLOBS, WRITE_BLOBS, PULL, PUSH} == set(SUBMITTER)


@pytest.mark.parametrize("action", SUBMITTER)
def test_without_one_action_exactly_what_needs_it_fails_and_names_it(
    cloud: AzureCloud, run: Run, action: str
) -> None:
    take_away(cloud, action)
    for name, operation in OPERATIONS.items():
        if action in operation.needs:
            message = error_of(cloud, run, name)
            assert (action in message) == (action not in operation.silent), (name, message)


@pytest.mark.parametrize(
    ("role", "actions", "also"),
    [(BLOB_ROLE, {READ_BLOBS, WRITE_BLOBS}, {"doctor"}), (PUSH_ROLE, {PULL, PUSH}, set())],
)
def test_without_one_role_exactly_what_needs_it_fails_and_says_so(
    cloud: AzureCloud,
    run: Run,
    role: str,
    actions: set[str],
    also: set[str],
) -> None:
    """`also`: what looks for that very role."""
    revoke(cloud, OBJECT_ID, role)
    for name, operation in OPERATIONS.items():
        message = error_of(cloud, run, name)
        needs = operation.needs - operation.silent
        assert bool(message) == (bool(needs & actions) or name in also), (name, message)
        words = [*actions, "authentication required"] if role == PUSH_ROLE else actions
        assert not message or any(word in message for word in words), (name, message)


# Jobs, as the identity of the cluster: what they do is done by Azure ML and by the launcher.


def job_error(cloud: AzureCloud, folder: Path, name: str) -> str:
    """Why a job with an image of the workspace's registry failed that reads and writes blobs; empty
    if it did not.
    """
    cloud.account.phase_seconds = 0
    registry = cloud.account.part("containerRegistry").rpartition("/")[2]
    image = {"image": f"{registry}.azurecr.io/train:1"}
    job = document(cloud, name, folder, environment=image, compute="azureml:cpu")
    submit(client(cloud), job)
    status = ended(cloud, name)
    error = cloud.service.jobs[name].error
    assert (status == "Failed") == (error is not None)
    return error["message"] if error else ""


def test_with_all_its_roles_a_job_passes_and_needs_exactly_these(
    cloud: AzureCloud, object_ids: Mapping[str, str], folder: Path
) -> None:
    cloud.account.access.attempted.clear()
    assert job_error(cloud, folder, "granted") == ""
    additional = cloud.account.access.attempted - set(SUBMITTER)
    assert additional == {*rights_of("job")["registry"], *rights_of("job")["output"]}
    roles = {
        assignment.role
        for assignment in cloud.account.access.assignments
        if assignment.principal == object_ids["cloudtrain-jobs"]
    }
    assert roles == {BLOB_ROLE, PULL_ROLE, SECRET_ROLE}


@pytest.mark.parametrize(("role", "action"), [(BLOB_ROLE, READ_BLOBS), (PULL_ROLE, PULL)])
def test_without_a_role_a_job_fails_and_is_told_which_action_is_missing(
    cloud: AzureCloud, object_ids: Mapping[str, str], folder: Path, role: str, action: str
) -> None:
    revoke(cloud, object_ids["cloudtrain-jobs"], role)
    message = job_error(cloud, folder, f"without-{role[:8]}")
    rule = rule_of(message)
    assert rule is not None
    assert action in rule.remedy_for(message)


def test_only_the_job_identity_reads_a_secret_and_a_missing_role_is_named(
    cloud: AzureCloud, object_ids: Mapping[str, str]
) -> None:
    cloud.account.secrets["token"] = "value"
    jobs = object_ids["cloudtrain-jobs"]

    def read(principal: str) -> str:
        secret = cloud.account.machine_secret(principal)
        environ = {
            **cloud.account.env,
            "MSI_SECRET": secret,
            "SSL_CERT_FILE": cloud.environment()["SSL_CERT_FILE"],
        }
        return KeyVault(environ).get_secret("the secret", f"{cloud.endpoint.url}/secrets/token")

    assert read(jobs) == "value"
    with pytest.raises(RuntimeError, match=GET_SECRET):
        read(OBJECT_ID)
    revoke(cloud, jobs, SECRET_ROLE)
    with pytest.raises(RuntimeError, match=GET_SECRET):
        read(jobs)
