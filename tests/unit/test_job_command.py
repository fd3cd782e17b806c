"""Jobs without a file, settings of the clouds' own tools, and questions about money."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.cli.plan_view import cost
from cloudtrain.cli.start import confirm as confirm_plan
from cloudtrain.errors import RefusedError, SpecError
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.aws.account import cli_default_region
from cloudtrain.providers.aws.config import AwsConfig, profile_of
from cloudtrain.providers.aws.phases import billing
from cloudtrain.providers.azure.account import cli_default_account, workspace_of
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.settings import load_settings
from cloudtrain.spec.env_file import variables_of
from cloudtrain.spec.sources import job_folder
from cloudtrain.sweeps.rules import sweep_issues
from cloudtrain_wire.events import Billing
from tests.support.in_process import call
from tests.support.samples import AWS_ACCOUNT, write

# A job without a file: a script and its flags mean what the job.yaml means that init writes of the
# same words.


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder with a script, and a second script in a subfolder, as the working folder."""
    (tmp_path / "project" / "src").mkdir(parents=True)
    for name in ("train.py", "src/other.py"):
        (tmp_path / "project" / name).write_text("print('trained')\n")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_a_folder_stands_for_its_job(project: Path) -> None:
    assert "wrote" in call("init", "../my-job").err
    job = cloudtrain.load("../my-job")
    assert job.spec.args.argv == ("--epochs", "5", "--lr", "0.05")
    assert job.folder == project.parent / "my-job"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=1", "1"),
        ("export A = two words # c", "two words"),
        ("A='x # $y'", "x # $y"),
        (r'A="a\nb\"c\\d"  # c', 'a\nb"c\\d'),
        ("A=", ""),
        ("A=''", ""),
        ("A= # c", ""),
        ("A=http://h/#part=1", "http://h/#part=1"),
        ('A="it\'s"', "it's"),
        ("A=null", "null"),
        ("A=ü€😀", "ü€😀"),
    ],
)
def test_a_line_of_an_env_file_is_a_variable(tmp_path: Path, line: str, value: str) -> None:
    (tmp_path / ".env").write_text(f"# first\n\n{line}\r\n")
    job = cloudtrain.load({}, variables_of(tmp_path / ".env"))
    assert job.spec.env == {"A": value}


def test_variables_of_a_file_are_below_set_and_above_the_job(project: Path) -> None:
    token = "hf_abcdefghijklmnopqrstuvwxyz123456"
    write(project, {".env": f"A=file\nB=file\nHF_TOKEN={token}\n", "more": "B=more\n"})
    write(project, {"job.yaml": "entrypoint: train.py\nenv: {A: job, C: job}\n"})
    files = ("--env-file", ".env", "--env-file", "more")
    plan = call("plan", *files, "--set", "env.A=flag")
    assert "--env-file .env:3: env.HF_TOKEN: looks like a secret" in plan.out
    assert token not in plan.out
    request = call("plan", "--json", *files, "--set", "env.A=flag").out
    for name, value in {"A": "flag", "B": "more", "C": "job", "HF_TOKEN": token}.items():
        assert f'"{name}": "{value}"' in request


def test_a_script_is_sent_with_the_folder_that_one_stands_in(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cloudtrain.load("src/other.py")
    assert (job.spec.entrypoint, job.folder) == ("src/other.py", project)
    monkeypatch.chdir(project / "src")
    assert cloudtrain.load("../train.py").folder == project


def test_a_home_folder_is_never_sent_with_a_script(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project))
    assert job_folder(Path("src/other.py")) == project / "src"


def test_arguments_come_after_those_of_the_file_and_flags_before_set(project: Path) -> None:
    (project / "job.yaml").write_text("entrypoint: train.py\nargs: {epochs: 1}\n")
    shown = call("plan", "--nodes", "2", "--set", "resources.nodes=3", "--", "--epochs", "5").out
    assert "train.py --epochs 1 --epochs 5      3 processes" in shown
    assert "args  ← -- --epochs 5" in shown


@pytest.mark.parametrize("words", ["--provider local", "--provider aws", "--as aws"])
def test_only_a_cloud_job_with_an_account_is_exported(project: Path, words: str) -> None:
    refused = call("plan", "train.py", *words.split(), "--export", "../job")
    assert refused.code == 2, refused.err
    assert not (project.parent / "job").exists()


def test_an_export_keeps_secrets_private(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in AWS_ACCOUNT.items():
        monkeypatch.setenv(name, value)
    words = ("plan", "train.py", "--provider", "aws", "--set", "env.API_TOKEN=hunter2abcdefg")
    exported = call(*words, "--export", "job")
    assert exported.code == 0, exported.err
    for name in ("request.json", "job.json", "source.tar.gz", "start.sh"):
        assert (project / "job" / name).stat().st_mode & 0o077 == 0, name
    sources = cloudtrain.plan(cloudtrain.load("train.py"), "local").context.source
    assert sources.files == 2, "the export is not sent along"


# Questions and figures before money is spent: the worst case once, on a terminal; a plan without an
# account.

Asked = Callable[..., list[str]]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Confirms a plan on a terminal where somebody gives that answer; returns the questions."""

    def confirm(plan: Plan, answer: str = "y") -> list[str]:
        questions: list[str] = []

        def prompt(text: str) -> str:
            questions.append(text)
            return answer

        screen = Terminal()
        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("sys.stderr", screen)
        monkeypatch.setattr("click.termui.visible_prompt_func", prompt)
        try:
            confirm_plan(plan)
        finally:
            questions[:] = [screen.getvalue() + "".join(questions)] if questions else []
        return questions

    return confirm


def on_aws(monkeypatch: pytest.MonkeyPatch, **spec: object) -> Plan:
    for name, value in AWS_ACCOUNT.items():
        monkeypatch.setenv(name, value)
    return cloudtrain.plan(cloudtrain.load({"limits": {"max_runtime": "1 h"}, **spec}), "aws")


def test_a_job_that_costs_money_is_asked_about_once_with_its_worst_case(
    folder: Path, ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = on_aws(monkeypatch)
    assert plan.target.cost_estimate is not None
    assert f"Start it, for at most {plan.target.cost_estimate.worst_usd:.2f} USD?" in ask(plan)[0]
    with pytest.raises(RefusedError, match="not confirmed; nothing was started"):
        ask(plan, "n")


def test_a_job_of_a_training_plan_costs_nothing_more(
    folder: Path, ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: dict[str, Any] = {
        "resources": {"instance": {"aws": "ml.p4d.24xlarge"}},
        "aws": {"training_plan": "arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine"},
    }
    plan = on_aws(monkeypatch, **reserved, limits={"max_cost": "1 USD"})
    [line] = cost(plan)
    assert line.startswith("nothing more: the training plan is paid in advance; stops after 1 d")
    assert ask(plan) == []
    billed = {"BillableTimeInSeconds": 3600, **plan.request.document}
    assert billing(billed, 25.0) == Billing(billable_seconds=3600, usd=0.0)

    sweep = {
        "objective": {"metric": "val_loss", "goal": "minimize"},
        "space": {"lr": [0.1, 0.2]},
        "trials": 2,
        "budget": {"max_cost": "1 USD"},
    }
    plan = on_aws(monkeypatch, **reserved, limits={}, sweep=sweep)
    assert [issue.line() for issue in sweep_issues(plan) if issue.is_error] == []


def test_a_job_that_tries_a_training_plan_first_may_cost_what_the_other_machines_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine"
    reserved = {"training_plan": {"ml.p5.48xlarge": arn}}
    limits = {"max_cost": "100 USD"}
    second = {"instance": {"aws": "ml.p4d.24xlarge"}}
    both = {"instance": {"aws": ["ml.p5.48xlarge", "ml.p4d.24xlarge"]}}
    alone = on_aws(monkeypatch, resources=second, limits=limits)
    plan = on_aws(monkeypatch, resources=both, limits=limits, aws=reserved)
    on_demand, most = cost(alone)
    assert cost(plan) == [f"0 to {on_demand}; paid in advance: ml.p5.48xlarge", most]
    stopping = alone.request.document["StoppingCondition"]
    assert plan.request.document["StoppingCondition"] == stopping


def test_an_unknown_price_is_said_to_be_one(
    folder: Path, ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = on_aws(monkeypatch, resources={"instance": {"aws": "ml.new.large"}, "gpus": 0})
    assert "What it will cost is not known" in ask(plan)[0]


def test_nothing_is_asked_of_a_job_that_is_free_or_where_nobody_can_answer(
    folder: Path, ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = on_aws(monkeypatch)
    assert ask(cloudtrain.plan(cloudtrain.load({}), "local")) == []
    assert ask(cloudtrain.plan(cloudtrain.load({}), "local", as_="aws")) == []
    (folder / "cloudtrain.toml").write_text("confirm = false\n")
    assert len(ask(plan)) == 1  # a folder does not spend money unasked
    monkeypatch.setenv("CLOUDTRAIN_CONFIRM", "false")
    assert ask(plan) == []
    monkeypatch.setattr("sys.stdin", io.StringIO())
    confirm_plan(plan)  # without a terminal it continues


REDIRECTED = "[aws]\nbucket = 'theirs'\nregion = 'us-east-1'\n"


def redirected_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan whose bucket is of the folder's own settings; its cost is not asked about."""
    plan = on_aws(monkeypatch)
    monkeypatch.delenv("CLOUDTRAIN_AWS_BUCKET")
    monkeypatch.setenv("CLOUDTRAIN_CONFIRM", "false")
    (folder / "cloudtrain.toml").write_text(REDIRECTED)
    return plan


def test_what_a_folder_redirects_is_asked_about_once(
    folder: Path, ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = redirected_plan(folder, monkeypatch)
    with pytest.raises(RefusedError, match="not confirmed; nothing was started"):
        ask(plan, "n")

    [question] = ask(plan)
    assert "aws.bucket = theirs" in question
    assert "region" not in question
    assert ask(plan) == []

    (folder / "cloudtrain.toml").write_text(REDIRECTED.replace("theirs", "another"))
    [question] = ask(plan)
    assert "aws.bucket = another" in question


def test_what_a_folder_redirects_is_printed_where_nobody_can_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = redirected_plan(folder, monkeypatch)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for _ in range(2):
        confirm_plan(plan)
        assert "aws.bucket = theirs" in capsys.readouterr().err


def test_only_what_the_provider_of_the_job_uses_is_asked_about(
    folder: Path, ask: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    redirected_plan(folder, monkeypatch)
    assert ask(cloudtrain.plan(cloudtrain.load({}), "local")) == []
    assert ask(cloudtrain.plan(cloudtrain.load({}), "local", as_="aws")) == []


@pytest.mark.parametrize(
    ("provider", "shown"),
    [("aws", "USD/h on demand"), ("azure", "USD/h on demand")],
)
def test_a_plan_without_an_account_shows_machines_and_price(
    folder: Path, provider: str, shown: str
) -> None:
    result = call(
        "plan", "train.py", "--provider", provider, "--gpus", "1", "--gpu", "A100-80GB,L4,T4,A10G"
    )
    assert (result.code, result.err) == (0, "")
    assert shown in result.out
    assert f"note: {provider}." in result.out
    assert "not set, shown as placeholders" in result.out


@pytest.mark.parametrize("provider", ["aws", "azure"])
def test_no_request_with_placeholders_can_be_sent(folder: Path, provider: str) -> None:
    job = cloudtrain.load("train.py")
    plan = cloudtrain.plan(job, provider, preview=True)
    with pytest.raises(
        RefusedError, match="not set: this plan is for looking at only; nothing was started"
    ):
        cloudtrain.submit(plan)
    with pytest.raises(SpecError, match="is not set"):
        cloudtrain.plan(job, provider)
    result = call("plan", "train.py", "--provider", provider, "--json")
    assert (result.code, '"error"' in result.out, "not-set-yet" in result.out) == (2, True, False)


def test_a_profile_gives_its_region_and_is_kept_for_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.setenv(name, "another")
    aws = Path.home() / ".aws"
    aws.mkdir(parents=True)
    (aws / "config").write_text("[profile work]\nregion = eu-west-3\n")
    shown = call("plan", "train.py", "--provider", "aws", "--profile", "work").out
    assert "aws.region eu-west-3  ← ~/.aws/config:2, profile work" in shown
    plan = cloudtrain.plan(cloudtrain.load("train.py"), "aws", preview=True)
    config = plan.target.config_as(AwsConfig)
    assert (config.profile, profile_of(config)) == ("work", "")
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name)
    assert profile_of(config) == "work"


CONFIG = """[default]
region=eu-north-1   # home
[profile work]
role_arn = arn:aws:iam::123456789012:role/x
s3 =
    region = no-where-1
region = eu-west-3
[profile empty]
output = json
"""
SUBSCRIPTION = "12345678-1234-1234-1234-123456789abc"
PROFILE = {
    "subscriptions": [{"id": "other", "isDefault": False}, {"id": SUBSCRIPTION, "isDefault": True}]
}
AZURE = (
    "[cloud]\nname = AzureCloud\n[defaults]\ngroup = my-group\nworkspace=my-workspace\nlocation ="
    " westeurope\n"
)
REGIONS: dict[str, tuple[Mapping[str, str], tuple[str, str] | None]] = {
    "the default profile": ({}, ("eu-north-1", "~/.aws/config:2, profile default")),
    "a profile": ({"AWS_PROFILE": "work"}, ("eu-west-3", "~/.aws/config:7, profile work")),
    "boto3's older name of it": (
        {"AWS_PROFILE": "empty", "AWS_DEFAULT_PROFILE": "work"},
        ("eu-west-3", "~/.aws/config:7, profile work"),
    ),
    "a profile without one": ({"AWS_PROFILE": "empty"}, None),
    "a variable": (
        {"AWS_PROFILE": "work", "AWS_REGION": "us-west-2"},
        ("us-west-2", "environment AWS_REGION"),
    ),
}


@pytest.fixture
def files(own_home: Path) -> Path:
    """A home with the files of both command lines."""
    write(own_home, {".aws/config": CONFIG, ".azure/config": AZURE})
    (own_home / ".azure/azureProfile.json").write_text(json.dumps(PROFILE), encoding="utf-8-sig")
    return own_home


@pytest.mark.parametrize("case", REGIONS.values(), ids=REGIONS.keys())
@pytest.mark.usefixtures("files")
def test_the_region_is_that_of_awss_own_tools(
    case: tuple[Mapping[str, str], tuple[str, str] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, expected = case
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cli_default_region() == expected


def test_the_workspace_is_that_of_azures_command_line(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli_default_account() == {
        "subscription": (SUBSCRIPTION, "~/.azure/azureProfile.json"),
        "resource_group": ("my-group", "~/.azure/config:4"),
        "workspace": ("my-workspace", "~/.azure/config:5"),
        "location": ("westeurope", "~/.azure/config:6"),
    }
    assert workspace_of(load_settings(tmp_path)) == (SUBSCRIPTION, "my-group", "my-workspace")
    (files / ".azure/azureProfile.json").write_text("{broken")
    assert "subscription" not in cli_default_account()

    monkeypatch.setenv("AZURE_DEFAULTS_GROUP", "mine")
    group = ("mine", "environment AZURE_DEFAULTS_GROUP")
    assert cli_default_account()["resource_group"] == group
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
    assert cli_default_account() == {"resource_group": group}


def planned(provider: str, tmp_path: Path, **sections: object) -> Plan:
    folder = write(tmp_path / "job", {"train.py": ""})
    (folder / "job.yaml").write_text(
        json.dumps(
            {"name": "d", "entrypoint": "train.py", "limits": {"max_runtime": "1 h"}, **sections}
        )
    )
    return cloudtrain.plan(
        cloudtrain.load(folder / "job.yaml"), provider, data_dir=str(tmp_path / "data")
    )


@pytest.mark.usefixtures("files")
def test_what_the_spec_or_the_settings_say_counts_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-west-1")
    monkeypatch.setenv("CLOUDTRAIN_AZURE_WORKSPACE", "settings-own")
    aws = {
        "region": "us-east-2",
        "role": "arn:aws:iam::123456789012:role/train",
        "bucket": "my-bucket",
    }
    assert planned("aws", tmp_path, aws=aws).target.where == "us-east-2"
    target = planned("azure", tmp_path, azure={"location": "eastus"}).target
    config = target.config_as(AzureConfig)
    assert (config.location, config.workspace, config.resource_group) == (
        "eastus",
        "settings-own",
        "my-group",
    )
    assert sorted(target.borrowed) == ["azure.resource_group", "azure.subscription"]
