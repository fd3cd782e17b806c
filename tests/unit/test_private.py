"""Files on this machine are private to one user whatever the umask, including those an earlier
version left open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.providers.rehearsal.plain import unpack
from cloudtrain.runs.files import restrict_permissions
from cloudtrain.runs.history import History
from cloudtrain.runs.index import index_run, summaries
from cloudtrain.runs.store import RunStore
from cloudtrain.source.archive import pack
from cloudtrain.source.scan import scan
from cloudtrain_launcher.events import Ended, Submitting
from cloudtrain_launcher.file_locks import FileLock
from tests.support.samples import write


@pytest.fixture(params=[0o022, 0o000], ids=["the usual umask", "none"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def open_to_others(top: Path) -> list[str]:
    return [
        str(path.relative_to(top))
        for path in (top, *top.rglob("*"))
        if path.lstat().st_mode & 0o077
    ]


SUBMITTING = Submitting(
    time=1.0, name="a", provider="local", contract="plain", nodes=1, processes=1
)


def test_everything_in_the_data_folder_is_private(umask: None, tmp_path: Path) -> None:
    data = tmp_path / "share" / "cloudtrain"
    source = write(tmp_path / "job", {"train.py": "", "pkg/run.sh": "", "key": "secret"})
    (source / "key").chmod(0o600)
    (source / "pkg" / "run.sh").chmod(0o755)
    held: list[FileLock] = []
    store = RunStore(data)
    run = store.create("a-1", {"plan.json": "{}", "request.json": "{}"}, SUBMITTING, held)
    held[0].release()
    run.append(Ended(time=2.0, state="succeeded"))
    index_run(run, History(run).read())
    archive = pack(scan(source, None, data / "cache"), data / "sources")
    unpack(archive, run.path / "nodes" / "0" / "source")
    assert summaries(store)[0]["state"] == "succeeded"
    assert open_to_others(tmp_path / "share") == []
    assert os.access(run.path / "nodes/0/source/pkg/run.sh", os.X_OK)


def test_what_an_earlier_version_left_open_is_closed_at_the_next_look(
    umask: None, tmp_path: Path
) -> None:
    write(
        tmp_path,
        {"runs/a-1/plan.json": "{}", "sources/x.tar.gz": "", "index.jsonl": "", "mine/file": ""},
    )
    for path in ("runs", "sources", "mine", "mine/file"):
        (tmp_path / path).chmod(0o755)
    assert RunStore(tmp_path).ids() == ["a-1"]
    modes = {
        name: (tmp_path / name).stat().st_mode & 0o777
        for name in ("runs", "sources", "mine", "mine/file")
    }
    assert modes == {"runs": 0o700, "sources": 0o700, "mine": 0o755, "mine/file": 0o755}
    assert not (tmp_path / "index.jsonl").stat().st_mode & 0o077


def test_a_link_and_what_belongs_to_somebody_else_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("elsewhere", "data/sources"):
        (tmp_path / name).mkdir(parents=True, mode=0o755)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "data" / "runs").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    restrict_permissions(tmp_path / "data")
    assert (tmp_path / "data" / "sources").stat().st_mode & 0o777 == 0o755
    monkeypatch.undo()
    restrict_permissions(tmp_path / "data")
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "data" / "sources").stat().st_mode & 0o777 == 0o700
