"""One secret in each place that a spec, a flag, a file or a setting has for it: no text shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.in_process import call

SECRET = "Zq7-9f8e7d6c5b4a3"
AWS = "role: arn:aws:iam::123456789012:role/x, bucket: my-bucket, region: us-east-1"
AZURE = "subscription: 00000000-0000-0000-0000-000000000000, resource_group: r, workspace: w"
JOB = "name: job\nentrypoint: train.py\nlimits: {max_runtime: 1 h}\n"

SPECS = {
    "variable": f"env: {{DB_PASSWORD: {SECRET}}}",
    "variable of a wrong type": f"env: {{DB_PASSWORD: [{SECRET}]}}",
    "address": f"env: {{URL: 'postgres://me:{SECRET}@host/x'}}",
    "argument": f"args: {{api_key: {SECRET}}}",
    "nested argument": f"args: {{login: {{api_key: {SECRET}}}}}",
    "words": f"args: [--api-key, {SECRET}, --password={SECRET}]",
    "setup": f"setup: ['export API_KEY={SECRET}', login --password '{SECRET}']",
    "tag": f"tags: {{api_key: {SECRET}}}",
    "member of AWS": f"aws: {{{AWS}, request: {{Environment: {{A_TOKEN: {SECRET}}}}}}}",
    "member of Azure": f"azure: {{{AZURE}, request: {{environment_variables: {{A_TOKEN: {SECRET}}}}}}}",
    "input": f"inputs: {{x: 'https://me:{SECRET}@host/x?sig={SECRET}'}}",
    "package": f"dependencies: [--extra-index-url=https://u:{SECRET}@host/simple, numpy]",
    "command": f"launcher: none\nentrypoint: [env, API_KEY={SECRET}, python, --token, {SECRET}]",
    "stored secret": f"secrets: {{HF: {{local: '{SECRET}', aws: 'ssm:{SECRET}'}}}}",
    "unknown key": f"login: {{password: {SECRET}}}",
    "resources": f"resources: {{nodes: 'postgres://me:{SECRET}@host/x'}}",
    "not YAML": f"env: {{API_KEY: {SECRET}",
}
FLAGS = {
    "argument": ["--set", f"args.api_key={SECRET}"],
    "flag and value in one": [f"--set=args.api_key={SECRET}"],
    "variable": ["--set", f"env={{DB_PASSWORD: {SECRET}}}"],
    "words": ["--set", f"args=[--api-key,{SECRET}]"],
    "unknown key": ["--set", f"nonsense.PASSWORD={SECRET}"],
    "secret": ["--set", f"secrets.HF={SECRET}"],
    "program": ["--", f"--api-key={SECRET}", "--password", SECRET],
    "unknown option": [f"--password={SECRET}"],
}
FILES = {
    "option": ("requirements.txt", f"--extra-index-url https://u:{SECRET}@host/simple\nnumpy\n"),
    "package": ("requirements.txt", f"pkg @ git+https://u:{SECRET}@host/x.git\n"),
    "invalid package": ("requirements.txt", f"pkg=1 @ https://u:{SECRET}@host/x.git\n"),
    "project": (
        "pyproject.toml",
        f"[project]\ndependencies = ['p @ https://u:{SECRET}@h/x.whl']\n",
    ),
    "setting": ("cloudtrain.toml", f"[aws]\nhub_token = '{SECRET}'\n"),
    "setting of a wrong type": ("cloudtrain.toml", f"[aws]\nregion = {{ TOKEN = '{SECRET}' }}\n"),
    "address": ("cloudtrain.toml", f"python = 'https://u:{SECRET}@host/x'\n"),
}
COMMANDS = (["plan"], ["check"], ["submit", "--dry-run"], ["sweep", "--dry-run"])

pytestmark = pytest.mark.usefixtures("folder")


def read_everything(*flags: str) -> None:
    """Run each command that judges the job here and on both clouds, and look for the secret."""
    for provider in ("local", "aws", "azure"):
        for words in COMMANDS:
            result = call(*words, "--provider", provider, *flags)
            assert SECRET not in result.out + result.err, (words, provider)


@pytest.mark.parametrize("text", SPECS.values(), ids=SPECS)
def test_a_secret_in_a_spec_is_not_shown(text: str, folder: Path) -> None:
    job = JOB.replace("entrypoint: train.py\n", "") if "entrypoint:" in text else JOB
    (folder / "job.yaml").write_text(f"{job}{text}\n")
    read_everything()


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_a_secret_in_a_flag_is_not_shown(flags: list[str], folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB)
    read_everything(*flags)


@pytest.mark.parametrize(("name", "text"), FILES.values(), ids=FILES)
def test_a_secret_in_a_file_is_not_shown(name: str, text: str, folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB)
    (folder / name).write_text(text)
    read_everything()


def test_a_secret_in_a_variable_of_a_setting_is_not_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "job.yaml").write_text(JOB)
    monkeypatch.setenv("CLOUDTRAIN_STOP_GRACE", f"https://u:{SECRET}@host/x")
    monkeypatch.setenv("CLOUDTRAIN_AWS_HUB_TOKEN", SECRET)
    read_everything()


def test_the_exact_request_alone_holds_it_as_it_is(folder: Path) -> None:
    (folder / "job.yaml").write_text(f"{JOB}env: {{DB_PASSWORD: {SECRET}}}\n")
    result = call("plan", "--provider", "local", "--json")
    assert SECRET in result.out
    assert SECRET not in result.err
