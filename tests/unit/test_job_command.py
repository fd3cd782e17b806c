"""A job without a file: a script and its flags mean what the job.yaml means that init writes of the
same words.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.cli.init import job_text
from cloudtrain.errors import SpecError, UsageError
from cloudtrain.spec.load import load_spec
from cloudtrain.spec.sources import job_folder
from cloudtrain.spec.written_arguments import written_arguments
from tests.support.in_process import call


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder with a script, and a second script in a subfolder, as the working folder."""
    (tmp_path / "project" / "src").mkdir(parents=True)
    for name in ("train.py", "src/other.py"):
        (tmp_path / "project" / name).write_text("print('trained')\n")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--", "--epochs", "3"),
        ("--nodes", "2", "--gpus", "8", "--gpu", "A100-80GB", "--", "--lr", "1e-3", "--amp"),
        ("--processes", "2", "--gpu", "H100,A100-80GB", "--gpus", "2"),
        ("--", "pos", "-v", "--x", "a b", "--x", "true"),
        ("--", "--name", "007", "--on", "true", "--text", "it's: a # test"),
    ],
)
def test_init_writes_what_submit_means_by_the_same_words(
    project: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = []
    plan = cloudtrain.plan

    def planned(job: cloudtrain.Job, *args: object, **more: object) -> cloudtrain.Plan:
        targets.append(job.spec)
        return plan(cloudtrain.load({}), "local")

    monkeypatch.setattr("cloudtrain.submission.jobs.plan", planned)
    assert call("plan", "train.py", *words).code == 0
    assert call("init", "train.py", *words).code == 0
    written, _ = load_spec(project / "job.yaml")
    assert written.args.argv == targets[0].args.argv
    assert written.model_copy(update={"args": targets[0].args}) == targets[0]


def test_a_folder_stands_for_its_job(project: Path) -> None:
    assert "wrote" in call("init", "../my-job", "--nodes", "3", "--", "--epochs", "1").err
    job = cloudtrain.load("../my-job")
    assert (job.spec.resources.nodes, job.spec.args.argv) == (3, ("--epochs", "1"))
    assert job.folder == project.parent / "my-job"
    with pytest.raises(UsageError, match="src: is a folder without"):
        cloudtrain.load("src")


def test_a_script_is_sent_with_the_folder_that_one_stands_in(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cloudtrain.load("src/other.py")
    assert (job.spec.entrypoint, job.folder) == ("src/other.py", project)
    monkeypatch.chdir(project / "src")
    assert cloudtrain.load("../train.py").folder == project


def test_a_home_folder_is_never_sent_with_a_script(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project))
    assert job_folder(Path("src/other.py")) == project / "src"


def test_arguments_come_after_those_of_the_file_and_flags_before_set(project: Path) -> None:
    (project / "job.yaml").write_text("entrypoint: train.py\nargs: {epochs: 1}\n")
    shown = call("plan", "--nodes", "2", "--set", "resources.nodes=3", "--", "--epochs", "5").out
    assert "train.py --epochs 1 --epochs 5      3 processes" in shown
    assert "args  ← -- --epochs 5" in shown


def test_a_mistake_in_a_flag_is_told_at_the_flag(project: Path) -> None:
    result = call("plan", "train.py", "--gpus", "1", "--gpu", "A100-80")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(
        "--gpu A100-80: resources.gpu: unknown GPU 'A100-80' (did you mean 'A100-80GB'?)"
    )


def test_a_script_that_is_not_there_is_told_with_the_one_that_was_meant(project: Path) -> None:
    with pytest.raises(
        SpecError,
        match=r"command line: entrypoint: no such file .*trian.py \(did you mean 'train.py'",
    ):
        cloudtrain.load("trian.py")


def test_a_job_file_beside_a_script_is_said_to_be_left_alone(project: Path) -> None:
    (project / "job.yaml").write_text("entrypoint: src/other.py\n")
    assert (
        "note: job.yaml is not read: train.py is submitted without it"
        in call("plan", "train.py").err
    )


def test_options_of_the_program_are_told_where_they_go(project: Path) -> None:
    result = call("submit", "train.py", "--epochs", "3")
    assert result.code == 2
    assert "If it is for the program: cloudtrain submit train.py -- --epochs 3" in result.err


def test_a_rerun_has_the_flags_and_arguments_of_its_run(project: Path) -> None:
    job = cloudtrain.load("train.py", ["resources.nodes=2"], arguments=["--epochs", "3"])
    assert job.document.overrides == ('args=["--epochs", "3"]', "resources.nodes=2")
    assert job.document.text == 'entrypoint: "train.py"\n'


def test_what_is_not_given_is_a_comment_in_the_job_of_a_script() -> None:
    lines = [
        line
        for line in job_text({}, (), "my train.py").splitlines()
        if line and not line.lstrip().startswith("#")
    ]
    assert [line.partition("#")[0].strip() for line in lines] == [
        'entrypoint: "my train.py"',
        "resources:",
        "nodes: 1",
    ]


def test_arguments_are_written_as_a_mapping_where_it_means_the_same() -> None:
    assert written_arguments(["--epochs", "3", "--amp"]) == "{epochs: 3, amp: true}"
    assert written_arguments(["--epochs=3"]) == '["--epochs=3"]'
