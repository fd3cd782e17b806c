"""Fetched files are not sent with the next job, and are fetched again to the same place."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import UsageError
from tests.support.earlier_runs import earlier_runs
from tests.support.in_process import call


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cloudtrain.Run:
    """Return a finished run with a model, in the folder of its job."""
    data = earlier_runs("local", tmp_path / "kept", tmp_path / "job")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", data)
    (tmp_path / "job").mkdir(exist_ok=True)
    (tmp_path / "job" / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path / "job")
    return cloudtrain.find_run("old-local")


@pytest.mark.parametrize("folder", [None, "results/here"])
def test_it_is_not_sent_with_the_next_job(run: cloudtrain.Run, folder: str | None) -> None:
    before = cloudtrain.plan(cloudtrain.load("train.py"), "local").context.source
    place = run.fetch(folder)
    assert (place / "model" / "model.txt").is_file()
    assert cloudtrain.plan(cloudtrain.load("train.py"), "local").context.source == before


def test_a_folder_elsewhere_holds_what_was_fetched_and_nothing_else(
    run: cloudtrain.Run, tmp_path: Path
) -> None:
    assert [path.name for path in run.fetch(tmp_path / "result").iterdir()] == ["model"]


def test_a_forced_fetch_replaces_what_an_earlier_one_brought_and_leaves_the_rest(
    run: cloudtrain.Run,
) -> None:
    place = run.fetch()
    (place / "model" / "model.txt").write_text("changed\n")
    (place / "model" / "stale.txt").touch()
    (place / "notes.txt").write_text("mine\n")
    with pytest.raises(UsageError, match="exists and is not empty") as refused:
        run.fetch()
    assert "--force replaces" in str(refused.value.hint)
    assert call("fetch", "old-local", "--force").code == 0
    assert (place / "model" / "model.txt").read_text() == "weights\n"
    assert [(place / "model" / "stale.txt").exists(), (place / "notes.txt").read_text()] == [
        False,
        "mine\n",
    ]


def test_a_forced_fetch_into_a_folder_of_ones_own_hides_nothing_in_it(
    run: cloudtrain.Run, tmp_path: Path
) -> None:
    run.fetch(".", force=True)
    assert (tmp_path / "job" / "model" / "model.txt").is_file()
    assert [(tmp_path / "job" / name).exists() for name in ("train.py", ".gitignore")] == [
        True,
        False,
    ]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="exists and is not empty"):
        run.fetch(tmp_path / "file", force=True)
