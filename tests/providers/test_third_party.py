"""A provider of somebody else's, installed from a package of its own, is one like ours: in job.yaml and in plans."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.declaration import declaration_of, is_provider, provider_names
from cloudtrain.errors import SpecError, UsageError
from cloudtrain.providers import get_provider
from cloudtrain.settings import load_settings
from cloudtrain.spec import json_schema
from tests.support.in_process import call

MODULE = '''
from dataclasses import dataclass
from cloudtrain.declaration import Declaration, Setting
from cloudtrain.providers import Request
from cloudtrain.spec.section import Section, Strings
from cloudtrain.planning.target import ProviderConfig, Target
from pydantic import Field

class SlurmSection(Section):
    """What is particular to Slurm."""
    partition: str | None = Field(None, description="where to queue")
    constraints: Strings = Field((), description="features of nodes")

@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmConfig(ProviderConfig):
    partition: str = "batch"

class Slurm:
    declaration = Declaration(
        name="slurm", label="Slurm", is_remote=True, contract="slurm",
        input_schemes=("lustre",), input_example="lustre://scratch/data", secret_stores={"pass": "PATH"},
        section=lambda: SlurmSection, request_name="sbatch script",
        settings={"account": Setting("who is billed"), "poll": Setting("seconds between looks", "seconds", 5.0)},
    )
    contracts = ("slurm",)

    def target(self, settings, spec, *, rehearsal=False):
        config = SlurmConfig(partition=spec.section(SlurmSection).partition or "batch")
        limits = {"max_nodes": 4, "grace_seconds": 60}
        return Target(provider="slurm", contract="slurm", where="the cluster", config=config, **limits)

    def rules(self, plan):
        return []

    def checks(self, plan, *, starting):
        return []

    def render(self, plan, image=None):
        partition = plan.target.config_as(SlurmConfig).partition
        return Request(provider="slurm", document={"partition": partition, "nodes": plan.spec.resources.nodes})
'''

JOB = """name: digits
image: {slurm: /images/torch.sif}
inputs: {train: {slurm: lustre://scratch/digits, local: ./data}}
secrets: {TOKEN: {slurm: "pass:team/token"}}
slurm: {partition: gpu}
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a provider, installed; the current folder is a job's."""
    info = tmp_path / "site" / "slurm_provider-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slurm-provider\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cloudtrain.providers]\nslurm = slurm_provider:Slurm\n")
    (tmp_path / "site" / "slurm_provider.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(__import__("sys").modules, "slurm_provider", raising=False)
    job = tmp_path / "job"
    job.mkdir()
    monkeypatch.chdir(job)
    (job / "job.yaml").write_text(JOB)
    return job


def test_it_is_found_and_says_what_it_is(slurm: Path) -> None:
    assert is_provider("slurm")
    assert "slurm" in provider_names()
    assert declaration_of("slurm").label == "Slurm"
    assert get_provider("slurm").declaration.name == "slurm"


def test_a_job_that_names_it_everywhere_is_planned_and_rendered(slurm: Path) -> None:
    plan = cloudtrain.plan(cloudtrain.load(slurm / "job.yaml"), "slurm")
    assert cloudtrain.render(plan).document == {"partition": "gpu", "nodes": 1}
    assert plan.to_json()["target"]["facts"] == {"partition": "gpu"}
    assert plan.to_json()["spec"]["slurm"] == {"partition": "gpu"}
    assert plan.unused == ()


def test_its_section_is_checked_at_its_line_as_ours_are(slurm: Path) -> None:
    (slurm / "job.yaml").write_text("name: digits\nslurm:\n  partitoin: gpu\n  constraints: 3\n")
    with pytest.raises(SpecError) as refused:
        cloudtrain.load(slurm / "job.yaml")
    lines = [issue.line().rpartition("/")[2] for issue in refused.value.issues]
    assert lines == [
        "job.yaml:3:3: slurm.partitoin: unknown key (did you mean 'partition'?)",
        "job.yaml:4:3: slurm.constraints: expected a text or a list of texts, got 3",
    ]


def test_its_settings_are_read_from_file_and_environment_and_checked_at_their_line(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slurm / "cloudtrain.toml").write_text("[slurm]\naccount = 'physics'\n")
    assert load_settings(slurm).get("slurm.account") == "physics"
    assert load_settings(slurm).get("slurm.poll") == 5.0
    (slurm / "cloudtrain.toml").write_text("[slurm]\nacount = 'physics'\n")
    with pytest.raises(SpecError, match=r"cloudtrain\.toml:2: slurm\.acount: unknown setting .*'slurm\.account'"):
        load_settings(slurm)
    (slurm / "cloudtrain.toml").unlink()
    monkeypatch.setenv("CLOUDTRAIN_SLURM_POLL", "20")
    assert load_settings(slurm).get("slurm.poll") == 20.0


def test_its_secrets_and_inputs_are_held_against_what_it_declares(slurm: Path) -> None:
    (slurm / "job.yaml").write_text("secrets: {TOKEN: {slurm: 'vault:x'}}\n")
    with pytest.raises(SpecError, match=r"secrets\.TOKEN\.slurm: expected 'pass:PATH'"):
        cloudtrain.load(slurm / "job.yaml")
    (slurm / "job.yaml").write_text("inputs: {train: 's3://bucket/x/'}\n")
    with pytest.raises(SpecError, match="cannot be read by the slurm provider") as refused:
        cloudtrain.plan(cloudtrain.load(slurm / "job.yaml"), "slurm")
    assert "{slurm: 'lustre://scratch/data', aws: 's3://bucket/x/'}" in (refused.value.issues[0].hint or "")


def test_other_providers_say_that_its_section_means_nothing_to_them(slurm: Path) -> None:
    (slurm / "job.yaml").write_text("slurm: {partition: gpu}\n")
    assert cloudtrain.plan(cloudtrain.load(slurm / "job.yaml"), "local").unused == ("slurm",)


def test_the_schema_and_the_plan_for_people_know_it(slurm: Path) -> None:
    schema = json_schema()
    assert "slurm" in schema["properties"]
    assert "slurm" in schema["$defs"]["Resources"]["properties"]["instance"]["properties"]
    shown = call("plan", "--provider", "slurm")
    assert shown.code == 0, shown.err
    assert "sbatch script, 2 fields" in shown.out


def test_one_that_cannot_be_imported_is_told_where_it_is_named_and_nowhere_else(slurm: Path) -> None:
    (slurm.parent / "site" / "slurm_provider.py").write_text("import there_is_no_such_module\n")
    (slurm / "job.yaml").write_text("name: digits\n")
    cloudtrain.plan(cloudtrain.load(slurm / "job.yaml"), "local")
    with pytest.raises(UsageError, match="'slurm' of slurm-provider cannot be imported: No module named"):
        cloudtrain.plan(cloudtrain.load(slurm / "job.yaml"), "slurm")


def test_without_the_package_its_name_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("slurm: {partition: gpu}\ninputs: {x: {slurm: y}}\n")
    with pytest.raises(SpecError) as refused:
        cloudtrain.load(tmp_path / "job.yaml")
    told = [issue.line() for issue in refused.value.issues]
    assert any(line.endswith("slurm: unknown key") for line in told)
    assert any("inputs.x.slurm: unknown provider" in line for line in told)
