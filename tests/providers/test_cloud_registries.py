"""The clouds' registries, imitated: ECR by boto3, ACR by DefaultAzureCredential, and a submit's
requests to them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import DENIED, CloudError, RefusedError, UsageError
from cloudtrain.extras import install_command
from cloudtrain.planning.registry import TOKEN_USER, RegistryImage, RegistryLogin
from cloudtrain.providers.azure.sdk import registry_login
from cloudtrain.providers.docker.images import inspect_image, login_for, require_image
from tests.fakes.aws.cloud import IMAGE, Cloud
from tests.fakes.aws.ecr import PASSWORD
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.endpoint import Registry
from tests.providers.azure.operations import forget

HOST = IMAGE.partition("/")[0]
JOB = {"name": "looked", "entrypoint": "train.py", "limits": {"max_runtime": "1 h"}}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """AWS, where every job stays in its first phase."""
    with Cloud(phase_seconds=3600) as made:
        yield made


@pytest.fixture
def ecr(account: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """The same, and a job in this folder."""
    from cloudtrain.providers.aws.client import aws

    aws.cache_clear()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('never run')\n")
    return account


def calls(cloud: Cloud) -> list[str]:
    return [call.operation for call in cloud.endpoint.calls]


def submit(image: str) -> cloudtrain.Run:
    return cloudtrain.submit(cloudtrain.plan(cloudtrain.load({**JOB, "image": image}), "aws"))


def test_an_image_index_names_its_architectures(ecr: Cloud) -> None:
    digest = ecr.registry.images.put("own", "both", "arm64", "amd64")
    expected = RegistryImage(digest, frozenset({"arm64", "amd64"}))
    assert inspect_image(f"{HOST}/own:both") == expected
    assert calls(ecr) == ["BatchGetImage"]


def test_an_image_is_missing_only_when_ecr_says_so(
    ecr: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ecr.registry, "failure", "KmsError")
    with pytest.raises(CloudError, match="does not say whether it has train"):
        inspect_image(IMAGE)
    require_image(IMAGE, "amd64")


def test_without_permission_to_read_ecr_a_submit_succeeds(ecr: Cloud) -> None:
    ecr.endpoint.fault("denied", "ecr", "BatchGetImage", times=9)
    with pytest.raises(CloudError):
        inspect_image(IMAGE)
    assert submit(IMAGE).status().state == "pending"


def test_a_submit_with_an_ecr_image_inspects_it_and_starts(ecr: Cloud) -> None:
    submit(IMAGE)
    assert calls(ecr) == [
        "BatchGetImage",
        "GetDownloadUrlForLayer",
        "PutObject",
        "PutObject",
        "CreateTrainingJob",
    ]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("train:9", "no image .* in its registry"),
        ("arm:1", "is for arm64, the machines are"),
    ],
)
def test_an_image_that_cannot_work_is_refused_before_the_job_starts(
    ecr: Cloud, image: str, message: str
) -> None:
    ecr.registry.images.put("arm", "1", "arm64")
    with pytest.raises(RefusedError, match=message):
        submit(f"{HOST}/{image}")
    assert {call.service for call in ecr.endpoint.calls} == {"ecr"}
    assert cloudtrain.list_runs() == []


def test_a_login_to_ecr_is_a_name_and_a_password(ecr: Cloud) -> None:
    assert login_for(HOST) == RegistryLogin("AWS", PASSWORD)
    assert calls(ecr) == ["GetAuthorizationToken"]
    assert PASSWORD not in repr(login_for(HOST))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file where `docker login` stores credentials, still empty."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


ME = {"auth": "bWU6c2VjcmV0"}


def test_where_no_token_of_ecr_is_to_be_had_docker_login_does(ecr: Cloud, config: Path) -> None:
    ecr.endpoint.fault("denied", "ecr", "GetAuthorizationToken", times=9)
    with pytest.raises(CloudError) as failed:
        login_for(HOST)
    assert (failed.value.hint or "").endswith(f"docker login {HOST}")
    config.write_text(json.dumps({"auths": {HOST: ME}}))
    assert login_for(HOST) == RegistryLogin("me", "secret")


@pytest.mark.parametrize(
    ("host", "name", "extra"),
    [(HOST, "aws.client", "aws"), ("a.azurecr.io", "azure.sdk", "azure")],
)
def test_without_the_clouds_sdk_docker_login_does(
    config: Path, monkeypatch: pytest.MonkeyPatch, host: str, name: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, f"cloudtrain.providers.{name}", None)
    with pytest.raises(UsageError) as failed:
        login_for(host)
    assert failed.value.hint == f"{install_command(extra)}; or docker login {host}"
    config.write_text(json.dumps({"auths": {host: ME}}))
    assert login_for(host) == RegistryLogin("me", "secret")


@pytest.fixture
def acr(azure_account: AzureCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry of the tenant, by the rules of ACR."""
    forget()
    with Registry(azure_account.account.tokens) as made:
        monkeypatch.setattr(
            "cloudtrain.providers.docker.images.ACR", re.compile(re.escape(made.host))
        )
        yield made
    forget()


def test_a_login_to_acr_is_a_token_in_place_of_a_password(acr: Registry) -> None:
    login = registry_login(acr.host)
    assert (login.user, login.password) == (TOKEN_USER, acr.users[TOKEN_USER])


def test_who_is_not_logged_in_is_told_what_to_do(acr: Registry, azure_account: AzureCloud) -> None:
    azure_account.log_out()
    with pytest.raises(CloudError) as refused:
        registry_login(acr.host)
    assert refused.value.code == DENIED or "az login" in refused.value.render()
    assert acr.calls == []


def test_a_registry_of_another_tenant_is_reported(acr: Registry) -> None:
    acr.tenant = None
    with pytest.raises(
        CloudError, match=f"logging in to the registry {acr.host}: it answered 401"
    ) as refused:
        registry_login(acr.host)
    assert refused.value.code == DENIED
    assert "AcrPush" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("registry", "resource"),
    [
        ("mine.azurecr.io", "https://containerregistry.azure.net"),
        ("mine.azurecr.us", "https://management.usgovcloudapi.net"),
        ("mine.azurecr.cn", "https://management.chinacloudapi.cn"),
    ],
)
def test_a_registry_of_each_cloud_of_azure_gets_a_token_of_that_cloud(
    registry: str, resource: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from azure.core.exceptions import ClientAuthenticationError

    scopes: list[str] = []

    class Login:
        def get_token(self, scope: str) -> str:
            scopes.append(scope)
            raise ClientAuthenticationError("no login")

    monkeypatch.setattr("cloudtrain.providers.azure.sdk.credential", Login)
    with pytest.raises(CloudError):
        registry_login(registry)
    assert scopes == [f"{resource}/.default"]
