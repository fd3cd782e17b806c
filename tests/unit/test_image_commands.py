"""`cloudtrain image` without an engine: what it is called with, where it pushes to, what registries
say to a push.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cloudtrain.errors import SourceError
from cloudtrain.planning.recipe import Recipe, our_recipe, recipe_of
from cloudtrain.providers.docker.errors import refused_push
from cloudtrain.providers.docker.images import _public_url, arguments, build
from tests.repo.tools import ROOT
from tests.support.in_process import call

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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a Dockerfile, and a docker that says what it was called with."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    program = tmp_path / "docker"
    program.write_text(DOCKER.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("DOCKER", str(program))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(folder: Path) -> list[str]:
    return (folder / "words").read_text().splitlines()


def test_a_dockerfile_is_built_in_its_folder_under_its_content(folder: Path) -> None:
    result = call(
        "image", "build", "own/Dockerfile", "--arg", "A=1 2", "--tag", "mine:1", "--", "--no-cache"
    )
    recipe = recipe_of(folder / "own" / "Dockerfile", ("A=1 2",))
    assert (result.code, result.out) == (0, f"{recipe.name}\n")
    assert words(folder) == [
        *("build", "--file", str(folder / "own" / "Dockerfile")),
        *("--label", f"cloudtrain.inputs=sha256:{recipe.digest}", "--build-arg", "A=1 2"),
        *("--tag", (nameless := words(folder)[-3]), "--no-cache", str(folder / "own")),
    ]
    assert nameless.startswith("cloudtrain:building-")
    assert after_build(folder) == [
        f"tag {nameless} {recipe.name}",
        f"tag {nameless} mine:1",
        f"rmi {nameless}",
    ]


def after_build(folder: Path) -> list[str]:
    called = (folder / "called").read_text().splitlines()
    return called[[line.partition(" ")[0] for line in called].index("build") + 1 :]


def test_what_changes_while_it_is_built_gets_no_name(folder: Path) -> None:
    (folder / "meanwhile").write_text(f"echo 'ENV A=1' >> {folder}/own/Dockerfile\n")
    result = call("image", "build", "own/Dockerfile")
    assert (result.code, result.out) == (2, "")
    assert f"the image's folder {folder}/own changed after it was planned" in result.err
    assert "run the command again" in result.err
    (note,) = after_build(folder)
    assert note.startswith("rmi cloudtrain:building-")


def test_what_changed_since_it_was_planned_is_not_built(folder: Path) -> None:
    recipe = recipe_of(folder / "own" / "Dockerfile")
    (folder / "own" / "new").touch()
    with pytest.raises(SourceError, match="changed after it was planned"):
        build(recipe)
    assert not (folder / "called").exists()


def test_our_own_image_has_a_name_for_people_too(folder: Path) -> None:
    report = json.loads(call("image", "build", "cpu", "--json").out)
    recipe = our_recipe("cpu")
    assert report == {
        "image": recipe.name,
        "names": [recipe.name, "cloudtrain:cpu"],
        "inputs": f"sha256:{recipe.digest}",
    }
    assert "TORCH=cpu" in words(folder)


def test_arguments_of_the_settings_come_first_and_a_platform_is_passed_on(folder: Path) -> None:
    (folder / "cloudtrain.toml").write_text(
        '[image]\nargs = ["BASE_IMAGE=ours"]\nbuild_args = ["A=1", "B=1"]\n'
    )
    call("image", "build", "own/Dockerfile", "--arg", "B=2", "--platform", "linux/arm64")
    lines = words(folder)
    assert [lines[at + 1] for at, word in enumerate(lines) if word == "--build-arg"] == [
        "A=1",
        "B=2",
    ]
    assert lines[lines.index("--platform") + 1] == "linux/arm64"


def test_what_is_told_counts_more_than_where_it_comes_from() -> None:
    recipe = our_recipe("cpu", ("VERSION=mine",))
    assert "VERSION=mine" in arguments(recipe, ())
    assert [word.partition("=")[0] for word in arguments(recipe, ())].count("VERSION") == 1


WRONG = {
    "build own/Dockerfile --arg A": "--arg A: expected NAME=VALUE",
    "build own": "there is no file own",
    "build nothing/Dockerfile": "cuda or cpu for our own image, or the path of a Dockerfile",
    "push cpu": "no repository is configured",
    "push cpu --provider aws": "aws.repository is not set: no repository is configured",
    "push cpu --provider azure": "[azure] repository in cloudtrain.toml",
    "push cpu --to 127.0.0.1:5000/train:1": "--to 127.0.0.1:5000/train --tag TAG",
    "push cpu --to r.azurecr.io/t@sha256:0": "r.azurecr.io/t@sha256:0 ends in a tag or a digest",
}


@pytest.mark.parametrize("typed", WRONG)
def test_what_makes_no_sense_is_refused_before_anything_is_built(folder: Path, typed: str) -> None:
    result = call("image", *typed.split())
    assert result.code == 2
    assert WRONG[typed] in result.err
    assert not (folder / "words").exists()


def test_a_repository_that_is_none_is_told_by_its_setting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDTRAIN_AWS_REPOSITORY", "train:1")
    result = call("image", "push", "cpu", "--provider", "aws")
    assert (result.code, "aws.repository: 'train:1' is not an ECR repository" in result.err) == (
        2,
        True,
    )


PUSHES = {
    "denied: requested access to the resource is denied": "docker login host:5000",
    "unauthorized: authentication required": "docker login host:5000",
    "no basic auth credentials": "docker login host:5000",
    "name unknown: The repository with name 'train' does not exist": "aws ecr create-repository",
    "tag invalid: The image tag '1' already exists in the 'train' repository and cannot be "
    "overwritten because the repository is immutable.": "--tag ANOTHER",
    "dial tcp 127.0.0.1:1: connect: connection refused": "the network",
    "dial tcp: lookup nobody.example.com: no such host": "the network",
    "something else": "",
}


@pytest.mark.parametrize("message", PUSHES)
def test_what_a_registry_says_to_a_push_is_told_with_the_next_step(message: str) -> None:
    error = refused_push("host:5000/train:1", message)
    assert error.message == f"the registry refused host:5000/train:1: {message}"
    assert PUSHES[message] in (error.hint or "")
    assert (error.exit_code, bool(error.hint)) == (4, bool(PUSHES[message]))


@pytest.mark.parametrize(
    "word",
    [
        *(
            "--build-arg=WITH_EFA=1",
            "--target",
            "--platform=linux/arm64",
            "-t",
            "-tmine",
            "-qt",
            "--push",
        ),
        *(
            "-f",
            "-fOther",
            "--file=Other",
            "--build-context=a=b",
            "--build-context",
            "-o",
            "--output=out",
        ),
    ],
)
@pytest.mark.parametrize("recipe", ["cpu", None])
def test_what_makes_another_image_is_not_slipped_past_its_name(
    folder: Path, word: str, recipe: str | None
) -> None:
    result = call("image", "build", *([recipe] if recipe else []), "--", word)
    assert (result.code, result.out) == (2, "")
    assert f"{word} among docker's options" in result.err
    assert "--arg NAME=VALUE" in result.err
    assert not (folder / "words").exists()


@pytest.mark.parametrize(("tag", "rebuild"), [(None, False), ("latest", True)])
def test_only_a_tag_that_stands_for_its_content_spares_a_push(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tag: str | None, rebuild: bool
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


def test_options_of_dockers_need_nothing_named_before_them(folder: Path) -> None:
    result = call("image", "build", "--", "--progress", "plain", "--pull")
    assert result.code == 0, result.err
    assert "TORCH=cuda" in words(folder)
    assert words(folder)[-4:-1] == ["--progress", "plain", "--pull"]


def examples() -> list[list[str]]:
    """The pushes that the help and the documentation show."""
    pages = (
        ROOT / "docs" / name for name in ("reference/image.md", "guides/dependencies-and-images.md")
    )
    text = "".join(page.read_text() for page in pages).replace("\\\n", "")
    shown = [
        line.strip().partition("   ")[0]
        for line in call("image", "push", "--help").out.splitlines()
    ]
    shown += re.findall(r"cloudtrain image push[^`#\n]*", text)
    typed = [
        line.replace(" … ", " ").split()
        for line in shown
        if line.startswith("cloudtrain image push ")
    ]
    assert len(typed) >= 5
    return [words[1:] for words in typed]


def test_the_pushes_that_are_shown_can_be_typed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[tuple[str, ...]] = []

    def ready(
        recipe: Recipe, address: str, progress: object, *, rebuild: bool, options: tuple[str, ...]
    ) -> str:
        passed.append((recipe.kind, *options))
        return "127.0.0.1:1/own@sha256:0"

    monkeypatch.setattr("cloudtrain.cli.image.ensure_pushed", ready)
    monkeypatch.setenv(
        "CLOUDTRAIN_AWS_REPOSITORY", "123456789012.dkr.ecr.us-east-1.amazonaws.com/train"
    )
    for typed in examples():
        provider = () if {"--provider", "--to"} & set(typed) else ("--provider", "aws")
        at = typed.index("--") if "--" in typed else len(typed)
        result = call(*typed[:at], *provider, *typed[at:])
        assert result.code == 0, (typed, result.err)
    assert ("cuda", "--pull") in passed
    assert ("cuda", "--pull", "--no-cache") in passed


def test_the_next_step_pushes_the_very_image_that_was_built(folder: Path) -> None:
    result = call(
        "image",
        "build",
        "own/Dockerfile",
        "--arg",
        "A=1 2",
        "--arg",
        "B=1",
        "--platform",
        "linux/arm64",
    )
    assert (
        "image push own/Dockerfile --arg 'A=1 2' --arg B=1 --platform linux/arm64 --to REPOSITORY"
        in result.err
    )


def test_a_repositorys_region_may_be_the_one_that_awss_own_tools_take(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[str] = []

    def ready(_: Recipe, address: str, *__: object, **___: object) -> str:
        addresses.append(address)
        return address

    monkeypatch.setattr("cloudtrain.cli.image.ensure_pushed", ready)
    monkeypatch.setenv("CLOUDTRAIN_AWS_REPOSITORY", "train")
    monkeypatch.setenv("CLOUDTRAIN_AWS_ROLE", "arn:aws:iam::123456789012:role/train")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    result = call("image", "push", "cpu", "--provider", "aws")
    assert (result.code, "aws.region: is not set" in result.err, addresses) == (2, True, [])
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert call("image", "push", "cpu", "--provider", "aws").code == 0
    assert addresses[0].startswith("123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:cpu-")


REMOTES = {
    "https://me:secret@github.com/me/train.git": "https://github.com/me/train.git",
    "ssh://git@github.com/me/train.git": "ssh://github.com/me/train.git",
    "git@github.com:me/train.git": "git@github.com:me/train.git",
    "/home/me/secret-project": "",
    "../other": "",
    "file:///home/me/secret-project": "",
    "C:\\\\Users\\\\me": "",
    "": "",
}


@pytest.mark.parametrize("remote", REMOTES, ids=[str(number) for number in range(len(REMOTES))])
def test_a_label_names_a_public_source_and_no_path_of_this_machine(remote: str) -> None:
    assert _public_url(remote) == REMOTES[remote]
