"""Meaning of `image:` for each provider: parts of addresses, builds and their repositories,
settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudtrain.catalog import read_table
from cloudtrain.planning.recipe import our_recipe
from cloudtrain.planning.reference import ACR, ECR, Address, is_loopback, parse_address
from cloudtrain.planning.selection import PlannedImage
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.target import image_of as aws_image
from cloudtrain.providers.aws.target import repository_of
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.target import image_of as azure_image
from cloudtrain.settings import Settings, load_settings
from cloudtrain.spec.load import load_spec
from cloudtrain.submission.context import resolve_targets
from tests.golden import cases

DIGEST = "sha256:" + "ab" * 32
HOST = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
ELSEWHERE = "999999999999.dkr.ecr.eu-west-1.amazonaws.com/t"
CLOUD = "linux/amd64"

ADDRESSES = {
    "python": Address("docker.io", "library/python", "latest"),
    "python:3.11": Address("docker.io", "library/python", "3.11"),
    "me/train:1": Address("docker.io", "me/train", "1"),
    "docker.io/python:3": Address("docker.io", "library/python", "3"),
    "docker.io/me/train": Address("docker.io", "me/train", "latest"),
    f"me/train:1@{DIGEST}": Address("docker.io", "me/train", DIGEST),
    "ghcr.io/me/deep/train:1": Address("ghcr.io", "me/deep/train", "1"),
    "localhost/train": Address("localhost", "train", "latest"),
    "localhost:5000/train:1": Address("localhost:5000", "train", "1"),
    f"127.0.0.1:5000/a/b@{DIGEST}": Address("127.0.0.1:5000", "a/b", DIGEST),
    f"{HOST}/team/train:1": Address(HOST, "team/train", "1"),
    "[::1]:5000/train:1": Address("[::1]:5000", "train", "1"),
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_has_a_registry_a_repository_and_a_reference(text: str) -> None:
    assert parse_address(text) == ADDRESSES[text]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:5000", "127.8.8.8:1", "localhost:5000", "[::1]:5000"]
)
def test_plain_http_is_for_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["localhost.evil.com", "127.0.0.1.evil.com", "10.0.0.1:5000", "ghcr.io", ""]
)
def test_and_for_no_other(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("domain", sorted({row["domain"] for row in read_table("dlc_accounts")}))
def test_the_registries_of_every_partition_are_awss(domain: str) -> None:
    assert ECR.fullmatch(f"123456789012.dkr.ecr.some-region-1.{domain}/train:1")


@pytest.mark.parametrize(
    "end",
    [
        "evil.example",
        "amazonaws.com.evil.example",
        "amazonaws.org",
        "amazonaws.com:443",
        "xamazonaws.com",
    ],
)
def test_a_host_that_only_looks_like_one_is_nobodys(end: str) -> None:
    assert not ECR.fullmatch(f"123456789012.dkr.ecr.us-east-1.{end}/train:1")


@pytest.mark.parametrize(
    "host",
    [
        "mine.azurecr.io",
        "mine.azurecr.cn",
        "mine.azurecr.us",
        "mine-a1b2c3.azurecr.io",
        "mine.eastus.geo.azurecr.io",
    ],
)
def test_registries_of_azure_are_known_by_their_hosts(host: str) -> None:
    assert ACR.fullmatch(host)


@pytest.mark.parametrize(
    "host",
    [
        "azurecr.io",
        "mine.azurecr.de",
        "mine.azurecr.io.evil.example",
        "a.b.azurecr.io",
        "-x.azurecr.io",
        "a.geo.azurecr.io",
    ],
)
def test_and_nobody_elses_are(host: str) -> None:
    assert not ACR.fullmatch(host)


def test_a_build_for_graces_machines_is_one_for_arm(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("REPOSITORY", f"{HOST}/team/train"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"CLOUDTRAIN_AWS_{name}", value)
    (folder / "job.yaml").write_text(
        "name: a\nimage: {build: image/Dockerfile}\nresources: {gpus: 4, gpu: GB200}\n"
    )
    spec, _ = load_spec(folder / "job.yaml")
    target, _ = resolve_targets(spec, load_settings(folder), "aws", None)
    assert (target.image and target.image.recipe and target.image.recipe.platform) == "linux/arm64"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    return tmp_path


def stored(folder: Path, **values: Any) -> Settings:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return Settings(values=named, origins=dict.fromkeys(named, "cloudtrain.toml"), folder=folder)


def aws(repository: str | None = None, region: str = "us-east-1") -> AwsConfig:
    part = "aws-cn" if region.startswith("cn-") else "aws"
    return AwsConfig(
        repository=repository, role=f"arn:{part}:iam::123456789012:role/r", region=region
    )


def arguments(image: PlannedImage) -> tuple[str, ...]:
    assert image.recipe is not None
    return image.recipe.args


def azure(repository: str | None = None) -> AzureConfig:
    return AzureConfig(subscription="s", resource_group="g", workspace="w", repository=repository)


BUILD = {"build": "image/Dockerfile"}


@pytest.mark.parametrize(
    ("provider", "instance", "nodes", "arg", "topology"),
    [
        ("aws", "ml.p4d.24xlarge", 2, ["WITH_EFA=1"], None),
        ("aws", "ml.p4d.24xlarge", 1, [], None),
        ("aws", "ml.g4dn.xlarge", 2, [], None),
        ("azure", "Standard_ND96amsr_A100_v4", 2, ["WITH_TOPOLOGY=1"], "ndv4"),
        ("azure", "Standard_ND96isr_H100_v5", 2, ["WITH_TOPOLOGY=1"], "ndv5"),
        ("azure", "Standard_ND96isr_H100_v5", 1, [], None),
    ],
)
def test_our_image_has_what_the_network_between_nodes_needs(
    provider: str,
    instance: str,
    nodes: int,
    arg: list[str],
    topology: str | None,
) -> None:
    repository = {"aws": f"{HOST}/train", "azure": "mine.azurecr.io/train"}[provider]
    text = f"""
name: a
resources: {{nodes: {nodes}, instance: {{{provider}: {instance}}}}}
{provider}: {{repository: {repository}}}
"""
    plan = cases.plan_of(provider, text)
    assert plan.target.image
    assert [name for name in arguments(plan.target.image) if name.startswith("WITH")] == arg
    environment = get_provider(provider).render(plan).document.get("environment_variables", {})
    expected = topology and f"/opt/microsoft/{topology}-topo.xml"
    assert environment.get("NCCL_TOPO_FILE") == expected


@pytest.mark.parametrize(("gpu", "kind"), [(False, "cpu"), (True, "cuda")])
def test_with_a_repository_auto_is_our_own_image_for_the_clouds_machines(
    folder: Path, gpu: bool, kind: str
) -> None:
    recipe = our_recipe(kind, platform=CLOUD)
    address, problems = aws_image(
        "auto", aws("team/train"), stored(folder), gpu=gpu, rehearsal=False
    )
    assert (address.address, problems) == (f"{HOST}/team/train:{recipe.tag}", [])
    assert address.recipe == recipe
    address, problems = azure_image("auto", azure("mine.azurecr.io/train"), stored(folder), gpu=gpu)
    assert (address.address, problems) == (f"mine.azurecr.io/train:{recipe.tag}", [])


def test_a_dockerfile_for_sagemaker_needs_a_repository_and_azure_builds_it_itself(
    folder: Path,
) -> None:
    (issue,) = aws_image(BUILD, aws(), stored(folder), gpu=False, rehearsal=False)[1]
    assert (issue.path, issue.message) == (
        ("aws", "repository"),
        "is not set: no repository is configured for the image",
    )
    assert "CLOUDTRAIN_AWS_REPOSITORY" in (issue.hint or "")
    image, problems = azure_image(BUILD, azure(), stored(folder), gpu=False)
    assert (image, problems) == (PlannedImage("image/Dockerfile"), [])


@pytest.mark.parametrize(
    ("region", "repository", "address"),
    [
        ("us-east-1", "train", f"{HOST}/train"),
        ("eu-west-1", "a/b-c_d.e", "123456789012.dkr.ecr.eu-west-1.amazonaws.com/a/b-c_d.e"),
        ("cn-north-1", "train", "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/train"),
        ("cn-south-9", "train", "123456789012.dkr.ecr.cn-south-9.amazonaws.com.cn/train"),
        ("us-east-1", ELSEWHERE, ELSEWHERE),
        (
            "us-east-1",
            HOST.replace("ecr", "ecr-fips") + "/t",
            HOST.replace("ecr", "ecr-fips") + "/t",
        ),
    ],
)
def test_a_repositorys_name_is_one_in_the_account_of_the_role(
    region: str, repository: str, address: str
) -> None:
    assert repository_of(aws(repository, region)) == (address, [])
    assert ECR.fullmatch(address)
