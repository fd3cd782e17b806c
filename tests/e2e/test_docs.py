"""A newcomer follows the pages, and GitHub the workflow of a pull request's job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from make_outputs import difference, play
from make_picture import CHARACTER, PICTURE, session, shown
from pages import blocks, name_of, pages
from tests.repo.tools import ROOT
from tests.support.page_checks import Browser
from tests.support.waiting import HANG_SECONDS

# A newcomer follows the pages word for word: every session and every snippet is run, and prints
# what is shown.

LONG_SESSIONS = ("docs/guides/my-script.md", "docs/guides/your-model.md")
"""Pages whose commands train several times."""

SESSIONS = [
    pytest.param(page, id=name, marks=[pytest.mark.thorough] if name in LONG_SESSIONS else [])
    for page in pages()
    if any(block.language in ("console", "python") for block in blocks(page))
    for name in [name_of(page)]
]


@pytest.mark.torchrun
@pytest.mark.parametrize("page", SESSIONS)
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path) -> None:
    wrong = [step.difference() for step in play(page, tmp_path / "reader") if step.difference()]
    assert not wrong, "\n".join(
        [*wrong, f"python docs/make/make_outputs.py --write {name_of(page)}"]
    )


@pytest.mark.thorough
@pytest.mark.torchrun
def test_the_picture_shows_a_session_as_it_is(tmp_path: Path) -> None:
    pictured = shown(PICTURE.read_text())
    reader = session(tmp_path / "reader")
    assert [command for command, _ in pictured] == [command for command, _ in reader]
    for (_, expected), (command, printed) in zip(pictured, reader, strict=True):
        assert difference(expected, printed) == [], (
            f"{command}: run python docs/make/make_picture.py"
        )


COLUMN_WIDTHS = """[...document.querySelectorAll('tspan')].map(span => {
  const text = span.textContent;
  const characters = [...Array(span.getNumberOfChars()).keys()];
  const widths = characters.map(number => span.getExtentOfChar(number).width);
  return {text, columns: text.length, widths};
})"""
"""Of each coloured span of the picture: its text, and the width of each character drawn."""


def test_every_character_of_the_picture_has_its_own_column(browser: Browser) -> None:
    spans = browser.run(PICTURE, COLUMN_WIDTHS)
    assert spans
    for span in spans:
        assert len(span["widths"]) == span["columns"], span["text"]
        assert span["widths"] == pytest.approx([CHARACTER] * span["columns"], abs=0.1), span["text"]


def test_a_slow_machine_may_print_what_it_waits_for() -> None:
    shown = "digits-a1b2\n  epoch 1\nsucceeded in 20 s\n"
    slow = "digits-c3d4\n  waiting for peers for 1 min 5 s\n  epoch 1\nsucceeded in 2 min\n"
    assert difference(shown, slow) == []
    assert difference(shown, slow.replace("epoch", "step")) != []


# The workflow of a pull request's job: its own steps, run as GitHub runs them, with what GitHub
# reads.

TRAIN = yaml.safe_load((ROOT / ".github/workflows/train.yml").read_text())
PLAN = ROOT / ".github/actions/plan"
MATCHER = ROOT / ".github/actions/setup/mistakes.json"
"""Expression of GitHub for mistakes in the output of a step."""
STEPS = [
    *TRAIN["jobs"]["rehearse"]["steps"],
    *yaml.safe_load((PLAN / "action.yml").read_text())["runs"]["steps"],
]
ONE = "resources.nodes=1\nresources.gpus=0\nresources.processes=1\n"
AWS = {
    "CLOUDTRAIN_AWS_REGION": "us-east-1",
    "CLOUDTRAIN_AWS_ROLE": "arn:aws:iam::123456789012:role/jobs",
    "CLOUDTRAIN_AWS_BUCKET": "jobs-bucket",
}


@pytest.fixture
def change(tmp_path: Path) -> Path:
    """Provide a pull request with a job on GPUs, beside its base, and cloudtrain on the PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cloudtrain").symlink_to(Path(sys.executable).with_name("cloudtrain"))
    for name in ("change", "base"):
        folder = tmp_path / name / "training"
        folder.mkdir(parents=True)
        (folder / "job.yaml").write_text(
            "name: cat\nentrypoint: train.py\nresources: {nodes: 4, gpus: 8, gpu: H100}\nlimits:"
            " {max_cost: 500 USD}\n"
        )
        (folder / "train.py").write_text("print('trained')\n")
    return tmp_path / "change"


def step(
    change: Path, name: str, provider: str = "aws", **values: str
) -> subprocess.CompletedProcess[str]:
    """One step of the workflow or its action, in the shell that GitHub takes: `bash -e`."""
    (script,) = (step["run"] for step in STEPS if step.get("name") == name)
    top = change.parent
    env = {
        **os.environ,
        "JOB": "training/job.yaml",
        "GITHUB_ACTIONS": "true",
        "PROVIDER": provider,
        "REHEARSE_WITH": ONE,
    }
    env |= {
        "RUNNER_TEMP": str(top),
        "GITHUB_WORKSPACE": str(change),
        "GITHUB_ACTION_PATH": str(PLAN),
    }
    env |= {
        "GITHUB_STEP_SUMMARY": str(top / "summary.md"),
        "REHEARSE_ON": "local",
        "BASE": str(top / "base"),
    }
    env |= {"PATH": f"{top / 'bin'}:{os.environ['PATH']}", **values}
    argv = ["bash", "-e", "-c", script]
    return subprocess.run(
        argv, cwd=change, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )


@pytest.mark.torchrun
def test_a_job_for_gpus_is_rehearsed(change: Path) -> None:
    assert step(change, "Check").returncode == 0
    process = step(change, "Rehearse", "azure")
    assert process.returncode == 0, process.stderr
    assert "as Azure ML would run it" in process.stderr
    assert process.stderr.count("trained") == 1


def test_each_mistake_of_the_spec_appears_at_its_line(change: Path) -> None:
    job = change / "training" / "job.yaml"
    job.write_text(job.read_text() + "env: {A: [1, 2]}\ninputs: 3\n")
    process = step(change, "Check")
    assert process.returncode == 2
    (matcher,) = json.loads(MATCHER.read_text())["problemMatcher"]
    pattern = re.compile(matcher["pattern"][0]["regexp"])
    matches = [match for match in map(pattern.match, process.stderr.splitlines()) if match]
    assert [match.group(1, 2, 3) for match in matches] == [
        ("training/job.yaml", "5", "7"),
        ("training/job.yaml", "6", "1"),
    ]
    assert matches[1][4].startswith("inputs: ")


def test_request_change_is_a_comment_in_blocks_its_text_cannot_end(
    change: Path,
) -> None:
    job = change / "training" / "job.yaml"
    job.write_text(
        job.read_text().replace("nodes: 4", "nodes: 2") + "env: {NOTE: '~~~ @everyone'}\n"
    )
    process = step(change, "Plan", **AWS)
    assert process.returncode == 0, process.stderr
    text = (change.parent / "summary.md").read_text()
    assert text.splitlines()[0].startswith("<!-- cloudtrain ")
    assert "2 x ml.p5.48xlarge" in text
    assert '-      "InstanceCount": 4' in text
    assert '+      "InstanceCount": 2' in text
    fences = [line for line in text.splitlines() if line.startswith("~" * 60)]
    assert fences == ["~" * 60 + "text", "~" * 60, "~" * 60 + "diff", "~" * 60]


def test_job_without_an_account_is_planned_and_the_comment_explains(
    change: Path,
) -> None:
    process = step(change, "Plan")
    assert process.returncode == 0, process.stderr
    text = (change.parent / "summary.md").read_text()
    assert "4 x ml.p5.48xlarge" in text
    assert "The request before this change cannot be planned:" in text
    assert "aws.region: is not set" in text


def test_a_job_that_is_new_has_nothing_to_compare(change: Path) -> None:
    (change.parent / "base" / "training" / "job.yaml").unlink()
    assert step(change, "Plan", **AWS).returncode == 0
    assert (change.parent / "summary.md").read_text().endswith("The job is new.\n")


@pytest.mark.parametrize("existing", [False, True], ids=["first", "again"])
def test_there_is_one_comment_per_job_and_provider(change: Path, existing: bool) -> None:
    top = change.parent
    (top / "plan.md").write_text("<!-- cloudtrain abc -->\nbody\n")
    listed = "7\t<!-- cloudtrain other -->\n" + ("8\t<!-- cloudtrain abc -->\n" if existing else "")
    (top / "listed").write_text(listed)
    (top / "bin" / "gh").write_text(
        f'#!/bin/sh\ncase "$*" in *--paginate*) cat "{top}/listed";; *) printf "%s\\n" "$@"'
        f' >"{top}/called";; esac\n'
    )
    (top / "bin" / "gh").chmod(0o755)
    process = step(change, "Comment", COMMENTS="repos/owner/name/issues/3/comments")
    assert process.returncode == 0, process.stderr
    method, path = (
        ("PATCH", "repos/owner/name/issues/comments/8")
        if existing
        else ("POST", "repos/owner/name/issues/3/comments")
    )
    called = (top / "called").read_text().splitlines()
    assert called == [
        "api",
        "--silent",
        "--method",
        method,
        path,
        "--field",
        f"body=@{top}/plan.md",
    ]


def test_what_is_installed_is_the_commit_of_the_workflow_and_no_name_of_an_index() -> None:
    setup = (ROOT / ".github/actions/setup/action.yml").read_text()
    assert 'root=$(realpath "$GITHUB_ACTION_PATH/../../..")' in setup
    assert '--no-index --no-deps --no-build-isolation "$root"' in setup
    assert (ROOT / ".github/actions/setup/../../../pyproject.toml").is_file()
