"""A contributor's checks agree: the hooks before a commit, the make targets, and CONTRIBUTING."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.repo.tools import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target: str) -> list[str]:
    """The commands of a target, with the folder of its programs written out."""
    match = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert match, f"target {target} is missing"
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in match[1].splitlines()]


def hooks() -> list[dict[str, Any]]:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local", "a hook of another repository would be fetched"
    local_hooks: list[dict[str, Any]] = local["hooks"]
    return local_hooks


def test_the_hooks_run_the_commands_of_make_and_fetch_nothing() -> None:
    assert [hook["entry"] for hook in hooks()] == [
        *recipe("lint"),
        *recipe("types"),
        *recipe("imports"),
    ]
    assert {hook["language"] for hook in hooks()} == {"system"}, (
        "another language would install packages"
    )
    assert not any(hook["pass_filenames"] for hook in hooks()), (
        "they look at all files, as make does"
    )


def test_quick_is_what_check_runs_first_and_the_fast_tests() -> None:
    assert re.search(r"^check: lint types imports test$", MAKEFILE, re.MULTILINE)
    assert re.search(r"^quick: lint types imports$", MAKEFILE, re.MULTILINE)
    (quick,) = recipe("quick")
    (test,) = recipe("test")
    assert quick.split()[-2:] == ["tests/unit", "tests/golden"]
    assert quick.split()[:-2] == test.split()[:-1], "with the same arguments otherwise"


def test_every_target_and_page_that_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"\bmake ([a-z]+)", text))
    assert {"quick", "test", "check", "coverage"} <= targets
    assert targets <= set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    pages = re.findall(r"\]\(([^)#]+)", text)
    assert pages
    assert [page for page in pages if not (ROOT / page).is_file()] == []
