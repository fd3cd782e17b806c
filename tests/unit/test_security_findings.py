"""Security warnings of `check`, and secrets in plain text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import cloudtrain
from cloudtrain.api.preflight import preflight, secret_arguments, security_issues
from cloudtrain.api.rehearsals import without_varying
from cloudtrain.errors import SpecError
from cloudtrain.planning.plan import Plan
from cloudtrain.spec.fields import read_arguments
from cloudtrain_wire.secret_values import SecretMasker, is_secret_variable, secrets_in
from tests.support.in_process import call

# A security review of a job: warnings of `check` at their lines; strict settings refuse it.

AWS: dict[str, Any] = {
    "region": "us-east-1",
    "role": "arn:aws:iam::123456789012:role/train",
    "bucket": "my-bucket",
}
AZURE: dict[str, Any] = {
    "subscription": "00000000-0000-0000-0000-000000000000",
    "resource_group": "rg",
    "workspace": "ws1",
    "location": "eastus",
}
SAFE_AWS = {
    **AWS,
    "subnets": ["subnet-0123456789abcdef0"],
    "security_groups": ["sg-0123456789abcdef0"],
    "network_isolation": True,
    "encrypt_traffic": True,
    "kms_key": "arn:aws:kms:us-east-1:123456789012:key/01234567-89ab-cdef-0123-456789abcdef",
}
SAFE_AZURE = {**AZURE, "compute": "gpu-cluster", "identity": "managed"}
TOKEN = {"HF_TOKEN": {"aws": "secretsmanager:hf", "azure": "keyvault:vault/hf"}}
pytestmark = pytest.mark.usefixtures("folder")


def spec(section: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A job on two machines."""
    name = "azure" if "workspace" in section else "aws"
    job = {"name": "digits", "entrypoint": "train.py", "limits": {"max_runtime": "1 h"}}
    return {**job, "resources": {"nodes": 2, "gpus": 1}, **more, name: section}


def plan_of(job: dict[str, Any], **options: Any) -> Plan:
    return cloudtrain.plan(cloudtrain.load(job), "azure" if "azure" in job else "aws", **options)


def findings(job: dict[str, Any]) -> list[str]:
    """The fields that there are findings about."""
    return [issue.field for issue in security_issues(plan_of(job))]


def test_a_safe_job_has_no_findings() -> None:
    assert findings(spec(SAFE_AWS)) == []
    assert findings(spec(SAFE_AZURE)) == []


def test_an_ordinary_job_has_all_of_prowlers_four() -> None:
    assert findings(spec(AWS)) == [
        "aws.subnets",
        "aws.network_isolation",
        "aws.encrypt_traffic",
        "aws.kms_key",
    ]
    assert findings(spec(AZURE)) == ["azure.compute", "azure.identity"]


@pytest.mark.parametrize(
    ("job", "fields"),
    [
        (spec(SAFE_AWS | {"encrypt_traffic": False}), ["aws.encrypt_traffic"]),
        (spec(SAFE_AWS | {"encrypt_traffic": False}, resources={"nodes": 1, "gpus": 1}), []),
        (spec(SAFE_AWS | {"kms_key": None}), ["aws.kms_key"]),
        (spec(SAFE_AWS | {"network_isolation": False}), ["aws.network_isolation"]),
        (spec(SAFE_AWS | {"network_isolation": False}, secrets=TOKEN), []),
        (spec(SAFE_AWS | {"network_isolation": False}, dependencies=["einops"]), []),
        (
            spec(SAFE_AWS | {"network_isolation": False}, dependencies=["--no-index", "einops"]),
            ["aws.network_isolation"],
        ),
        (spec(SAFE_AWS | {"network_isolation": False, "remote_debug": True}), ["aws.remote_debug"]),
        (spec(SAFE_AZURE | {"services": ["tensorboard"]}), []),
        (spec(SAFE_AZURE | {"services": ["jupyter"]}), ["azure.services"]),
        (spec(SAFE_AZURE | {"compute": None}), ["azure.compute", "azure.compute"]),
        (spec(SAFE_AZURE | {"compute": None, "identity": "user"}), ["azure.compute"]),
        (
            spec(SAFE_AZURE | {"compute": None, "identity": None}, secrets=TOKEN),
            ["azure.compute"] * 2,
        ),
        (spec(SAFE_AZURE | {"identity": None}), ["azure.identity"]),
        (spec(SAFE_AZURE | {"identity": None}, secrets=TOKEN), []),
    ],
)
def test_each_finding_is_about_the_field_that_sets_it_right(
    job: dict[str, Any], fields: list[str]
) -> None:
    assert findings(job) == fields


@pytest.mark.parametrize("dependencies", [["--no-index", "--find-links wheels", "einops"], "none"])
def test_isolated_nodes_install_wheels_that_are_sent(dependencies: Any) -> None:
    issues = plan_of(spec(SAFE_AWS, dependencies=dependencies)).issues
    assert not [issue for issue in issues if issue.is_error]


def test_a_rehearsal_sends_nothing_and_has_none() -> None:
    assert security_issues(plan_of(spec(AWS), as_=None)) != []
    assert security_issues(cloudtrain.plan(cloudtrain.load(spec(AWS)), "local", as_="aws")) == []


def test_findings_are_warnings_of_check_and_no_concern_of_plan(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        yaml.safe_dump(spec(AWS, env={"HF_TOKEN": "abc"}), sort_keys=False)
    )
    assert len(json.loads(call("check", "--provider", "aws", "--json").out)["warnings"]) == 5
    assert not plan_of(spec(AWS)).issues


@pytest.mark.parametrize("section", [AWS, AZURE], ids=["aws", "azure"])
def test_strict_settings_refuse_the_job_before_it_is_sent(
    section: dict[str, Any], folder: Path
) -> None:
    (folder / "cloudtrain.toml").write_text('policy = "strict"\n')
    plan = plan_of(spec(section))
    assert {issue.severity for issue in security_issues(plan)} == {"error"}
    assert all("policy" in str(issue.hint) for issue in security_issues(plan))
    with pytest.raises(SpecError) as refused:
        cloudtrain.submit(plan)
    assert [issue.field for issue in refused.value.issues] == [
        issue.field for issue in security_issues(plan)
    ]
    safe = plan_of(spec(SAFE_AZURE if section is AZURE else SAFE_AWS))
    assert not [issue for issue in preflight(safe, starting=False) if issue.is_error]


# Secrets in plain text among variables and arguments are reported, and `plan` does not print them.

HF_TOKEN = "hf_" + "abcDEF123" * 4


def masked(value: Any) -> Any:
    """The value as it is shown."""
    masker = SecretMasker()
    masker.add(secrets_in(value))
    return masker.mask_json(value)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("--api-key", "0123456789ab"), ("--api-key", "***")),
        (("--api_key=0123456789ab",), ("--api_key=***",)),
        (("--name", HF_TOKEN), ("--name", "***")),
        ((HF_TOKEN,), ("***",)),
        (("--db", "postgres://me:pw@host/x"), ("--db", "postgres:***host/x")),
        (("--db", "postgres://me:hunter2@host/x"), ("--db", "postgres://me:***@host/x")),
        (("https://a.blob/x?sp=r&sig=aB3%2F9",), ("https://a.blob/x?sp=r&sig=***",)),
        (("--password", "hunter2"), ("--password", "***")),
        (("--apiKey=0123456789ab",), ("--apiKey=***",)),
        (("bash", "-c", "login --password hunter2 x"), ("bash", "-c", "login --password *** x")),
        (("env={DB_PASSWORD: hunter2, A: 1}",), ("env={DB_PASSWORD: ***, A: 1}",)),
        (("export API_KEY='0123 456' x",), ("export API_KEY='***' x",)),
        (("model.hub_token=0123456789ab",), ("model.hub_token=***",)),
        (("+model.token=0123456789ab",), ("+model.token=***",)),
        ((f"Authorization: Bearer {HF_TOKEN}",), ("Authorization: Bearer ***",)),
        ((f'{{"token": "{HF_TOKEN}"}}',), ('{"token": "***"}',)),
        (("--password", "correcthorse", "--lr", "3"), ("--password", "***", "--lr", "3")),
    ],
)
def test_an_argument_that_is_probably_a_secret_is_hidden(
    argv: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    assert masked(list(argv)) == list(shown)


@pytest.mark.parametrize(
    "argv",
    [
        ("--max-token", "100000000"),
        ("--pad_token", "<|endoftext|>"),
        ("--mask-token", "[MASK-ALL]"),
        ("--instance-token", "sks"),
        ("--api-key", "$API_KEY_OF_MINE"),
        ("--credentials", "/home/me/keys.json"),
        ("--tokenizer", "bert-base-uncased"),
        ("--data", "s3://bucket/a@b/c"),
        ("--use-auth-token", "--epochs", "3"),
        ("--model", "/models/sk-ensemble-of-twenty-trees"),
        ("data.path=s3://bucket/tokens", "model.pad_token=[PAD-HF_TOKEN]"),
        ('{"url": "http://host", "ratio": "1:2@3"}',),
        ("--url", "abfss://container@account.dfs.core.windows.net/x"),
    ],
)
def test_an_argument_that_is_not_a_secret_is_shown(argv: tuple[str, ...]) -> None:
    assert masked(list(argv)) == list(argv)


def test_a_variable_is_recognised_by_its_name_or_its_value() -> None:
    assert is_secret_variable("HF_TOKEN", "x")
    assert is_secret_variable("WHATEVER", HF_TOKEN)
    assert is_secret_variable("HEADER", f"Bearer {HF_TOKEN}")
    assert not is_secret_variable("MAX_TOKENS", "100")
    assert not is_secret_variable("HF_TOKEN", "")


def test_each_secret_argument_is_named_at_its_field() -> None:
    named = read_arguments({"lr": 1, "api_key": "0123456789ab"})
    listed = read_arguments(["--api-key", "0123456789ab", "x", "--token=0123456789ab", HF_TOKEN])
    assert list(secret_arguments(named)) == [(("args", "api_key"), "api_key")]
    assert list(secret_arguments(listed)) == [
        (("args", 1), "api-key"),
        (("args", 3), "token"),
        (("args", 4), ""),
    ]
    command = ["python", "train.py", "--api-key", "0123456789ab"]
    assert list(secret_arguments(read_arguments([]), command)) == [(("entrypoint",), "api-key")]


@pytest.mark.parametrize("where", [["local"], ["aws"], ["local", "--as", "aws"]])
def test_plan_reports_a_token_in_arguments_and_does_not_print_it(
    folder: Path, where: list[str]
) -> None:
    text = f"entrypoint: train.py\nargs: {{api_key: {HF_TOKEN}}}\nenv: {{HF_TOKEN: {HF_TOKEN}}}\n"
    (folder / "job.yaml").write_text(text)
    result = call("plan", "--provider", *where)
    assert result.code == 0, result.err
    assert HF_TOKEN not in result.out + result.err
    assert result.out.count("looks like a secret") == 2

    (folder / "job.yaml").write_text(f"launcher: none\nentrypoint: echo --api-key {HF_TOKEN}\n")
    result = call("plan", "--provider", *where)
    assert HF_TOKEN not in result.out + result.err
    assert "looks like a secret" in result.out


def test_the_exact_request_holds_secrets_and_names_them_but_a_diff_masks_them(
    folder: Path,
) -> None:
    job = f"args: {{api-key: 0123456789ab, lr: 0.1}}\nenv: {{HF_TOKEN: {HF_TOKEN}}}\n"
    (folder / "job.yaml").write_text(f"entrypoint: train.py\n{job}")
    result = call("plan", "--provider", "local", "--json")
    assert result.out.count(HF_TOKEN) == 1
    assert '"0123456789ab"' in result.out

    other = result.out.replace('"0.1"', '"0.2"').replace('THREADS": "', 'THREADS": "9')
    (folder.parent / "other.json").write_text(other)
    changed = call("plan", "--provider", "local", "--diff", "../other.json").out
    assert '"HF_TOKEN": "***"' in changed
    assert changed.count('"***"') >= 2
    assert HF_TOKEN not in changed
    assert "0123456789ab" not in changed
    (folder.parent / "other.json").write_text(result.out.replace(HF_TOKEN, HF_TOKEN[::-1]))
    changed = call("plan", "--provider", "local", "--diff", "../other.json").out
    assert changed == "only secrets differ\n"


def test_the_console_shows_no_secret_among_the_arguments() -> None:
    plan = plan_of(spec(SAFE_AWS, args={"epochs": 3, "api_key": "0123456789abcdef0123"}))
    assert plan.request.document["HyperParameters"] == {"epochs": "3"}


def test_strict_settings_refuse_a_token_in_arguments(folder: Path) -> None:
    (folder / "cloudtrain.toml").write_text('policy = "strict"\n')
    job = cloudtrain.load({"entrypoint": "train.py", "args": {"api_key": HF_TOKEN}})
    plan = cloudtrain.plan(job, "local")
    (issue,) = [issue for issue in plan.issues if issue.is_error]
    assert issue.field == "args.api_key"
    with pytest.raises(SpecError):
        cloudtrain.submit(plan)


@pytest.mark.parametrize("name", ["one", "a", "name", "run", "digits-k2x9"])
def test_a_short_run_id_varies_alone(name: str) -> None:
    document = {
        "name": name,
        "uri": f"s3://bucket/runs/{name}/out",
        "command": "None, nameless, rune",
    }
    expected = {**document, "name": "{run}", "uri": "s3://bucket/runs/{run}/out"}
    assert without_varying(document, name) == expected


def test_a_variable_that_no_shell_expands_gives_a_warning() -> None:
    args = {"local_rank": "$RANK", "text": "costs $5 or $HOME/x", "data": "${inputs.x}"}
    plan = plan_of(spec(SAFE_AZURE, args=args, inputs={"x": "azureml:a:1"}))
    warned = [issue for issue in plan.issues if issue.path[:1] == ("args",)]
    assert [issue.field for issue in warned] == ["args.local_rank"]
