"""The pages: links lead somewhere, the reference is what the code says, snippets work."""

from __future__ import annotations

import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import cloudtrain
import make_reference
from cloudtrain.cli import cli, skill
from cloudtrain.settings import load_settings
from cloudtrain.spec.load import spec_from_values
from pages import DOCS, ROOT, Block, all_blocks, anchors, blocks, commands, links, name_of, pages
from tests.support.in_process import call
from tests.support.samples import AWS_ACCOUNT, AZURE_ACCOUNT
from tests.support.wheels import PACKAGE, ssh_provider, ssh_site

# The pages: every link leads somewhere, every page is found, and the reference is what the code
# says.

PAGES = pytest.mark.parametrize("page", pages(), ids=name_of)


def target(page: Path, link: str) -> Path:
    return (page.parent / link.partition("#")[0]).resolve() if not link.startswith("#") else page


def test_the_readme_is_short_and_says_where_the_project_stands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert "No job has run in a real account yet" in text.partition("## What you get")[0]


@PAGES
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        assert target(page, link).exists(), link
        fragment = link.partition("#")[2]
        assert not fragment or fragment in anchors(target(page, link)), link


@pytest.mark.parametrize("page", [page for page in pages() if DOCS in page.parents], ids=name_of)
def test_a_page_of_the_site_links_to_pages_of_the_site_only(page: Path) -> None:
    inside = [link for link in links(page) if not re.match(r"https?://", link)]
    assert [link for link in inside if DOCS not in target(page, link).parents] == []


def test_the_index_lists_every_page() -> None:
    index = DOCS / "README.md"
    listed = {target(index, link) for link in links(index)}
    assert set(DOCS.rglob("*.md")) - listed == {index}


def test_the_site_has_every_page_in_the_order_of_the_index() -> None:
    index = DOCS / "README.md"
    site = re.findall(r"^ *- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    listed = [target(index, link).relative_to(DOCS).as_posix() for link in links(index)]
    assert site == list(dict.fromkeys(["README.md", *listed]))


@pytest.mark.parametrize("name", make_reference.PAGES)
def test_the_reference_is_what_the_code_says(name: str) -> None:
    written = (make_reference.FOLDER / name).read_text()
    assert written == make_reference.PAGES[name](), "run make docs"


ARCHITECTURE = DOCS / "architecture.md"


def folders_of(*parents: str) -> set[str]:
    """Return the subfolders, without hidden and git-ignored ones."""
    ignored = [".*/", *(ROOT / ".gitignore").read_text().split()]
    unlisted = {
        f"{parent}{path.name}/"
        for parent in parents
        for path in (ROOT / parent).iterdir()
        if path.is_dir()
    }
    return {
        name
        for name in unlisted
        if not any(fnmatch(f"{Path(name).name}/", pattern) for pattern in ignored)
    }


def test_the_architecture_is_short_and_names_every_folder_as_it_is() -> None:
    text = ARCHITECTURE.read_text()
    assert len(text.splitlines()) <= 125
    named = set(re.findall(r"`([\w./-]+/)`", text))
    assert [folder for folder in named if not (ROOT / folder).is_dir()] == []
    packages = (
        "cloudtrain/",
        "cloudtrain/providers/",
        "entrypoints/",
        "entrypoints/cloudtrain_launcher/",
    )
    assert folders_of("", *packages) <= named


def test_the_architecture_names_every_folder_of_tests() -> None:
    row = next(
        line for line in ARCHITECTURE.read_text().splitlines() if line.startswith("| `tests/`")
    )
    assert {f"tests/{name}/" for name in re.findall(r"`(\w+)`", row)} == folders_of("tests/")


# Snippets of the pages work: jobs are planned, settings are read, commands are parsed.

__all__ = ["ssh_provider", "ssh_site"]  # fixtures

LANGUAGES = {"yaml", "toml", "sh", "console", "python", "pycon", "text", "dockerfile", ""}
ELSEWHERE = {"aws", "az", "cd", "source", "docker", "uv", "terraform", "me="} | {
    f"{name}=" for name in ("flags", "theirs")
}
"""Programs of others, and words of the shell, whose arguments are not ours to check."""


def test_every_block_says_its_language() -> None:
    assert [str(block) for block in all_blocks("")] == []
    assert {block.language for block in all_blocks(*LANGUAGES)} <= LANGUAGES


def lay_out(folder: Path, job: dict[str, Any]) -> None:
    """The files that a job names, as its reader would have them."""
    source = folder / job.get("source", ".")
    source.mkdir(exist_ok=True)
    if isinstance(job.get("entrypoint"), str):
        (source / job["entrypoint"]).write_text("print(1)\n")
    for place in job.get("inputs", {}).values():
        local = place if isinstance(place, str) else place.get("local", place.get("uri", ""))
        if local.startswith("."):
            (folder / local).mkdir()
            (folder / local / "data.bin").write_text("data")
    image = job.get("image")
    if isinstance(image, dict) and "build" in image:
        (folder / image["build"]).parent.mkdir(parents=True)
        (folder / image["build"]).write_text("FROM debian:12-slim\n")


PLANS = [
    pytest.param(block, where.strip(), id=f"{block}-{where.strip()}")
    for block in all_blocks("yaml")
    for where in block.notes.get("plan", "local").split(",")
]


@pytest.mark.parametrize(("block", "where"), PLANS)
def test_a_job_that_is_shown_can_be_planned(
    block: Block,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    for name, value in {**AWS_ACCOUNT, **AZURE_ACCOUNT, "HF_TOKEN": "a token"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path, yaml.safe_load(block.text))
    (tmp_path / "job.yaml").write_text(block.text)
    provider, _, as_ = where.partition(" as ")
    if provider == "ssh":
        request.getfixturevalue("ssh_provider")
    # By the command, which holds the request against the cloud's rules.
    if provider in (
        "aws",
        "azure",
    ):
        ended = call("plan", "--provider", provider)
        assert ended.code == 0, ended.err
    else:  # by the API, which does not ask whether this machine has the GPUs
        plan = cloudtrain.plan(cloudtrain.load(), provider, as_=as_ or None)
        assert cloudtrain.render(plan).job.nodes == plan.spec.resources.nodes


def test_on_azure_the_job_beside_microsofts_own_asks_for_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (AWS_ACCOUNT | AZURE_ACCOUNT).items():
        monkeypatch.setenv(name, value)
    block = next(
        b for b in blocks(ROOT / "docs/guides/azure-ml.md") if "name: cifar-distributed" in b.text
    )
    lay_out(tmp_path, yaml.safe_load(block.text))
    (tmp_path / "job.yaml").write_text(block.text)
    request = cloudtrain.render(cloudtrain.plan(cloudtrain.load(tmp_path / "job.yaml"), "azure"))
    argv = ["--epochs", "1", "--learning-rate", "0.2", "--data-dir", "${inputs.data}"]
    assert (list(request.job.argv), request.job.nodes, request.job.processes) == (argv, 2, 1)
    assert request.document["inputs"]["data"]["path"] == "azureml:cifar-10-example:1"
    assert request.document["resources"]["instance_count"] == 2
    assert request.document["distribution"] == {"type": "pytorch", "process_count_per_instance": 1}


WHOLE = [
    block
    for block in all_blocks("toml", "python")
    if (PACKAGE / block.notes.get("file", "?")).is_file()
]


def test_the_worked_example_is_shown_whole() -> None:
    shown = {block.notes["file"]: block.text for block in WHOLE}
    assert shown == {path.name: path.read_text() for path in PACKAGE.iterdir() if path.is_file()}
    assert len(shown["cloudtrain_ssh.py"].splitlines()) < 150


@pytest.mark.parametrize(
    "block", [block for block in all_blocks("toml") if block not in WHOLE], ids=str
)
def test_settings_that_are_shown_are_settings(block: Block, tmp_path: Path) -> None:
    own_file = tmp_path / ".config" / "cloudtrain" / "config.toml"
    own_file.parent.mkdir(parents=True)
    own_file.write_text(block.text)
    tables = tomllib.loads(block.text)
    spec_from_values(tables.pop("defaults", {}), tmp_path)
    shown = set()
    for table, keys in tables.items():
        shown |= {f"{table}.{key}" for key in keys} if isinstance(keys, dict) else {table}

    assert shown <= set(load_settings(tmp_path, environ={"HOME": str(tmp_path)}).values)


COMMANDS = [
    pytest.param(part.strip(), id=f"{block}-{part.strip()[:40]}")
    for block in all_blocks("sh", "console")
    for line in commands(block)
    for part in line.split("#")[0].split("&&")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_shown_can_be_typed(command: str) -> None:
    program, *words = shlex.split(command.partition(" > ")[0])
    if program == "cloudtrain":
        parse(cli, "cloudtrain", words)
    elif program == "make":
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert words[0] in targets
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
            "optional-dependencies"
        ]
        assert words[:2] == ["install", "-e"]
        assert set(re.findall(r"\w+", words[2])) <= set(extras)
    elif program in ("python", "torchrun"):
        (script,) = [word for word in words if word.endswith(".py")]
        assert (ROOT / script).exists()
    else:
        assert re.match(r"\w+=?", program)[0] in ELSEWHERE  # type: ignore[index]


SKILL = re.findall(r"`(cloudtrain [a-z][^`]*)`", skill.PAGE.read_text())


@pytest.mark.parametrize("command", SKILL)
def test_a_command_for_agents_can_be_typed(command: str) -> None:
    parse(cli, "cloudtrain", shlex.split(command)[1:])


def parse(
    command: click.Command, name: str, words: list[str], parent: click.Context | None = None
) -> None:
    """Hold words against a command's options and arguments, as click does before it runs one."""
    context = command.make_context(name, list(words), parent=parent)
    if isinstance(command, click.Group):
        arguments = [*context._protected_args, *context.args]
        subcommand = command.get_command(context, arguments[0])
        assert subcommand is not None, arguments[0]
        parse(subcommand, arguments[0], arguments[1:], context)
