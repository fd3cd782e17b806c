"""A third-party provider, installed from its package, is equal to ours in job.yaml and in plans."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import SpecError, UsageError
from cloudtrain.settings import load_settings
from cloudtrain.submission.preflight import preflight
from examples.provider import test_ssh

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
