"""Secrets in plain text among variables and arguments are reported, and `plan` does not print them."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import SpecError
from cloudtrain.spec.fields import read_arguments
from cloudtrain.spec.plain_secrets import (
    hide_secrets,
    hide_setting,
    is_secret_variable,
    secret_arguments,
)
from tests.support.in_process import call

TOKEN = "hf_" + "abcDEF123" * 4


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("--api-key", "0123456789ab"), ("--api-key", "***")),
        (("--api_key=0123456789ab",), ("--api_key=***",)),
        (("--name", TOKEN), ("--name", "***")),
        ((TOKEN,), ("***",)),
        (("--db", "postgres://me:pw@host/x"), ("--db", "***")),
        (("model.hub_token=0123456789ab",), ("model.hub_token=***",)),
        (("+model.token=0123456789ab",), ("+model.token=***",)),
        (("--header", f"Authorization: Bearer {TOKEN}"), ("--header", "***")),
        ((f'{{"token": "{TOKEN}"}}',), ("***",)),
        (("--password", "correcthorse", "--lr", "3"), ("--password", "***", "--lr", "3")),
    ],
)
def test_an_argument_that_is_probably_a_secret_is_hidden(
    argv: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    assert hide_secrets(argv) == list(shown)


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
        ("data.path=s3://bucket/tokens", "model.pad_token=[PAD-TOKEN]"),
        ('{"url": "http://host", "ratio": "1:2@3"}',),
    ],
)
def test_an_argument_that_is_not_a_secret_is_shown(argv: tuple[str, ...]) -> None:
    assert hide_secrets(argv) == list(argv)


def test_a_variable_is_recognised_by_its_name_or_its_value() -> None:
    assert is_secret_variable("HF_TOKEN", "x")
    assert is_secret_variable("WHATEVER", TOKEN)
    assert is_secret_variable("HEADER", f"Bearer {TOKEN}")
    assert not is_secret_variable("MAX_TOKENS", "100")
    assert not is_secret_variable("HF_TOKEN", "")


def test_each_secret_argument_is_named_at_its_field() -> None:
    named = read_arguments({"lr": 1, "api_key": "0123456789ab"})
    listed = read_arguments(["--api-key", "0123456789ab", "x", "--token=0123456789ab", TOKEN])
    assert list(secret_arguments(named)) == [(("args", "api_key"), "api_key")]
    assert list(secret_arguments(listed)) == [
        (("args", 1), "api-key"),
        (("args", 3), "token"),
        (("args", 4), ""),
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path.parent / "data"))
    return tmp_path


@pytest.mark.parametrize("where", [["local"], ["aws"], ["local", "--as", "aws"]])
def test_plan_reports_a_token_in_arguments_and_does_not_print_it(
    folder: Path, where: list[str]
) -> None:
    text = f"entrypoint: train.py\nargs: {{api_key: {TOKEN}}}\nenv: {{HF_TOKEN: {TOKEN}}}\n"
    (folder / "job.yaml").write_text(text)
    result = call("plan", "--provider", *where)
    assert result.code == 0, result.err
    assert TOKEN not in result.out + result.err
    assert "job.yaml:2:8: args.api_key: looks like a secret" in result.out
    assert "job.yaml:3:7: env.HF_TOKEN: looks like a secret" in result.out


def test_a_mistake_in_an_override_does_not_repeat_a_token(folder: Path) -> None:
    (folder / "job.yaml").write_text("entrypoint: train.py\nargs: [x]\n")
    result = call("check", "--set", f"args.api_key={TOKEN}")
    assert result.code == 2
    assert TOKEN not in result.out + result.err


def test_strict_settings_refuse_a_token_in_arguments(folder: Path) -> None:
    (folder / "cloudtrain.toml").write_text('policy = "strict"\n')
    job = cloudtrain.load({"entrypoint": "train.py", "args": {"api_key": TOKEN}})
    plan = cloudtrain.plan(job, "local")
    (issue,) = [issue for issue in plan.issues if issue.is_error]
    assert issue.field == "args.api_key"
    with pytest.raises(SpecError, match="looks like a secret"):
        cloudtrain.submit(plan)


def test_runs_side_by_side_do_not_show_a_token() -> None:
    assert hide_setting("args.api_key", TOKEN) == "***"
    assert hide_setting("env.HF_TOKEN", TOKEN) == "***"
    assert hide_setting("args.lr", 0.1) == 0.1
