"""A job without a file, and questions and figures before money is spent."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.cli.submit import _confirm
from cloudtrain.errors import RefusedError, SpecError, UsageError
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.aws.config import AwsConfig, profile_of
from cloudtrain.spec.sources import job_folder
from tests.support.in_process import call
from tests.support.samples import AWS_ACCOUNT

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
    with pytest.raises(UsageError, match="src: is a folder without"):
        cloudtrain.load("src")


def test_a_script_needs_no_init(project: Path) -> None:
    refused = call("init", "train.py")
    assert (refused.code, "cloudtrain submit train.py needs no job.yaml" in refused.err) == (
        2,
        True,
    )


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


def test_a_mistake_in_a_flag_is_told_at_the_flag(project: Path) -> None:
    result = call("plan", "train.py", "--gpus", "1", "--gpu", "A100-80")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(
        "--gpu A100-80: resources.gpu: unknown GPU 'A100-80' (did you mean 'A100-80GB'?)"
    )


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
            _confirm(plan)
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
    assert ask(plan) == []
    (folder / "cloudtrain.toml").unlink()
    monkeypatch.setattr("sys.stdin", io.StringIO())
    _confirm(plan)  # without a terminal it continues


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
