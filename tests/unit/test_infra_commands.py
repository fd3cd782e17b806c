"""`cloudtrain infra` over a provider in memory: what is shown, asked, done, and written to
cloudtrain.toml.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cloudtrain.providers
from cloudtrain.errors import CloudError
from cloudtrain.infrastructure import Infrastructure, Report
from cloudtrain.infrastructure.changes import (
    Change,
    ChangePlan,
    Deployment,
    IdleCost,
    Resource,
    ResourceEvent,
    SettingValue,
)
from cloudtrain.infrastructure.parameters import Parameter
from tests.support.in_process import call

BUCKET = Change(action="create", resource="Bucket", kind="bucket", holds_data=True,
                idle_cost=IdleCost(usd_per_month=None, note="0.023 per GB"))  # fmt: skip
KEY = Change(
    action="create",
    resource="Key",
    kind="key",
    idle_cost=IdleCost(usd_per_month=1.0, note="1 a key"),
)
ROLE = Change(action="create", resource="Role", kind="role")
SETTINGS: dict[str, SettingValue] = {
    "aws.bucket": "made-1",
    "aws.subnets": ("subnet-1", "subnet-2"),
}


class InMemory(Infrastructure):
    """One deployment that exists or not; `done` is what was called."""

    parameters = (
        Parameter(name="budget", meaning="US dollars a month", pattern=r"\d+", example="50"),
        Parameter(
            name="network",
            meaning="a network of its own",
            default="none",
            choices=("none", "new"),
            idle_usd_per_month={"new": 7.30},
        ),
    )
    formats = ("native", "terraform")

    def __init__(self) -> None:
        self.exists = False
        self.done: list[str] = []
        self.values: dict[str, str] = {}
        self.failure: BaseException | None = None
        self.denied = False
        self.settings = dict(SETTINGS)

    def plan_up(self, values: Mapping[str, str]) -> ChangePlan:
        self.values = dict(values)
        changes: tuple[Change, ...] = () if self.exists else (BUCKET, KEY, ROLE)
        if values.get("network") == "none":
            changes = (Change(action="delete", resource="Subnet", kind="subnet"),)
        return self._plan(changes, {"budget": "50"}, ("mind the gap",))

    def up(self, plan: ChangePlan, report: Report) -> Deployment:
        for change in plan.changes:
            report(
                ResourceEvent(
                    resource=change.resource, kind=change.kind, state="created", identity="made-1"
                )
            )
        if self.failure:
            raise self.failure
        self.done.append("up")
        self.exists = True
        if self.values.get("network") == "none":
            self.settings = {"aws.bucket": "made-1"}
        return self.show()

    def discard(self, plan: ChangePlan) -> None:
        self.done.append("discard")

    def show(self) -> Deployment:
        if self.denied:
            raise CloudError(
                "DescribeStacks: not authorized", hint="a permission", code="AccessDenied"
            )
        if not self.exists:
            return Deployment(provider="aws", name="cloudtrain", where="here", state="absent")
        resources = (
            Resource(name="Bucket", kind="bucket", identity="made-1", state="CREATE_COMPLETE"),
        )
        return Deployment(provider="aws", name="cloudtrain", where="here", state="ready", resources=resources,
                          outputs={"submitter policy": "arn:1"}, settings=self.settings,
                          parameters={"budget": "50", "network": "none"})  # fmt: skip

    def plan_down(self, *, delete_data: bool) -> ChangePlan:
        bucket = Change(action="delete" if delete_data else "keep", resource="Bucket", kind="bucket", holds_data=True,
                        identity="made-1", detail="" if delete_data else "--delete-data deletes it")  # fmt: skip
        role = Change(action="delete", resource="Role", kind="role")
        return self._plan(
            (bucket, *([role] if self.exists else [])) if self.done or self.exists else ()
        )

    def down(self, plan: ChangePlan, report: Report) -> None:
        self.done.append(
            "down " + " ".join(each.resource for each in plan.changes if each.action == "delete")
        )
        self.exists = False

    def template(self, format_: str) -> str:
        return f"the {format_} template\n"

    @staticmethod
    def _plan(
        changes: tuple[Change, ...], parameters: Any = None, notes: tuple[str, ...] = ()
    ) -> ChangePlan:
        return ChangePlan(provider="aws", name="cloudtrain", where="here", changes=changes, notes=notes,
                          parameters=parameters or {})  # fmt: skip


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InMemory:
    """The deployment that the commands of a test are about, in an empty folder."""
    made = InMemory()

    class Provider:
        def infrastructure(self, *_: object) -> Infrastructure:
            return made

    monkeypatch.setattr(cloudtrain.providers, "get_provider", lambda _: Provider())
    monkeypatch.chdir(tmp_path)
    return made


def toml() -> str:
    return Path("cloudtrain.toml").read_text() if Path("cloudtrain.toml").exists() else ""


def test_up_shows_the_plan_with_its_idle_cost_does_it_and_writes_the_settings(
    ground: InMemory,
) -> None:
    said = call("infra", "up", "--provider", "aws", "--yes", "--set", "network=new")
    assert (said.code, ground.done, ground.values) == (0, ["up"], {"network": "new"})
    assert said.out == "submitter policy: arn:1\n"
    for part in ("create  bucket", "0.023 per GB", "key: 1 a key", "while no job runs: 1.00 USD a month, and what is",
                 "note: mind the gap", "created   bucket (Bucket)  made-1", '+ bucket = "made-1"'):  # fmt: skip
        assert part in said.err
    assert toml() == '[aws]\nbucket = "made-1"\nsubnets = ["subnet-1", "subnet-2"]\n'


def test_up_twice_changes_nothing_and_asks_nothing(ground: InMemory) -> None:
    call("infra", "up", "--provider", "aws", "--yes")
    written = toml()
    said = call("infra", "up", "--provider", "aws")
    assert (said.code, toml()) == (0, written)
    assert "nothing to do" in said.err
    assert "cloudtrain.toml:" not in said.err


@pytest.mark.parametrize("words", [("up",), ("down",), ("down", "--delete-data")])
def test_nothing_is_done_where_nobody_can_be_asked(
    ground: InMemory, words: tuple[str, ...]
) -> None:
    ground.exists = words[0] == "down"
    said = call("infra", *words, "--provider", "aws")
    assert said.code == 3
    assert "nothing was changed" in said.err
    assert ground.done == (["discard"] if words[0] == "up" else [])
    assert toml() == ""


def test_a_dry_run_prints_the_plan_on_stdout_and_leaves_nothing_of_it(ground: InMemory) -> None:
    said = call("infra", "up", "--provider", "aws", "--dry-run")
    assert (said.code, said.err, ground.done) == (0, "", ["discard"])
    assert "create  bucket" in said.out
    document = json.loads(call("infra", "up", "--provider", "aws", "--dry-run", "--json").out)
    assert document["applied"] is False
    assert [each["action"] for each in document["plan"]["changes"]] == ["create"] * 3
    assert document["plan"]["idle_usd_per_month"] == 1.0


def test_json_is_all_there_is_on_stdout(ground: InMemory) -> None:
    document = json.loads(call("infra", "up", "--provider", "aws", "--yes", "--json").out)
    assert document["deployment"]["settings"] == {
        "aws.bucket": "made-1",
        "aws.subnets": ["subnet-1", "subnet-2"],
    }
    shown = json.loads(call("infra", "show", "--provider", "aws", "--json").out)
    assert shown == document["deployment"]
    assert (
        json.loads(call("infra", "down", "--provider", "aws", "--yes", "--json").out)["applied"]
        is True
    )


def test_show_tells_of_the_resources_and_the_settings(ground: InMemory) -> None:
    assert (
        call("infra", "show", "--provider", "aws").out
        == "aws: deployment cloudtrain in here does not exist\n"
    )
    ground.exists = True
    said = call("infra", "show", "--provider", "aws").out
    for part in (
        "is ready",
        "bucket  Bucket",
        "submitter policy: arn:1",
        '[aws]\nbucket = "made-1"',
    ):
        assert part in said


def test_down_keeps_data_unless_told_otherwise(ground: InMemory) -> None:
    ground.exists = True
    said = call("infra", "down", "--provider", "aws", "--yes")
    assert ground.done == ["down Role"]
    assert "keep" in said.err
    assert "--delete-data deletes it" in said.err
    ground.exists = True
    said = call("infra", "down", "--provider", "aws", "--yes", "--delete-data")
    assert ground.done[1:] == ["down Bucket Role"]
    assert "with all that is stored in it" in said.err


def test_a_setting_of_what_the_deployment_has_no_more_leaves_the_file(ground: InMemory) -> None:
    call("infra", "up", "--provider", "aws", "--yes")
    Path("cloudtrain.toml").write_text(toml() + "poll = 9\n")
    said = call("infra", "up", "--provider", "aws", "--yes", "--set", "network=none")
    assert said.code == 0
    assert '- subnets = ["subnet-1", "subnet-2"]' in said.err
    assert toml() == '[aws]\nbucket = "made-1"\npoll = 9\n'


def test_after_a_removal_the_settings_that_are_still_in_the_file_are_named(
    ground: InMemory,
) -> None:
    call("infra", "up", "--provider", "aws", "--yes")
    said = call("infra", "down", "--provider", "aws", "--yes")
    assert "cloudtrain.toml still has its settings: aws.bucket, aws.subnets" in said.err
    assert toml() != ""


def test_a_removal_of_nothing_says_that_nothing_has_the_name(ground: InMemory) -> None:
    said = call("infra", "down", "--provider", "aws", "--name", "lba")
    assert (said.code, ground.done) == (0, [])
    assert "nothing of that name; --name and --region look elsewhere" in said.err


def test_each_state_says_what_comes_next(ground: InMemory) -> None:
    said = call("infra", "show", "--provider", "aws", "--name", "lab", "--region", "here")
    assert (
        said.err == "next: cloudtrain infra up --provider aws --region here --name lab makes one\n"
    )
    ground.exists = True
    said = call("infra", "show", "--provider", "aws")
    assert said.err.startswith("next: cloudtrain doctor aws")
    assert "  chosen: budget=50\n" in said.out, "what is not as usual"


def test_who_may_not_even_look_is_told_who_may(ground: InMemory) -> None:
    ground.denied = True
    said = call("infra", "show", "--provider", "aws")
    assert said.code == 4
    assert "hint: a permission; setting up an account is for an administrator of it" in said.err


def test_without_a_command_the_help_is_shown_and_is_no_error_message() -> None:
    said = call("infra")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("Usage: cloudtrain infra")
    assert "error:" not in said.err


def test_a_failure_of_the_cloud_says_how_to_go_on(ground: InMemory) -> None:
    ground.failure = CloudError("Bucket: the name is taken")
    said = call("infra", "up", "--provider", "aws", "--yes", "--name", "lab")
    assert said.code == 4
    assert "error: Bucket: the name is taken" in said.err
    assert "cloudtrain infra up --provider aws --name lab" in said.err
    ground.failure = KeyboardInterrupt()
    said = call("infra", "up", "--provider", "aws", "--yes")
    assert said.code == 130
    assert "the cloud goes on by itself" in said.err


def test_what_can_be_chosen_is_explained_without_an_account(ground: InMemory) -> None:
    said = call("infra", "parameters", "--provider", "aws")
    assert said.code == 0
    assert said.out.splitlines() == [
        "cloudtrain infra up --provider aws --set KEY=VALUE; each key with its default:",
        "budget=",
        "    US dollars a month",
        "    such as: budget=50",
        "network=none",
        "    a network of its own",
        "    one of: none, new",
        "    new: 7.30 USD a month idle",
    ]
    found = json.loads(call("infra", "parameters", "--provider", "aws", "--json").out)["parameters"]
    assert [each["name"] for each in found] == ["budget", "network"]
    assert found[1]["idle_usd_per_month"] == {"new": 7.3}
    assert ground.done == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("budgt=1", "there is no parameter 'budgt' (did you mean 'budget'?)"),
        ("budget", "expected KEY=VALUE"),
        ("budget=ten", "expected a value such as 50, got 'ten'\nhint: US dollars a month"),
        ("network=nwe", "'nwe' is not one of none, new (did you mean 'new'?)"),
    ],
)
def test_a_wrong_parameter_is_told_before_the_cloud_is_asked(
    ground: InMemory, given: str, message: str
) -> None:
    said = call("infra", "up", "--provider", "aws", "--set", given, "--yes")
    assert said.code == 2
    assert message in said.err
    assert ground.done == []


def test_render_prints_the_template_of_each_format(ground: InMemory) -> None:
    assert call("infra", "render", "--provider", "aws").out == "the native template\n"
    assert (
        call("infra", "render", "--provider", "aws", "--format", "terraform").out
        == "the terraform template\n"
    )
    assert (
        "(did you mean 'terraform'?)"
        in call("infra", "render", "--provider", "aws", "--format", "teraform").err
    )


def test_a_provider_without_an_account_says_so() -> None:
    said = call("infra", "show", "--provider", "local")
    assert said.code == 2
    assert "the provider 'local' sets up no account" in said.err
