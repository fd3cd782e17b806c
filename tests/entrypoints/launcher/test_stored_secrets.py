"""Stored secrets are read with the job's identity, and errors contain no value."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cloudtrain_launcher import stored_secrets
from cloudtrain_launcher.stored_secrets import look_up
from cloudtrain_wire.ports import free_port
from tests.entrypoints.conftest import REGION, SECRET
from tests.entrypoints.launcher.platforms import MSI_SECRET, TOKEN, Vault, refusal, serving
from tests.entrypoints.launchers import events, finish, start
from tests.support.waiting import HANG_SECONDS

ENVIRON = {"AWS_REGION": REGION}


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
@pytest.mark.usefixtures("aws")
def test_an_error_names_the_variable_the_reference_and_what_to_do(
    reference: str, message: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        look_up({"FIRST": "ssm:/path/b", "B": reference}, ENVIRON)

    assert "secret B" in str(caught.value)
    assert reference in str(caught.value)
    assert message in str(caught.value)
    assert SECRET not in repr(caught.getrepr(style="long"))


@pytest.mark.usefixtures("aws")
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


@pytest.mark.usefixtures("aws")
def test_sigterm_stops_a_launcher_whose_endpoint_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(HANG_SECONDS)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        process = start(tmp_path, "print('never')", secrets={"A": "ssm:/path/b"})
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            text = finish(process)

    assert process.returncode == 5
    assert events(text)[-1]["outcome"] == "stopped"
    assert "never" not in text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    pytest.importorskip("cryptography")
    with serving(tmp_path_factory.mktemp("vault")) as vault:
        yield vault


@pytest.fixture
def vault(server: Vault, monkeypatch: pytest.MonkeyPatch) -> Vault:
    """A vault with the secret hf-token; trusted, and without delay between retries."""
    server.requests.clear()
    server.answers.clear()
    server.answers["/msi"] = [(200, {"access_token": TOKEN, "expires_on": "1795000000"})]
    server.answers["/secrets/hf-token"] = [(200, {"value": SECRET, "id": "x"})]
    monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
    monkeypatch.setattr(stored_secrets, "BACKOFF_SECONDS", (0.0, 0.0, 0.0))
    return server


def failure(vault: Vault, path: str = "hf-token", **environ: str) -> str:
    """The message of a failed look-up, which contains no secret."""
    with pytest.raises(RuntimeError) as caught:
        look_up({"B": vault.reference(path)}, vault.environ(**environ))

    shown = str(caught.getrepr(style="long"))
    assert not [word for word in (SECRET, TOKEN, MSI_SECRET) if word in shown]
    assert str(caught.value).startswith(f"secret B ({vault.reference(path)}): ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("v-1/hf-token", "https://v-1.vault.azure.net/secrets/hf-token"),
        ("v-1/hf-token/0a1b", "https://v-1.vault.azure.net/secrets/hf-token/0a1b"),
        ("https://v.vault.azure.cn/secrets/a", "https://v.vault.azure.cn/secrets/a"),
        ("https://v.vault.azure.cn/secrets/a/0a1b/", "https://v.vault.azure.cn/secrets/a/0a1b"),
    ],
)
def test_a_name_is_a_vault_and_a_secret_or_a_url(name: str, url: str) -> None:
    assert stored_secrets.secret_url("x", name) == f"{url}?api-version=7.4"


@pytest.mark.parametrize(
    "name",
    ["a", "/a", "a/", "a.b/c", "a/b/c/d", "a/b?x=1", "http://v.vault.azure.net/secrets/a", "https://v/keys/a",
     "https://me:pw@v/secrets/a", "https://v/secrets/a?x=1", "https://v/secrets/../a", "a@b/c", "a/b\n"],
)  # fmt: skip
def test_an_invalid_name_is_reported_before_any_request(name: str) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"(?s)secret B .*: does not name a Key Vault secret; write keyvault:VAULT/NAME,",
    ):
        look_up({"B": f"keyvault:{name}"}, {})


@pytest.mark.parametrize(
    ("host", "cloud"),
    [
        ("v.vault.azure.net", "vault.azure.net"),
        ("v.vault.azure.cn", "vault.azure.cn"),
        ("v.vault.usgovcloudapi.net", "vault.usgovcloudapi.net"),
        ("v.example.org", "vault.azure.net"),
        ("localhost:8443", "vault.azure.net"),
    ],
)
def test_the_token_is_for_the_cloud_of_the_vault(host: str, cloud: str) -> None:
    assert stored_secrets.token_audience(f"https://{host}/secrets/a") == cloud


def test_one_token_of_the_managed_identity_is_used_for_all_secrets(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not for addresses on the node itself.
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    vault.answers["/secrets/db/0a1b"] = [
        (200, {"value": json.dumps({"user": "u", "password": SECRET, "port": 5432})})
    ]
    paths = {"T": "hf-token", "P": "db/0a1b#password", "N": "db/0a1b#port"}
    environ = vault.environ(DEFAULT_IDENTITY_CLIENT_ID="client-1")
    values = look_up({name: vault.reference(path) for name, path in paths.items()}, environ)
    assert values == {"T": SECRET, "P": SECRET, "N": "5432"}
    (requested,) = vault.asked("http")
    assert parse_qs(urlsplit(requested).query) == {
        "api-version": ["2017-09-01"],
        "resource": ["https://vault.azure.net"],
        "clientid": ["client-1"],
    }
    assert vault.requests[0].headers["secret"] == MSI_SECRET
    assert vault.asked("https") == [
        f"/secrets/{path.partition('#')[0]}?api-version=7.4" for path in paths.values()
    ]
    for scheme, _, headers, _ in vault.requests:
        assert headers.get("authorization") == (f"Bearer {TOKEN}" if scheme == "https" else None)
        assert ("secret" in headers) == (scheme == "http")


def test_microsofts_library_sends_the_same_token_request(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = pytest.importorskip("azure.identity")
    environ = vault.environ(DEFAULT_IDENTITY_CLIENT_ID="client-1")
    look_up({"T": vault.reference("hf-token")}, environ)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with identity.ManagedIdentityCredential(client_id="client-1") as credential:
        assert credential.get_token("https://vault.azure.net/.default").token == TOKEN

    mine, yours = (request for request in vault.requests if request.scheme == "http")
    assert parse_qs(urlsplit(mine.path).query) == parse_qs(urlsplit(yours.path).query)
    assert mine.headers["secret"] == yours.headers["secret"]


def test_with_the_users_identity_the_token_is_requested_on_their_behalf(vault: Vault) -> None:
    vault.answers["/obo"] = [(200, {"token": TOKEN, "expiresOn": "2026-11-20T00:00:00Z"})]
    environ = vault.environ(OBO_ENDPOINT=vault.identity.replace("/msi", "/obo?v=1"))
    assert look_up({"T": vault.reference("hf-token")}, environ) == {"T": SECRET}
    (requested,) = vault.asked("http")
    assert urlsplit(requested).path == "/obo"
    assert parse_qs(urlsplit(requested).query) == {
        "v": ["1"],
        "resource": ["https://vault.azure.net"],
    }
    assert "secret" not in vault.requests[0].headers


def test_transient_errors_are_retried(vault: Vault) -> None:
    vault.answers["/msi"].insert(0, (500, "<html>"))
    vault.answers["/secrets/hf-token"][:0] = [(429, refusal("Throttled")), (503, "")]
    assert look_up({"T": vault.reference("hf-token")}, vault.environ()) == {"T": SECRET}
    assert (len(vault.asked("http")), len(vault.asked("https"))) == (2, 3)


@pytest.mark.parametrize(
    ("status", "answer", "message", "requests"),
    [
        (403, refusal("Forbidden", "ForbiddenByRbac"),
         "answered 403 (ForbiddenByRbac): the job's identity, of the vault's tenant, needs the role", 1),
        (403, refusal("Forbidden", "ForbiddenByFirewall"), "(ForbiddenByFirewall): open the vault's firewall", 1),
        (403, refusal("Forbidden", "SecretDisabled"), "says that the secret is disabled (SecretDisabled)", 1),
        (403, refusal(SECRET), "answered 403: ", 1),
        (404, refusal("SecretNotFound"), "has no such secret or version (SecretNotFound)", 1),
        (307, "", "answered 307, without a value", 1),
        (200, {"value": 7}, "answered 200, without a value", 1),
        pytest.param(200, "[" * 100_000, "answered 200, without a value", 1, id="deep"),
        (503, "", "answered 503", 4),
    ],
)  # fmt: skip
def test_a_refusal_of_the_vault_is_reported_with_what_to_do(
    vault: Vault, status: int, answer: Any, message: str, requests: int
) -> None:
    vault.answers["/secrets/hf-token"] = [(status, answer)]
    error = failure(vault)
    assert vault.host in error
    assert message in error
    assert len(vault.asked("https")) == requests
    assert len(vault.asked("http")) == 1, "the token, and no redirect"


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (400, refusal("IdentityNotFound"), "answered 400 (IdentityNotFound)"),
        (200, {"access_token": f"{TOKEN}\r\nX: y"}, "answered 200"),
    ],
)
def test_a_missing_token_is_reported_with_what_the_job_needs(
    vault: Vault, status: int, answer: Any, why: str
) -> None:
    vault.answers["/msi"] = [(status, answer)]
    error = failure(vault)
    assert (
        f"no token for the compute's identity: the node's own endpoint {why}; set `azure:"
        " {identity: " in error
    )
    assert vault.asked("https") == []


def test_an_unreachable_or_untrusted_vault_is_reported(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = vault.host
    vault.host = f"localhost:{free_port()}"
    try:
        assert "cannot be reached (Connection refused); let the job reach the vault" in failure(
            vault
        )
    finally:
        vault.host = real

    monkeypatch.delenv("SSL_CERT_FILE")
    assert "its certificate is not trusted here: self" in failure(vault)
    assert vault.asked("https") == []


def test_a_stop_ends_the_wait_for_a_vault_that_does_not_answer(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_secrets, "BACKOFF_SECONDS", (600.0,))
    vault.answers["/secrets/hf-token"] = [(503, "")]
    began = time.monotonic()
    values = look_up(
        {"T": vault.reference("hf-token")}, vault.environ(), lambda: time.monotonic() > began + 0.5
    )
    assert values == {}
    assert time.monotonic() - began < HANG_SECONDS
