"""Providers pass the conformance suite, also one that is installed from its own package."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain import providers
from cloudtrain.api.preflight import preflight
from cloudtrain.errors import SpecError, UsageError
from cloudtrain.planning.plan import Plan
from cloudtrain.settings import load_settings
from cloudtrain.testing.conformance import (
    GREETING,
    GREETING_FILE,
    SECRET,
    Platform,
    ProviderConformance,
)
from examples.provider import test_ssh
from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import IMAGE, AzureCloud
from tests.fakes.containers import Container
from tests.support.engine import engine_and_image
from tests.support.samples import without
from tests.support.wheels import install


def greeting(folder: Path) -> Path:
    """A folder with the suite's input."""
    data = folder / "input data"
    data.mkdir()
    (data / GREETING_FILE).write_text(GREETING)
    return data


@contextmanager
def local(folder: Path) -> Iterator[Platform]:
    """This machine."""
    yield Platform(
        provider="local",
        input=str(greeting(folder)),
        secret="env:MY_SECRET",
        env={"MY_SECRET": SECRET},
    )


@contextmanager
def docker(folder: Path) -> Iterator[Platform]:
    """Provide the Docker engine of this machine; skip without one."""
    with engine_and_image() as (_, image):
        yield Platform(
            provider="docker",
            job={"image": {"docker": image}},
            input=str(greeting(folder)),
            secret="env:MY_SECRET",
            env={"MY_SECRET": SECRET},
        )


@contextmanager
def forked_containers() -> Iterator[None]:
    """Fork the containers of an imitated cloud from a process that has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Container, "forked", True)
        yield


@contextmanager
def aws(folder: Path) -> Iterator[Platform]:
    """SageMaker, imitated on loopback."""
    from cloudtrain.providers.aws.client import aws as connect

    connect.cache_clear()
    with without("AWS_"), forked_containers(), Cloud() as cloud:
        cloud.client("s3").put_object(
            Bucket=cloud.bucket, Key=f"input/{GREETING_FILE}", Body=GREETING.encode()
        )
        cloud.client("secretsmanager").create_secret(Name="token", SecretString=SECRET)
        yield Platform(
            provider="aws",
            env=cloud.environment(),
            input=f"s3://{cloud.bucket}/input/",
            secret="secretsmanager:token",
        )
    connect.cache_clear()


@contextmanager
def azure(folder: Path) -> Iterator[Platform]:
    """Azure ML, imitated on loopback."""
    from tests.providers.azure.operations import forget

    forget()
    variables = ("AZURE_", "ARM_", "AZUREML_", "MSI_", "IDENTITY_")
    with without(*variables), forked_containers(), AzureCloud() as cloud:
        cloud.put(f"input/{GREETING_FILE}", GREETING.encode())
        cloud.account.secrets["token"] = SECRET
        yield Platform(
            provider="azure",
            job={"image": IMAGE},
            env=cloud.environment(),
            input="azureml://datastores/workspaceblobstore/paths/input/",
            secret=f"keyvault:{cloud.vault}/secrets/token",
        )
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


# Our providers pass the public conformance suite, and so does the guide's, installed from its
# package.

pytestmark = [pytest.mark.torchrun, pytest.mark.linux("the machine of these jobs")]


class TestLocal(ProviderConformance):
    """Processes of this machine."""

    platform = staticmethod(local)


@pytest.mark.docker
class TestDocker(ProviderConformance):
    """Containers of this machine."""

    platform = staticmethod(docker)


class TestSageMaker(ProviderConformance):
    """SageMaker, imitated on loopback."""

    platform = staticmethod(aws)


class TestAzureML(ProviderConformance):
    """Azure ML, imitated on loopback."""

    platform = staticmethod(azure)


class TestSsh(test_ssh.TestSsh):
    """The worked example."""

    @classmethod
    @contextmanager
    def platform(cls, folder: Path) -> Iterator[Platform]:
        site = install(folder / "site")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(site))
            with super().platform(folder) as platform:
                yield platform
        sys.modules.pop("cloudtrain_ssh", None)


# A third-party provider, installed from its package, is equal to ours in job.yaml and in plans.

JOB = """name: digits
image: {ssh: /opt/torch}
inputs: {train: {ssh: "ssh:///data/digits", local: ./data}}
secrets: {TOKEN: {ssh: "file:/home/me/token"}}
ssh: {host: me@gpu-box, folder: /scratch/it's mine}
"""


@pytest.fixture
def job(tmp_path: Path, ssh_provider: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The provider of the guide is installed; the current folder is a job's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def test_settings_come_from_file_and_environment_and_are_checked(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings(job, {"provider": "ssh"})["ssh.host"] == "localhost"
    (job / "cloudtrain.toml").write_text("[ssh]\nhost = 'gpu-box'\n")
    assert load_settings(job).get("ssh.host") == "gpu-box"
    (job / "cloudtrain.toml").write_text("[ssh]\nhots = 'gpu-box'\n")
    with pytest.raises(
        SpecError, match=r"cloudtrain\.toml:2: ssh\.hots: unknown setting .*'ssh\.host'"
    ):
        load_settings(job)
    (job / "cloudtrain.toml").unlink()
    monkeypatch.setenv("CLOUDTRAIN_SSH_HOST", "other-box")
    (job / "job.yaml").write_text("name: digits\n")
    plan = cloudtrain.plan(cloudtrain.load(job / "job.yaml"), "ssh")
    assert cloudtrain.render(plan).document["host"] == "other-box"


def test_its_secrets_and_inputs_are_held_against_what_it_declares(job: Path) -> None:
    (job / "job.yaml").write_text("secrets: {TOKEN: {ssh: 'vault:x'}}\n")
    with pytest.raises(SpecError, match=r"secrets\.TOKEN\.ssh: expected 'file:PATH'"):
        cloudtrain.load(job / "job.yaml")
    (job / "job.yaml").write_text("inputs: {train: 's3://bucket/x/'}\n")
    with pytest.raises(SpecError, match="cannot be read by the ssh provider") as refused:
        cloudtrain.plan(cloudtrain.load(job / "job.yaml"), "ssh")
    assert "{ssh: 'ssh:///data/digits', aws: 's3://bucket/x/'}" in (
        refused.value.issues[0].hint or ""
    )


def test_its_checks_name_the_line_of_what_its_machine_has_not(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(test_ssh.STAND_IN)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "here").mkdir()
    inputs = (
        f"inputs:\n  there: {{ssh: 'ssh://{tmp_path}/here'}}\n  gone: {{ssh: 'ssh:///no/such'}}\n"
    )
    (job / "job.yaml").write_text(f"{inputs}secrets:\n  TOKEN: {{ssh: 'file:/no/token'}}\n")
    issues = preflight(cloudtrain.plan(cloudtrain.load(job / "job.yaml"), "ssh"))
    assert [issue.line().rpartition("/job.yaml")[2] for issue in issues] == [
        ":3:3: inputs.gone: localhost has no /no/such",
        ":5:3: secrets.TOKEN: localhost has no /no/token",
    ]


def test_one_that_cannot_be_imported_is_told_where_it_is_named_and_nowhere_else(
    job: Path, ssh_provider: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "site"
    shutil.copytree(ssh_provider, broken)
    (broken / "cloudtrain_ssh.py").write_text("import there_is_no_such_module\n")
    monkeypatch.syspath_prepend(str(broken))
    (job / "job.yaml").write_text("name: digits\n")
    cloudtrain.plan(cloudtrain.load(job / "job.yaml"), "local")
    with pytest.raises(
        UsageError, match="'ssh' of cloudtrain-ssh cannot be imported: No module named"
    ):
        cloudtrain.plan(cloudtrain.load(job / "job.yaml"), "ssh")


def test_without_the_package_its_name_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("ssh: {host: gpu-box}\ninputs: {x: {ssh: y}}\n")
    with pytest.raises(SpecError) as refused:
        cloudtrain.load(tmp_path / "job.yaml")
    lines = [issue.line() for issue in refused.value.issues]
    assert any(line.endswith("ssh: unknown key") for line in lines)
    assert any("inputs.x.ssh: unknown provider" in line for line in lines)


# The same questions to every provider that is found: pure until `start`, frozen, and plain JSON.


def plan_for(name: str, folder: Path, text: str = "resources: {nodes: 2, processes: 2}\n") -> Plan:
    (folder / "job").mkdir()
    (folder / "job" / "job.yaml").write_text(text)
    return cloudtrain.plan(
        cloudtrain.load(folder / "job" / "job.yaml"), name, data_dir=str(folder / "data")
    )


def test_what_a_provider_has_no_use_for_is_said_not_dropped(tmp_path: Path) -> None:
    plan = plan_for("local", tmp_path, "resources: {spot: true, disk: 1 TB}\nimage: some/image:1\n")
    assert plan.unused == ("image", "resources.spot", "resources.disk")


def test_an_unknown_provider_is_answered_with_those_at_hand() -> None:
    with pytest.raises(UsageError, match="unknown provider 'gcp'") as refused:
        providers.get_provider("gcp")
    assert "local" in (refused.value.hint or "")
    for hostile in ("../errors", "__init__", "os.path"):
        with pytest.raises(UsageError):
            providers.get_provider(hostile)
