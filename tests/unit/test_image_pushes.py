"""Pushing without an engine: what engines of both kinds say of a digest, and the logins that docker
has kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloudtrain.errors import CloudError, CloudtrainError, UsageError
from cloudtrain.providers.docker.engine import Engine, stored_login
from cloudtrain.providers.docker.registry import login_for, require_image
from cloudtrain.providers.shared.registry import TOKEN_USER, RegistryLogin

DIGEST = f"sha256:{'ab' * 32}"
OTHER = f"sha256:{'cd' * 32}"
SENDING: list[dict[str, Any]] = [
    {"status": "The push refers to repository [127.0.0.1:5000/own]"},
    {"status": "Pushing", "id": "a1", "progressDetail": {"current": 50, "total": 100}},
    {"status": "Pushing", "id": "b2", "progressDetail": {"total": 200}},
    {"status": "Pushing", "id": "a1", "progressDetail": {"current": 120, "total": 100}},
    {"status": "Layer already exists", "id": "c3", "progressDetail": {}},
]
SAID: dict[str, Any] = {"status": f"1: digest: {DIGEST} size: 528"}
ENDS: dict[str, list[dict[str, Any]]] = {
    "docker's own store": [
        SAID,
        {"progressDetail": {}, "aux": {"Tag": "1", "Digest": DIGEST, "Size": 528}},
    ],
    "containerd's store": [{"aux": {"manifestPushedInsteadOfIndex": True}}, SAID],
    "several": [{"status": f"1: digest: {OTHER} size: 528"}, SAID],
}


def engine(messages: list[dict[str, Any]]) -> Engine:
    api = SimpleNamespace(tag=lambda *_: True, push=lambda *_, **__: iter(messages))
    return Engine(cast("Any", SimpleNamespace(api=api)))


@pytest.mark.parametrize("kind", ENDS)
def test_the_digest_is_known_from_what_either_kind_of_engine_says(kind: str) -> None:
    reported: list[tuple[int, int]] = []
    pushing = engine([*SENDING, *ENDS[kind]])
    assert (
        pushing.push("own", "127.0.0.1:5000/own:1", None, lambda *amounts: reported.append(amounts))
        == DIGEST
    )
    assert reported == [(50, 100), (50, 300), (100, 300)]


def test_a_push_that_says_no_digest_has_failed() -> None:
    with pytest.raises(CloudError, match="ended without a digest"):
        engine(SENDING).push("own", "127.0.0.1:5000/own:1", None, None)


def test_an_error_after_the_digest_is_one() -> None:
    with pytest.raises(CloudError, match="denied"):
        engine([*SENDING, SAID, {"error": "denied"}]).push(
            "own", "127.0.0.1:5000/own:1", None, None
        )


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file where `docker login` stores credentials."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def helper(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """A program that keeps logins for docker, and has this one for everybody."""
    program = folder / "docker-credential-tests"
    program.write_text(f"#!/bin/sh\n[ \"$1\" = get ] || exit 1\nprintf %s '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    "where", [{"credsStore": "tests"}, {"credHelpers": {"host:5000": "tests"}}]
)
def test_a_login_in_a_store_of_the_system_is_found(
    config: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any]
) -> None:
    helper(
        config.parent, monkeypatch, '{"ServerURL":"host:5000","Username":"me","Secret":"secret"}'
    )
    config.write_text(json.dumps({"auths": {"host:5000": {}}, **where}))
    assert stored_login("host:5000") == RegistryLogin("me", "secret")


def test_what_az_acr_login_leaves_is_a_login_to_azures_registries(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(config.parent, monkeypatch, '{"ServerURL":"x","Username":"<token>","Secret":"refresh"}')
    for text in (
        {"credsStore": "tests"},
        {"auths": {"mine.azurecr.io": {"auth": "", "identitytoken": "refresh"}}},
    ):
        config.write_text(json.dumps(text))
        assert stored_login("mine.azurecr.io") == RegistryLogin(TOKEN_USER, "refresh")
        assert stored_login("host:5000") is None


@pytest.mark.parametrize("auth", ["bm9jb2xvbg==", "no base64", "/w=="])
def test_a_login_that_is_none_is_no_traceback(config: Path, auth: str) -> None:
    config.write_text(json.dumps({"auths": {"host:5000": {"auth": auth}}}))
    assert stored_login("host:5000") is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            CloudError("no Docker engine answers at unix:///var/run/docker.sock"),
            "no Docker engine answers",
        ),
        (
            UsageError("containers and images need Docker's SDK, which is not installed"),
            "need Docker's SDK",
        ),
    ],
)
def test_without_an_engine_an_image_is_not_looked_up_and_that_is_reported(
    monkeypatch: pytest.MonkeyPatch, config: Path, error: CloudtrainError, message: str
) -> None:
    def engine(_: float) -> None:
        raise error

    monkeypatch.setattr("cloudtrain.providers.docker.registry.docker_engine", engine)
    messages: list[str] = []
    assert require_image("registry.example.com/train:1", "amd64", messages.append) == ""
    [note] = messages
    assert message in note


@pytest.mark.filterwarnings("ignore:docker-credential-no-such-helper not installed")
def test_without_stored_credentials_there_is_no_login(config: Path) -> None:
    assert login_for("127.0.0.1:1") is None
    config.write_text("no JSON")
    assert login_for("127.0.0.1:1") is None
    config.write_text(json.dumps({"auths": {}, "credHelpers": {"127.0.0.1:1": "no-such-helper"}}))
    assert login_for("127.0.0.1:1") is None
