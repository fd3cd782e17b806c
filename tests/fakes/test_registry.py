"""Looking up images by the Docker engine in a strict registry: who one is, what it has, what is
said where it fails.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloudtrain.errors import CloudError, CloudtrainError, RefusedError, UsageError
from cloudtrain.providers.shared.registry import RegistryImage, RegistryLogin
from cloudtrain.submission.registry import inspect_image, login_for, require_image
from tests.fakes.images import DOCKER, INDEXES, OCI, Manifest
from tests.fakes.registry import Registry

if TYPE_CHECKING:
    from docker.client import DockerClient

ME = RegistryLogin("me", "secret:with a colon")
MODES: tuple[Any, ...] = ("nothing", "basic", "bearer")


@pytest.fixture(params=MODES)
def registry(request: pytest.FixtureRequest, docker: DockerClient) -> Iterator[Registry]:
    """One that asks for nothing, one that asks for a password, one that asks for a token."""
    with Registry(request.param) as made:
        yield made


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file where `docker login` stores credentials."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker" / "config.json"


def log_in(config: Path, registry: Registry, login: RegistryLogin = ME) -> None:
    proof = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
    config.write_text(json.dumps({"auths": {registry.host: {"auth": proof}}}))


def test_what_docker_login_has_kept_is_shown_where_it_is_asked_for(
    registry: Registry, config: Path
) -> None:
    digest = registry.put("team/train", "1", "amd64", kind=DOCKER)
    log_in(config, registry)
    image = inspect_image(f"{registry.host}/team/train:1")
    assert image == RegistryImage(digest, frozenset({"amd64"}))


def test_a_wrong_password_is_reported(registry: Registry, config: Path) -> None:
    registry.put("team/train", "1", "amd64")
    log_in(config, registry, RegistryLogin("me", "wrong"))
    if registry.auth == "nothing":
        assert inspect_image(f"{registry.host}/team/train:1")
        return
    with pytest.raises(
        CloudError,
        match=rf"could not look up {registry.host}/team/train:1: .*(unauthorized|incorrect)",
    ):
        inspect_image(f"{registry.host}/team/train:1")


def test_a_missing_tag_or_repository_is_not_found(registry: Registry, config: Path) -> None:
    log_in(config, registry)
    digest = registry.put("team/train", "1", "amd64")
    assert inspect_image(f"{registry.host}/team/train@{digest}") == inspect_image(
        f"{registry.host}/team/train:1"
    )
    for reference in ("team/train:2", "team/other:1", f"team/train@sha256:{'0' * 64}"):
        assert inspect_image(f"{registry.host}/{reference}") is None


@pytest.fixture
def plain(config: Path, docker: DockerClient) -> Iterator[Registry]:
    """A registry that asks for nothing."""
    with Registry() as made:
        yield made


@pytest.mark.parametrize("architectures", [("arm64",), ("amd64", "arm64")])
def test_the_architectures_of_an_image_and_of_an_index_are_read(
    plain: Registry, architectures: tuple[str, ...]
) -> None:
    digest = plain.put("train", "1", *architectures, kind=DOCKER)
    image = inspect_image(f"{plain.host}/train:1")
    assert image == RegistryImage(digest, frozenset(architectures))


def nobody() -> str:
    """Return a host and port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_missing_image_is_refused_with_a_message(plain: Registry) -> None:
    with pytest.raises(
        RefusedError, match=f"there is no image {plain.host}/train:1 in its registry"
    ) as refused:
        require_image(f"{plain.host}/train:1", "amd64")
    assert "cloudtrain image push" in (refused.value.hint or "")
    assert (refused.value.hint or "").endswith("nothing was started")


def test_an_image_for_another_architecture_is_refused_with_a_message(plain: Registry) -> None:
    plain.put("train", "1", "arm64", kind=DOCKER)
    require_image(f"{plain.host}/train:1", "arm64")
    with pytest.raises(
        RefusedError, match=r"train:1 is for arm64, the machines are amd64"
    ) as refused:
        require_image(f"{plain.host}/train:1", "amd64")
    assert "docker build --platform linux/amd64" in (refused.value.hint or "")
    plain.put("train", "1", "arm64", "amd64")
    require_image(f"{plain.host}/train:1", "amd64")


def test_a_registry_that_only_the_cloud_may_reach_is_a_warning(plain: Registry) -> None:
    for image, why in ((f"{nobody()}/train:1", "refused"), (f"{plain.host}/odd:1", "index")):
        plain.put_manifest("odd", "1", Manifest(INDEXES[OCI], b'{"config": 1}'))
        messages: list[str] = []
        assert require_image(image, "amd64", messages.append) == ""
        [note] = messages
        assert note.startswith(
            f"the image {image} is not looked up before the start: Docker could not look up"
        )
        assert why in note


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

    monkeypatch.setattr("cloudtrain.submission.registry.docker_engine", engine)
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
