"""Archives in S3 are fetched as untrusted: damaged ones are refused, odd entries named, the rest
arrives.
"""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudtrain.errors import StorageError
from cloudtrain.submission.lookup import find_run
from cloudtrain.submission.run import Run
from tests.fakes.aws.cloud import Cloud
from tests.providers.aws.archives import (
    DAMAGED,
    HOSTILE,
    LEFT_BUT_THE_REST_ARRIVES,
    LINK,
    WHOLE,
    Kept,
    entry,
    packed,
)
from tests.providers.aws.jobs import exists, submitted


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(cloud: Cloud, data_dir: str) -> Run:
    """Return one run for all archives; a fetch does not change it."""
    return (
        find_run("left-1", data_dir=data_dir)
        if exists(cloud, "left-1")
        else submitted("left-1", data_dir)
    )


def content(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): f"-> {path.readlink()}"
        if path.is_symlink()
        else path.read_text()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


@pytest.mark.parametrize("case", LEFT_BUT_THE_REST_ARRIVES, ids=lambda case: case.name)
def test_one_unusual_entry_does_not_keep_the_rest_from_being_fetched(
    cloud: Cloud, run: Run, tmp_path: Path, case: Kept
) -> None:
    archive = packed(entry("good", text="fine"), *case.entries, entry("last", text="too"))
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", archive)
    notes: list[str] = []
    run.fetch(tmp_path / "result", note=notes.append)
    assert content(tmp_path / "result" / "model") == {"good": "fine", **case.arrives, "last": "too"}
    assert len(notes) == len(case.named)
    for note, begin in zip(sorted(notes), case.named, strict=True):
        assert note.startswith(begin)
    modes = [path.stat().st_mode for path in (tmp_path / "result" / "model").rglob("*")]
    assert not any(mode & (stat.S_ISUID | stat.S_ISGID) for mode in modes)


@pytest.mark.parametrize("name", [*DAMAGED, *HOSTILE])
def test_a_damaged_or_hostile_archive_is_refused_and_leaves_nothing(
    cloud: Cloud, run: Run, tmp_path: Path, name: str
) -> None:
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", (DAMAGED | HOSTILE)[name])
    with pytest.raises(StorageError, match=r"the archive is damaged or hostile: .") as caught:
        run.fetch(tmp_path / "deep" / "result")
    assert caught.value.hint == "aws s3 cp brings it as it is"
    assert not (tmp_path / "outside").exists()
    assert list((tmp_path / "deep").iterdir()) == []


def test_an_archive_that_the_disk_cannot_take_is_refused_before_it_is_full(
    cloud: Cloud, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", WHOLE)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=8000))
    with pytest.raises(StorageError, match=r"more than the 8.0 kB free here") as caught:
        run.fetch(tmp_path / "deep" / "result")
    assert "free some space" in str(caught.value.hint)
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_run_whose_files_all_were_left_out_says_which(
    cloud: Cloud, run: Run, tmp_path: Path
) -> None:
    cloud.put(
        f"cloudtrain/runs/{run.id}/output/model.tar.gz",
        packed(entry("best", LINK, "/opt/ml/checkpoints/7")),
    )
    with pytest.raises(StorageError) as caught:
        run.fetch(tmp_path / "result")
    assert "model/best was left out: a link that leads out" in caught.value.message
