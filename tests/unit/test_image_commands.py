"""`cloudtrain image` without an engine: what it is called with, where it pushes to, what registries
say to a push.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.errors import SourceError
from cloudtrain.planning.recipe import recipe_of
from cloudtrain.providers.docker.images import build
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
