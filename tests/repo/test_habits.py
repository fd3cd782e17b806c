"""A contributor's checks agree, the suite is the same everywhere, and the words are plain."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.repo.tools import ROOT, trees
from tests.support import machine
from tests.support.waiting import HANG_SECONDS

# A contributor's checks agree: the hooks before a commit, the make targets, and CONTRIBUTING.

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


# The suite itself: ids of tests are the same everywhere, and only container tests see an engine.


def test_only_container_tests_see_the_engine_of_the_machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.environ["DOCKER_HOST"] == machine.NO_ENGINE
    assert "DOCKER_CONTEXT" not in os.environ

    monkeypatch.setattr(
        machine, "_MACHINE_VARIABLES", {"DOCKER_HOST": "unix:///run/an-engine.sock"}
    )
    request.node.add_marker("docker")
    machine.show_engine(request.node)
    assert os.environ["DOCKER_HOST"] == "unix:///run/an-engine.sock"


# Every benchmark starts as `make bench` and its README start it: by its path alone.

BENCHES = sorted((ROOT / "tests" / "bench").glob("bench_*.py"))


@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_a_benchmark_starts_by_its_path(bench: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, str(bench), "--help"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "--json" in result.stdout


# The wheel: it carries the launcher and the trainer inside the package, and works without the
# checkout.


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=HANG_SECONDS)
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_what_travels_with_a_job_inside_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "cloudtrain_launcher/launch.py",
        "job/cloudtrain_job.py",
        "cloudtrain_trainer/tasks/digits.py",
    ):
        assert f"cloudtrain/_bundle/entrypoints/{name}" in names
    assert "cloudtrain/_bundle/infra/azure/template.json" in names
    for name in (
        "Dockerfile",
        ".dockerignore",
        "train",
        "torch-cuda.txt",
        "torch-cpu.txt",
        "requirements.txt",
    ):
        assert f"cloudtrain/_bundle/docker/{name}" in names, (
            "the image can be built from an installed package"
        )
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "cloudtrain",
        "cloudtrain_job.py",
        "cloudtrain_launcher",
        "cloudtrain_trainer",
    }
    assert "cloudtrain/catalog/aws.csv" in names
    assert "cloudtrain/cli/starter/job.yaml" in names
    assert "cloudtrain/pages/templates/run_page.html" in names


def test_an_installed_wheel_finds_its_payload_without_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from cloudtrain.bundle import payload_files\nfiles = payload_files()\n"
    code += "print(files['cloudtrain_launcher/launch.py'], len(files))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    )
    assert process.stdout.startswith(
        str(
            tmp_path
            / "cloudtrain"
            / "_bundle"
            / "entrypoints"
            / "cloudtrain_launcher"
            / "launch.py"
        )
    )
    assert int(process.stdout.split()[-1]) > 15


HARD_PHRASES = {
    "cloudtrain": 30,
    "entrypoints": 30,
    "docs": 30,
    "tests": 34,
}
"""Maximum number of hard phrases per 10,000 words of docstrings, comments, messages and pages."""

PRONOUN_NAMES = {"cloudtrain": 6, "docs": 6, "entrypoints": 6, "tests": 6}
"""Maximum number of pronouns per 1,000 assigned names."""

MAX_TUPLE_ASSIGNMENTS = 15
"""Assignments such as `a, b = x, y` per 1,000 functions."""

HARD = re.compile(
    r"""(?mx)
      ^\s*Of\ (?:an?|the|all|each|its|what|which|one|those|these|this|that|some|two)\b
    | ^\s*(?:What|So\ many|So\ much|Which|Whether|Where)\ [^?\n]*[.:]?\s*$
    | \bwhere\ (?:there\ (?:is|are)|one\ (?:is|has)|none|no)\b
    | \b(?:by|of|from|to|with|in|on|at|for)\ which\b
    | \b(?:go|goes|going|gone|went)\ on\b
    | \b(?:is|are|was|were|has|have)\ no\ (?!longer|more\ than|such)\w+
    | \b(?:is|are|was|were|be|been)\ (?:told|said|asked)\b | \bsays?\ so\b
    | \bso\ (?:many|much|long|often|far)\b(?!\ (?:as\ to|that))
    | \bthe\ one\ (?:of|that|which)\b | \bthose\ (?:of|that|which)\b | \bthat\ of\b
    | \b(?:of|by|for|from|with|in|to|and)\ what\ (?:it|is|was|has|a|the|they|one|does|can|must)\b
    | \bas\ (?:it|they)\ (?:is|are|was|were|stands?)\b
    | \bof\ (?:one's|its|their|our|your)\ own\b
    | \b(?:nothing|nobody|none)\ (?:of|is|was|that|but|else|can|has|does)\b
    | \bany\ more\b
    | \b(?:that|which|what)\ (?:is|are|was|were)\ there\b
    | \b(?:all|each|every)\ (?:that|which)\b
    | \bstands?\ (?:in|for|at|beside|by|before|behind)\b
    """
)
PRONOUN = re.compile(
    r"_?(?:found|each|known|told|said|given|kept|left|there|here|such|same|others?|rest|own|ours"
    r"|theirs|what|which|whose|asked|seen|wanted|gone|done|so_far|now|then|again|about|beside"
    r"|within|near|among)"
)
MIN_WORDS = 3
"""A shorter string literal is a key or a word, not prose."""


COMMENT = re.compile(r"(?m)(?:^ *|  )#[! ]*(.+)")


def prose(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the places and texts of docstrings, comments, longer strings and Markdown pages."""
    for path, tree in trees(folder).items():
        name = path.relative_to(ROOT)
        for comment in COMMENT.finditer(path.read_text("utf-8")):
            yield str(name), comment[1]
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and len(text.split()) >= MIN_WORDS:
                yield f"{name}:{getattr(node, 'lineno', 0)}", text
    for path in sorted((ROOT / folder).rglob("*.md")):
        without_code = re.sub(r"(?ms)^(```|~~~).*?^\1", "", path.read_text("utf-8"))
        yield str(path.relative_to(ROOT)), re.sub(r"`[^`]*`|\]\([^)]*\)", " X ", without_code)


def assigned_names(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the name of each variable, parameter, function and class."""
    for path, tree in trees(folder).items():
        for node in ast.walk(tree):
            name = ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            if name:
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", name


@pytest.mark.parametrize("folder", HARD_PHRASES)
def test_hard_phrases_are_rare(folder: str) -> None:
    words = 0
    hits = []
    for place, text in prose(folder):
        words += len(text.split())
        hits += [f"{place}: {match[0].strip()[:60]}" for match in HARD.finditer(text)]
    assert 10_000 * len(hits) / words <= HARD_PHRASES[folder], "\n".join(hits[-40:])


@pytest.mark.parametrize("folder", PRONOUN_NAMES)
def test_names_are_nouns(folder: str) -> None:
    names = list(assigned_names(folder))
    hits = [f"{place}: {name}" for place, name in names if PRONOUN.fullmatch(name)]
    assert 1000 * len(hits) / len(names) <= PRONOUN_NAMES[folder], "\n".join(hits[-40:])


@pytest.mark.parametrize("folder", ["cloudtrain", "entrypoints", "tests"])
def test_a_line_assigns_one_thing(folder: str) -> None:
    functions = 0
    hits = []
    for path, tree in trees(folder).items():
        for node in ast.walk(tree):
            functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                continue
            if isinstance(node.targets[0], ast.Tuple):
                hits.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert 1000 * len(hits) / functions <= MAX_TUPLE_ASSIGNMENTS, "\n".join(hits)
