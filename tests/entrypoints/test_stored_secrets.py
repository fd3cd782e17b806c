"""AWS secrets are read from their stores, errors do not contain the value, and a stop does not wait
for an answer.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest

from cloudtrain_launcher.stored_secrets import look_up
from tests.entrypoints.conftest import REGION, SECRET
from tests.entrypoints.test_launcher import events, finish, start

pytest.importorskip("boto3")

ENVIRON = {"AWS_REGION": REGION}

pytestmark = [pytest.mark.usefixtures("aws")]


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("secretsmanager:hf-token", SECRET),
        ("secretsmanager:ARN", SECRET),
        ("secretsmanager:team/db#password", SECRET),
        ("secretsmanager:team/db#port", "5432"),
        ("ssm:/path/b", SECRET),
    ],
)
def test_a_secret_is_read_from_its_store(reference: str, value: str, aws: dict[str, str]) -> None:
    assert look_up({"TOKEN": reference.replace("ARN", aws["ARN"])}, ENVIRON) == {"TOKEN": value}


def test_the_region_is_that_of_the_arn_the_environment_or_the_job(aws: dict[str, str]) -> None:
    assert look_up({"T": f"secretsmanager:{aws['ARN']}"}, {"AWS_REGION": "us-east-1"}) == {
        "T": SECRET
    }
    job = {"TRAINING_JOB_ARN": f"arn:aws:sagemaker:{REGION}:123456789012:training-job/j"}
    assert look_up({"T": "ssm:/path/b"}, job) == {"T": SECRET}
    with pytest.raises(RuntimeError, match="NoRegionError"):
        look_up({"T": "ssm:/path/b"}, {})


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "secretsmanager:nope",
            (
                "in eu-west-1: ResourceNotFoundException; the job's role needs"
                " secretsmanager:GetSecret"
            ),
        ),
        (
            "ssm:/nope",
            (
                "in eu-west-1: ParameterNotFound; the job's role needs ssm:GetParameter (and"
                " kms:Decrypt"
            ),
        ),
        ("secretsmanager:picture", "is binary"),
        ("secretsmanager:zero", "contains a zero byte"),
        ("secretsmanager:hf-token#key", "is not a JSON object: remove #key from the reference"),
        ("secretsmanager:team/db#nope", "has no field 'nope'"),
        (
            "vault:a/b",
            "cannot read 'vault:a/b'; write secretsmanager:NAME, ssm:NAME or keyvault:VAULT/NAME",
        ),
        ("ssm:", "cannot read 'ssm:'"),
    ],
)
def test_an_error_names_the_variable_the_reference_and_what_to_do(
    reference: str, message: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        look_up({"FIRST": "ssm:/path/b", "B": reference}, ENVIRON)
    assert "secret B" in str(caught.value)
    assert reference in str(caught.value)
    assert message in str(caught.value)
    assert SECRET not in repr(caught.getrepr(style="long"))


def test_without_boto3_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(
        RuntimeError,
        match=r"secret HF_TOKEN \(.*\) needs boto3.*add boto3 to the image",
    ):
        look_up({"HF_TOKEN": "secretsmanager:hf-token"}, ENVIRON)


def test_a_launcher_whose_secret_is_missing_fails_before_torchrun(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        "print('never')",
        secrets={"A": f"ssm:arn:aws:ssm:{REGION}:123456789012:parameter/nope"},
    )
    text = finish(process)
    assert process.returncode == 1
    assert "secret A (ssm:arn:aws:ssm:" in events(text)[-1]["error"]["message"]
    assert "never" not in text


def test_sigterm_stops_a_launcher_whose_endpoint_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        process = start(tmp_path, "print('never')", secrets={"A": "ssm:/path/b"})
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            text = finish(process)
    assert process.returncode == 5
    assert events(text)[-1]["outcome"] == "stopped"
    assert "never" not in text
