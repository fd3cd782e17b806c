"""Looking at images in a strict registry: every way it asks who one is, what it has, what is said where it does not."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import DENIED, CloudError, RefusedError
from cloudtrain.providers.cloud.registry import Found, Login
from cloudtrain.submission.registry import login_for, look, refuse_missing
from tests.fakes.images import DOCKER, INDEXES, OCI, Stored
from tests.fakes.registry import Registry

ME = Login("me", "secret:with a colon")
MODES: tuple[Any, ...] = ("nothing", "basic", "bearer")


@pytest.fixture(params=MODES)
def registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    """One that asks for nothing, one that asks for a password, one that asks for a token."""
    with Registry(request.param) as made:
        yield made


@pytest.fixture
def bearer() -> Iterator[Registry]:
    with Registry("bearer") as made:
        yield made


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which `docker login` keeps what it was told."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker" / "config.json"


def log_in(kept: Path, registry: Registry, login: Login = ME) -> None:
    proof = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
    kept.write_text(json.dumps({"auths": {registry.host: {"auth": proof}}}))


def test_what_docker_login_has_kept_is_shown_where_it_is_asked_for(registry: Registry, kept: Path) -> None:
    digest = registry.put("team/train", "1", "amd64")
    log_in(kept, registry)
    found = look(f"{registry.host}/team/train:1")
    assert found == Found(digest, frozenset({"amd64"}))
    assert [call.operation for call in registry.blobs.calls] == ["Get"]


def test_the_wrong_password_is_told_and_what_to_do(registry: Registry, kept: Path) -> None:
    registry.put("team/train", "1", "amd64")
    log_in(kept, registry, Login("me", "wrong"))
    if registry.asks == "nothing":
        assert look(f"{registry.host}/team/train:1")
        return
    with pytest.raises(CloudError, match=rf"does not let us look at {registry.host}/team/train") as refused:
        look(f"{registry.host}/team/train:1")
    assert refused.value.code == DENIED
    assert (refused.value.hint or "").startswith(f"docker login {registry.host}")


def test_without_a_login_what_is_public_is_seen_and_what_is_private_is_not(registry: Registry, kept: Path) -> None:
    registry.public = {"open/train"}
    for name in ("open/train", "closed/train"):
        registry.put(name, "1", "amd64")
    assert look(f"{registry.host}/open/train:1")
    if registry.asks == "nothing":
        return
    with pytest.raises(CloudError) as refused:
        look(f"{registry.host}/closed/train:1")
    assert refused.value.code == DENIED


def test_a_tag_and_a_repository_that_are_not_there_are_nothing(registry: Registry, kept: Path) -> None:
    log_in(kept, registry)
    digest = registry.put("team/train", "1", "amd64")
    assert look(f"{registry.host}/team/train@{digest}") == look(f"{registry.host}/team/train:1")
    for other in ("team/train:2", "team/other:1", f"team/train@sha256:{'0' * 64}"):
        assert look(f"{registry.host}/{other}") is None


def test_where_a_registry_sends_us_gets_what_we_take_and_no_login(
    bearer: Registry, plain: Registry, kept: Path
) -> None:
    log_in(kept, bearer)
    bearer.put("train", "1", "amd64")
    bearer.elsewhere = plain
    digest = plain.put("train", "1", "arm64", "amd64")
    found = look(f"{bearer.host}/train:1")
    assert found == Found(digest, frozenset({"arm64", "amd64"}))
    assert [call.operation for call in plain.calls] == ["GetManifest"]


@pytest.mark.parametrize("asks", ["basic", "bearer"])
def test_nobody_but_the_registry_that_was_asked_may_ask_for_the_login(asks: Any, plain: Registry, kept: Path) -> None:
    log_in(kept, plain)
    plain.put("train", "1", "amd64")
    with Registry(asks) as other:
        plain.elsewhere = other
        said = rf"{other.host}, where the registry {plain.host} sends us, answered 401"
        with pytest.raises(CloudError, match=said):
            look(f"{plain.host}/train:1")
        assert [call.operation for call in other.calls] == ["GetManifest"]
    assert [call.operation for call in plain.calls] == ["GetManifest"]


def test_an_image_is_known_by_its_digest_where_its_configuration_cannot_be_had(plain: Registry) -> None:
    digest = plain.put("train", "1", "amd64")
    plain.blobs.fault("error")
    assert look(f"{plain.host}/train:1") == Found(digest, frozenset())


def test_one_token_does_for_the_manifest_and_its_configuration(bearer: Registry, kept: Path) -> None:
    log_in(kept, bearer)
    bearer.put("train", "1", "amd64")
    look(f"{bearer.host}/train:1")
    assert [call.operation for call in bearer.calls] == ["GetManifest", "GetToken", "GetManifest", "GetBlob"]


def test_a_token_may_be_called_an_access_token(bearer: Registry, kept: Path) -> None:
    log_in(kept, bearer)
    bearer.put("train", "1", "amd64")
    bearer.token_field = "access_token"
    assert look(f"{bearer.host}/train:1")


@pytest.fixture
def plain(kept: Path) -> Iterator[Registry]:
    """A registry that asks for nothing."""
    with Registry() as made:
        yield made


@pytest.mark.parametrize("kind", [OCI, DOCKER])
@pytest.mark.parametrize("architectures", [("arm64",), ("amd64", "arm64")])
def test_the_processors_of_an_image_and_of_an_index_are_known(
    plain: Registry, kind: str, architectures: tuple[str, ...]
) -> None:
    digest = plain.put("train", "1", *architectures, kind=kind)
    found = look(f"{plain.host}/train:1")
    assert found == Found(digest, frozenset(architectures))


def test_a_digest_that_the_registry_does_not_tell_is_that_of_the_text(plain: Registry) -> None:
    digest = plain.put("train", "1", "amd64")
    plain.says_digest = False
    found = look(f"{plain.host}/train:1")
    assert found is not None
    assert found.digest == digest


@pytest.mark.parametrize("said", ["{}", "no JSON", "[]", '{"manifests": [1]}', '{"config": {}}', '{"config": 1}'])
def test_a_thing_that_is_no_image_is_there_for_nobody_knows_what(plain: Registry, said: str) -> None:
    plain.put_manifest("train", "1", Stored(INDEXES[OCI], said.encode()))
    found = look(f"{plain.host}/train:1")
    assert found is not None
    assert found.architectures == frozenset()
    refuse_missing(f"{plain.host}/train:1", "amd64")


@pytest.mark.parametrize(("kind", "code"), [("error", "500"), ("throttle", "429"), ("denied", DENIED)])
def test_an_answer_that_is_none_is_told(plain: Registry, kind: Any, code: str) -> None:
    plain.fault(kind)
    with pytest.raises(CloudError) as failed:
        look(f"{plain.host}/train:1")
    assert failed.value.code == code


def test_a_connection_that_breaks_is_told(plain: Registry) -> None:
    plain.fault("lost")
    with pytest.raises(CloudError, match="cannot be reached"):
        look(f"{plain.host}/train:1")


def nobody() -> str:
    """A host and port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_proxy_is_no_way_to_this_machine(plain: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.put("train", "1", "amd64")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{nobody()}")
    assert look(f"{plain.host}/train:1")


def test_a_registry_that_is_not_there_is_told(kept: Path) -> None:
    with pytest.raises(CloudError, match=r"the registry 127.0.0.1:\d+ cannot be reached: .*refused") as failed:
        look(f"{nobody()}/train:1")
    assert failed.value.code == "Unreachable"


def test_a_port_where_something_else_answers_is_told(kept: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(CloudError, match="cannot be reached"):
            look(f"127.0.0.1:{server.getsockname()[1]}/train:1")
        thread.join()


def test_a_password_is_not_sent_in_the_clear_to_wherever_a_registry_points(bearer: Registry, kept: Path) -> None:
    log_in(kept, bearer)
    bearer.put("train", "1", "amd64")
    bearer.realm = "http://tokens.example.com/token"
    with pytest.raises(CloudError, match="it asks for"):
        look(f"{bearer.host}/train:1")


def test_a_token_service_of_another_host_may_refuse_a_login(bearer: Registry, kept: Path) -> None:
    log_in(kept, bearer, Login("me", "wrong"))
    bearer.put("train", "1", "amd64")
    with Registry("bearer") as tokens:
        bearer.realm = f"{tokens.url}/token"
        with pytest.raises(CloudError, match=rf"does not let us look at {bearer.host}/train") as refused:
            look(f"{bearer.host}/train:1")
        assert [call.operation for call in tokens.calls] == ["GetToken"]
    assert refused.value.code == DENIED


def test_a_token_service_that_has_nothing_is_no_word_about_the_image(bearer: Registry, kept: Path) -> None:
    log_in(kept, bearer)
    bearer.put("train", "1", "amd64")
    bearer.realm = f"{bearer.url}/elsewhere"
    with pytest.raises(CloudError):
        look(f"{bearer.host}/train:1")


def test_an_image_that_is_not_there_is_refused_in_words(plain: Registry) -> None:
    with pytest.raises(RefusedError, match=f"there is no image {plain.host}/train:1 in its registry") as refused:
        refuse_missing(f"{plain.host}/train:1", "amd64")
    assert "cloudtrain image push" in (refused.value.hint or "")
    assert (refused.value.hint or "").endswith("nothing was started")


def test_an_image_for_other_machines_is_refused_in_words(plain: Registry) -> None:
    plain.put("train", "1", "arm64")
    refuse_missing(f"{plain.host}/train:1", "arm64")
    with pytest.raises(RefusedError, match=r"train:1 is for arm64, the machines are amd64") as refused:
        refuse_missing(f"{plain.host}/train:1", "amd64")
    assert "docker build --platform linux/amd64" in (refused.value.hint or "")
    plain.put("train", "1", "arm64", "amd64")
    refuse_missing(f"{plain.host}/train:1", "amd64")


def test_a_registry_that_does_not_answer_us_may_answer_the_cloud(plain: Registry) -> None:
    refuse_missing(f"{nobody()}/train:1", "amd64")
    plain.fault("denied")
    refuse_missing(f"{plain.host}/train:1", "amd64")


@pytest.mark.filterwarnings("ignore:docker-credential-no-such-helper not installed")
def test_nobody_logs_in_where_nobody_has(kept: Path) -> None:
    assert login_for("127.0.0.1:1") is None
    kept.write_text("no JSON")
    assert login_for("127.0.0.1:1") is None
    kept.write_text(json.dumps({"auths": {}, "credHelpers": {"127.0.0.1:1": "no-such-helper"}}))
    assert login_for("127.0.0.1:1") is None
