"""Removal of runs: what is used stays, and a kill at any point leaves a run whole or buried."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.api import removal
from cloudtrain.api.context import archive_of, pack_source
from cloudtrain.api.costs import cost_of
from cloudtrain.api.listing import list_runs
from cloudtrain.api.removal import prunable, removable, remove
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.in_use import in_use
from cloudtrain.runs.store import SWEEPS, RunStore
from cloudtrain.runs.tombstones import bury, tombstones
from cloudtrain_wire.environments import COMPLETE
from cloudtrain_wire.file_locks import locked
from tests.support.in_process import call
from tests.support.samples import BORN, born, write_events

ENDED = {"type": "ended", "time": 200.0, "state": "succeeded"}
OLD = 30 * 86_400.0


def ended(store: RunStore, run_id: str, plan: str = "{}", when: float = 100.0) -> RunFolder:
    """A run that has succeeded at once, with a file."""
    run = born(store, run_id, {**ENDED, "time": when}, created=when)
    (run.path / "plan.json").write_text(plan)
    (run.path / "model").mkdir()
    (run.path / "model" / "weights").write_bytes(b"x" * 1000)
    return run


def names(things: list[removal.Removable]) -> list[str]:
    return [thing.name for thing in things]


def prune(store: RunStore, older: float = OLD, keep: int = 0) -> list[str]:
    """Remove what may go, and return its names."""
    runs = list_runs(data_dir=str(store.data_dir))
    return names(remove(store, prunable(store, runs, (), older=older, keep=keep)))


def listed(store: RunStore) -> list[str]:
    return sorted(run["run"] for run in list_runs(data_dir=str(store.data_dir)))


@pytest.mark.parametrize(("requested", "usd"), [(None, 0.0), (60.0, None), (90_000.0, 0.0)])
def test_a_run_without_a_job_costs_nothing_unless_its_job_may_appear(
    store: RunStore, requested: float | None, usd: float | None
) -> None:
    now = time.time()
    events: list[dict[str, Any]] = [{**ENDED, "state": "failed", "time": now}]
    if requested is not None:
        events.insert(0, {"type": "creating", "time": now - requested})

    run = born(store, "a-1", *events)
    (summary,) = list_runs(data_dir=str(store.data_dir), ask_clouds=False)
    assert cost_of(run, summary, now)["usd"] == usd


def test_a_removed_run_leaves_its_tombstone_alone(store: RunStore) -> None:
    ended(store, "a-1")
    ended(store, "a-2")
    assert names(remove(store, removable(store, ["a-1"], ()))) == ["a-1"]
    assert listed(store) == ["a-2"]
    (line,) = tombstones(store.data_dir)
    assert (line["run"], line["state"], line["ended"]) == ("a-1", "succeeded", 100.0)
    assert not list((store.data_dir / removal.REMOVED).iterdir())


def test_the_size_of_a_run_is_listed(store: RunStore) -> None:
    run = ended(store, "a-1")
    os.link(run.path / "model" / "weights", run.path / "model" / "again")
    files = [path for path in run.path.rglob("*") if path.is_file() and path.name != "again"]
    (summary,) = list_runs(data_dir=str(store.data_dir))
    assert summary["bytes"] == sum(path.stat().st_size for path in files)
    assert "1.2 kB" in call("--data-dir", str(store.data_dir), "list").out


def running(store: RunStore) -> None:
    born(store, "a-1", {"type": "submitted", "time": 101.0, "ref": {"pid": 7}})


def damaged(store: RunStore) -> None:
    ended(store, "a-1").events_file.write_text("not JSON\n")


def may_appear(store: RunStore) -> None:
    requested = {"type": "creating", "time": time.time()}
    born(store, "a-1", requested, {**ENDED, "state": "failed", "time": time.time()})


def continued(store: RunStore) -> None:
    ended(store, "a-1")
    plan = {"facts": {"resume_from": "s3://b/runs/a-1/checkpoints"}}
    ended(store, "a-2", json.dumps(plan), when=time.time())


def trial_source(store: RunStore) -> None:
    ended(store, "a-1")
    sweep = store.data_dir / SWEEPS / "s-1"
    sweep.mkdir(parents=True)
    (sweep / "plan.json").write_text('{"inputs": "/data/runs/a-1/model"}')


def linked(store: RunStore) -> None:
    run = ended(store, "a-1").path
    run.rename(store.data_dir.parent / "elsewhere")
    run.symlink_to(store.data_dir.parent / "elsewhere")


def with_containers(store: RunStore) -> None:
    ended(store, "a-1")
    (store.data_dir / "leftovers").mkdir()
    (store.data_dir / "leftovers" / "a-1").touch()


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (running, "it is pending"),
        (damaged, "do not tell whether it runs"),
        (may_appear, "its job may still appear"),
        (continued, "a-2 continues from it"),
        (trial_source, "s-1 continues from it"),
        (linked, "a link leads out of"),
        (with_containers, "its end is not settled"),
    ],
)
def test_what_is_used_stays(
    store: RunStore, prepare: Callable[[RunStore], None], reason: str
) -> None:
    prepare(store)
    ended(store, "b-1")
    before = sorted(store.runs_dir.iterdir())
    with pytest.raises(UsageError, match=reason):
        removable(store, ["a-1", "b-1"], ())
    assert sorted(store.runs_dir.iterdir()) == before
    assert "a-1" not in prune(store)


@pytest.mark.parametrize("lock", ["submit.lock", "supervisor.lock", "logs/reading.lock"])
def test_a_run_that_another_process_drives_stays(store: RunStore, lock: str) -> None:
    run = ended(store, "a-1")
    with locked(run.path / lock), pytest.raises(UsageError, match="another process uses it"):
        removable(store, ["a-1"], ())


def test_a_run_that_is_watched_from_the_question_on_stays(store: RunStore) -> None:
    run = ended(store, "a-1")
    things = removable(store, ["a-1"], ())
    with in_use(run.path):
        assert remove(store, things) == []
    assert listed(store) == ["a-1"]
    assert tombstones(store.data_dir) == []


def test_a_run_that_is_continued_from_the_question_on_stays(store: RunStore) -> None:
    ended(store, "a-1")
    things = removable(store, ["a-1"], ())
    ended(store, "a-2", '{"resume_from": "/data/runs/a-1/checkpoints"}')
    assert remove(store, things) == []


def test_a_run_goes_with_all_that_continue_from_it(store: RunStore) -> None:
    continued(store)
    assert sorted(names(remove(store, removable(store, ["a-1", "a-2"], ())))) == ["a-1", "a-2"]


def test_links_in_a_run_are_not_followed(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data").write_text("kept")
    run = ended(store, "a-1")
    (run.path / "output").symlink_to(tmp_path / "mine")
    (run.path / "model" / "link").symlink_to(tmp_path / "mine" / "data")
    remove(store, removable(store, ["a-1"], ()))
    assert (tmp_path / "mine" / "data").read_text() == "kept"


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete no folder that has one without write permission in it, as for a user but root."""
    delete = shutil.rmtree

    def deleted(path: Path, ignore_errors: bool = False) -> None:
        folders = [path, *(below for below in path.rglob("*") if below.is_dir())]
        if all(folder.is_symlink() or folder.stat().st_mode & 0o200 for folder in folders):
            delete(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", deleted)


@pytest.mark.usefixtures("refusing")
def test_folders_without_write_permission_are_deleted(store: RunStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    run = ended(store, "a-1")
    (run.path / "model" / "link").symlink_to(outside)
    (run.path / "model" / "below").mkdir(mode=0o500)
    (run.path / "model").chmod(0o500)
    remove(store, removable(store, ["a-1"], ()))
    assert not list((store.data_dir / removal.REMOVED).iterdir())
    assert outside.stat().st_mode & 0o777 == 0o500


def test_what_cannot_be_deleted_does_not_keep_the_rest(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = shutil.rmtree
    for run_id in ("a-1", "a-2", "a-3"):
        ended(store, run_id)

    def deleted(path: Path, ignore_errors: bool = False) -> None:
        if "a-2" not in str(path):
            delete(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", deleted)
    with pytest.raises(StorageError, match=r"a-2\.\w+: some files"):
        remove(store, removable(store, ["a-1", "a-2", "a-3"], ()))
    (left,) = (store.data_dir / removal.REMOVED).iterdir()
    assert left.name.startswith("a-2.")


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Kill the process before or after one change of the disk, by its number."""
    plan = {"step": 0, "kill_at": 0}

    def killing(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **options: Any) -> Any:
            for after in (False, True):
                result = change(*args, **options) if after else None
                plan["step"] += 1
                if plan["step"] == plan["kill_at"]:
                    raise Killed

            return result

        return changed

    monkeypatch.setattr("cloudtrain.api.removal.bury", killing(bury))
    monkeypatch.setattr(Path, "rename", killing(Path.rename))
    monkeypatch.setattr(Path, "unlink", killing(Path.unlink))
    monkeypatch.setattr(os, "unlink", killing(os.unlink))
    monkeypatch.setattr(shutil, "rmtree", killing(shutil.rmtree))
    yield plan
    monkeypatch.undo()


def test_a_kill_at_any_step_leaves_each_run_whole_or_buried(
    steps: dict[str, int], tmp_path: Path
) -> None:
    for kill_at in range(1, 100):
        store = RunStore(tmp_path / str(kill_at))
        whole = {run: sorted(ended(store, run).path.rglob("*")) for run in ("a-1", "a-2", "a-3")}
        things = removable(store, list(whole), ())
        steps |= {"step": 0, "kill_at": kill_at}
        try:
            remove(store, things)
        except Killed:
            was_killed = True
        else:
            was_killed = False

        steps["kill_at"] = 0
        buried = {line["run"] for line in tombstones(store.data_dir)}
        for run, files in whole.items():
            if run in listed(store):
                left = list((store.runs_dir / run).rglob("*"))
                assert sorted(set(files) - set(left)) == []
            else:
                assert run in buried

        still = [run for run in whole if run in listed(store)]
        remove(store, removable(store, still, ()))
        assert listed(store) == []
        assert {line["run"] for line in tombstones(store.data_dir)} == set(whole)
        assert not list((store.data_dir / removal.REMOVED).iterdir())
        if not was_killed:
            assert kill_at > 9
            return

    raise AssertionError("every removal was killed")


def test_prune_keeps_the_newest_of_each_job_and_what_is_new(store: RunStore) -> None:
    for number in range(4):
        ended(store, f"a-{number}", when=100.0 + number)
    ended(store, "new", when=time.time())
    assert prune(store, keep=2) == ["a-2", "a-1", "a-0"]
    assert listed(store) == ["a-3", "new"]


def test_a_sweep_goes_with_its_trials_once_all_have_ended(store: RunStore) -> None:
    for run in ("s-1-t000", "s-1-t001"):
        ended(store, run)
    (store.data_dir / SWEEPS / "s-1").mkdir(parents=True)
    with pytest.raises(UsageError, match="it is a trial of s-1"):
        removable(store, ["s-1-t000"], ())
    with pytest.raises(UsageError, match="it has not ended"):
        removable(store, ["s-1"], ["s-1"])
    with locked(store.data_dir / SWEEPS / "s-1" / "driver.lock"):
        assert prune(store) == []
    assert sorted(prune(store)) == ["s-1", "s-1-t000", "s-1-t001"]


def test_sources_and_environments_go_when_no_run_needs_them(store: RunStore) -> None:
    ended(store, "a-1", '{"digest": "d1"}')
    ended(store, "a-2", '{"digest": "d2"}', when=time.time())
    for name in (
        "sources/d1.tar.gz",
        "sources/d2.tar.gz",
        "sources/.d3.tmp",
        f"packages/e/{COMPLETE}",
    ):
        path = store.data_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (100, 100))

    (store.data_dir / "sources" / "d4.tar.gz").touch()
    going = store.create("going", {"plan.json": "{}"})
    write_events(going, {**BORN, "provider": "aws"})
    runs = list_runs(data_dir=str(store.data_dir), ask_clouds=False)
    may_go = prunable(store, runs, (), older=OLD, keep=0)
    assert sorted(names(may_go)) == [".d3.tmp", "a-1", "d1.tar.gz"]

    shutil.rmtree(going.path)
    assert sorted(prune(store)) == [".d3.tmp", "a-1", "d1.tar.gz", "packages"]
    assert not (store.data_dir / "packages").exists()
    kept = sorted(path.name for path in (store.data_dir / "sources").iterdir())
    assert kept == ["d2.tar.gz", "d4.tar.gz"]


def test_a_source_that_a_submit_has_just_reused_stays(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)")
    job = cloudtrain.load({"name": "a", "entrypoint": "train.py", "source": str(code)})
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(store.data_dir))
    plan = cloudtrain.plan(job, "local")
    archive = pack_source(plan, None)

    def make_old() -> None:
        for path in archive.parent.iterdir():
            os.utime(path, (100, 100))

    make_old()
    (thing, _) = sorted(prunable(store, [], (), older=OLD, keep=0), key=lambda each: each.name)
    assert pack_source(plan, None) == archive
    assert remove(store, [thing]) == []
    assert prune(store) == []
    make_old()
    assert archive_of(plan) == archive
    assert prune(store) == []
    make_old()
    assert archive.name in prune(store)


def test_environments_stay_for_a_run_that_began_after_the_question(store: RunStore) -> None:
    (store.data_dir / "packages").mkdir(parents=True)
    things = [removal.Removable(store.data_dir / "packages")]
    write_events(store.create("going", {"plan.json": "{}"}), {**BORN, "provider": "aws"})
    assert remove(store, things) == []


def test_removal_asks_and_without_a_terminal_needs_yes(store: RunStore) -> None:
    ended(store, "a-1")
    folder = str(store.data_dir)
    refused = call("--data-dir", folder, "rm", "a-1")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert call("--data-dir", folder, "rm", "a-1", "--dry-run").code == 0
    assert listed(store) == ["a-1"]
    (gone,) = json.loads(call("--data-dir", folder, "rm", "a-1", "--yes", "--json").out)
    assert (gone["name"], gone["removed"]) == ("a-1", True)
    assert listed(store) == []
