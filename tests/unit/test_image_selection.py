"""Meaning of `image:` for each provider: addresses, builds and their repositories, settings; and
`cloudtrain image` without an engine: what it is called with, and where it pushes to.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from cloudtrain.api.context import resolve_targets
from cloudtrain.catalog import table
from cloudtrain.errors import SourceError
from cloudtrain.planning.recipe import our_recipe, recipe_of
from cloudtrain.planning.reference import ACR, ECR, Address, is_loopback, parse_address
from cloudtrain.planning.selection import (
    ImageMachines,
    PlannedImage,
    recipe_for,
    select_image,
)
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.image import image_of as aws_image
from cloudtrain.providers.aws.image import repository_of
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.image import image_of as azure_image
from cloudtrain.providers.docker.images import build
from cloudtrain.settings import Settings, load_settings
from cloudtrain.spec.load import load_spec
from tests.golden import cases
from tests.support.in_process import call

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


AWS_HOST = "123456789012.dkr.ecr.us-east-1"
HOSTS = f"""
this machine: 127.0.0.1 127.0.0.1:5000 127.8.8.8:1 localhost:5000 [::1]:5000
AWS: {" ".join(sorted(f"{AWS_HOST}.{row['domain']}" for row in table("dlc_accounts")))}
Azure: mine.azurecr.io mine.azurecr.cn mine.azurecr.us mine-a1b2c3.azurecr.io
Azure: mine.eastus.geo.azurecr.io
nobody: localhost.evil.com 127.0.0.1.evil.com 10.0.0.1:5000 ghcr.io
nobody: {AWS_HOST}.evil.example {AWS_HOST}.amazonaws.com.evil.example {AWS_HOST}.amazonaws.org
nobody: {AWS_HOST}.amazonaws.com:443 {AWS_HOST}.xamazonaws.com
nobody: azurecr.io mine.azurecr.de mine.azurecr.io.evil.example a.b.azurecr.io -x.azurecr.io
nobody: a.geo.azurecr.io
"""
"""Whose registry it is: plain HTTP is for this machine alone, a cloud's login for its own hosts."""


def test_a_host_that_only_looks_like_one_is_nobodys() -> None:
    for line in HOSTS.strip().splitlines():
        owner, _, hosts = line.partition(": ")
        for host in hosts.split():
            registries = {"this machine": is_loopback(host)}
            registries |= {
                "AWS": bool(ECR.fullmatch(f"{host}/train:1")),
                "Azure": bool(ACR.fullmatch(host)),
            }
            assert [name for name, is_it in registries.items() if is_it] == [owner] * (
                owner != "nobody"
            ), host
    assert not is_loopback("")


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
    machines = ImageMachines(has_gpus=gpu)
    address, problems = aws_image(
        "auto", aws("team/train"), stored(folder), machines, rehearsal=False
    )
    assert (address.address, problems) == (f"{HOST}/team/train:{recipe.tag}", [])
    assert address.recipe == recipe
    address, problems = azure_image(
        "auto", azure("mine.azurecr.io/train"), stored(folder), machines
    )
    assert (address.address, problems) == (f"mine.azurecr.io/train:{recipe.tag}", [])


def test_a_dockerfile_for_sagemaker_needs_a_repository_and_azure_builds_it_itself(
    folder: Path,
) -> None:
    (issue,) = aws_image(BUILD, aws(), stored(folder), ImageMachines(), rehearsal=False)[1]
    assert issue.path == ("aws", "repository")
    image, problems = azure_image(BUILD, azure(), stored(folder), ImageMachines())
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


DOCKER = """#!/bin/sh
echo "$@" >> {folder}/called
case "$1" in
  build) printf "%s\\n" "$@" > {folder}/words; [ ! -e {folder}/meanwhile ] || . {folder}/meanwhile ;;
  tag | rmi) ;;
  *) exit 1 ;;
esac
"""
"""A client that only writes down what it was called with; `meanwhile` is what happens during a
build.
"""


@pytest.fixture
def building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a Dockerfile, and a docker that says what it was called with."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    program = tmp_path / "docker"
    program.write_text(DOCKER.format(folder=quote(str(tmp_path))))
    program.chmod(0o755)
    monkeypatch.setenv("DOCKER", str(program))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(building: Path) -> list[str]:
    return (building / "words").read_text().splitlines()


def test_a_dockerfile_is_built_in_its_folder_under_its_content(building: Path) -> None:
    result = call(
        "image", "build", "own/Dockerfile", "--arg", "A=1 2", "--tag", "mine:1", "--", "--no-cache"
    )
    recipe = recipe_of(building / "own" / "Dockerfile", ("A=1 2",))
    assert (result.code, result.out) == (0, f"{recipe.name}\n")
    assert words(building) == [
        *("build", "--file", str(building / "own" / "Dockerfile")),
        *("--label", f"cloudtrain.inputs=sha256:{recipe.digest}", "--build-arg", "A=1 2"),
        *("--tag", (nameless := words(building)[-3]), "--no-cache", str(building / "own")),
    ]
    assert nameless.startswith("cloudtrain:building-")
    assert after_build(building) == [
        f"tag {nameless} {recipe.name}",
        f"tag {nameless} mine:1",
        f"rmi {nameless}",
    ]


def after_build(building: Path) -> list[str]:
    called = (building / "called").read_text().splitlines()
    return called[[line.partition(" ")[0] for line in called].index("build") + 1 :]


def test_what_changes_while_it_is_built_gets_no_name(building: Path) -> None:
    (building / "meanwhile").write_text("echo 'ENV A=1' >> own/Dockerfile\n")
    result = call("image", "build", "own/Dockerfile")
    assert (result.code, result.out) == (2, "")
    assert f"the image's folder {building}/own changed after it was planned" in result.err
    assert "run the command again" in result.err
    (note,) = after_build(building)
    assert note.startswith("rmi cloudtrain:building-")


def test_what_changed_since_it_was_planned_is_not_built(building: Path) -> None:
    recipe = recipe_of(building / "own" / "Dockerfile")
    (building / "own" / "new").touch()
    with pytest.raises(SourceError, match="changed after it was planned"):
        build(recipe)
    assert not (building / "called").exists()


def test_a_build_sees_the_folder_that_the_spec_names(building: Path) -> None:
    (building / "own" / "Dockerfile").write_text("FROM scratch\nCOPY requirements.txt /\n")
    (building / "requirements.txt").write_text("numpy\n")
    recipe = recipe_of(building / "own" / "Dockerfile", context=building)
    build(recipe)
    assert words(building)[-1] == str(building)
    assert str(building / "own" / "Dockerfile") in words(building)
    (building / "requirements.txt").write_text("scipy\n")
    assert recipe_of(building / "own" / "Dockerfile", context=building).digest != recipe.digest


def test_azure_builds_in_the_folder_that_the_spec_names(folder: Path) -> None:
    text = "name: d\nimage: {build: docker/Dockerfile, context: .}\n"
    document = get_provider("azure").render(cases.plan_of("azure", text)).document
    assert document["environment"]["build"] == {
        "path": "/home/me/job",
        "dockerfile_path": "docker/Dockerfile",
    }


def test_a_file_beside_the_job_does_not_widen_what_a_build_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "above" / "job"
    job.mkdir(parents=True)
    (job / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    (job / "link").symlink_to("..")
    (job / "cloudtrain.toml").write_text('[image]\ncontext_root = ".."\n')

    def problems(context: str) -> list[str]:
        selected = select_image({"build": "Dockerfile", "context": context}, "docker")
        return [issue.message for issue in recipe_for(selected, load_settings(job), gpu=False)[1]]

    assert problems(".") == []
    assert "is outside" in problems("..")[0]
    assert "is outside" in problems("link")[0]
    assert "there is no folder" in problems("elsewhere")[0]

    monkeypatch.setenv("CLOUDTRAIN_IMAGE_CONTEXT_ROOT", "..")
    assert problems("..") == problems("link") == []
    assert "is outside" in problems("../..")[0]


def test_arguments_of_the_settings_come_first_and_a_platform_is_passed_on(building: Path) -> None:
    (building / "cloudtrain.toml").write_text(
        '[image]\nargs = ["BASE_IMAGE=ours"]\nbuild_args = ["A=1", "B=1"]\n'
    )
    call("image", "build", "own/Dockerfile", "--arg", "B=2", "--platform", "linux/arm64")
    lines = words(building)
    assert [lines[at + 1] for at, word in enumerate(lines) if word == "--build-arg"] == [
        "A=1",
        "B=2",
    ]
    assert lines[lines.index("--platform") + 1] == "linux/arm64"


@pytest.mark.parametrize(("tag", "rebuild"), [(None, False), ("latest", True)])
def test_only_a_tag_that_stands_for_its_content_spares_a_push(
    building: Path, monkeypatch: pytest.MonkeyPatch, tag: str | None, rebuild: bool
) -> None:
    rebuilds: list[bool] = []

    def ready(
        recipe: object, address: str, progress: object, *, rebuild: bool, options: object
    ) -> str:
        rebuilds.append(rebuild)
        return "127.0.0.1:1/own@sha256:0"

    monkeypatch.setattr("cloudtrain.cli.image.ensure_pushed", ready)
    tags = ("--tag", tag) if tag else ()
    call("image", "push", "own/Dockerfile", "--to", "127.0.0.1:1/own", *tags)
    assert rebuilds == [rebuild]
