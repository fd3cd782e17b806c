"""Results: copied, kept, fetched, and those of runs of version 0.1.0."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import UsageError
from cloudtrain.providers import get_provider
from cloudtrain.providers.rehearsal.sagemaker import FileStates, sync_folder
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.state import RunState
from tests.support.in_process import call
from tests.support.samples import earlier_runs, write

# Results on this machine are copied without following links out, and one odd entry does not stop
# the rest.


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of this machine that has left a model."""
    write(tmp_path / "data/runs/a-1/model", {"weights": "w", "step-2/deep/x": "x"})
    return RunFolder(tmp_path / "data/runs/a-1")


def fetched(run: RunFolder, into: Path, provider: str = "local") -> tuple[list[str], list[str]]:
    """Return the fetched names and the notes about the rest."""
    notes: list[str] = []
    state = RunState(run_id=run.run_id)
    artifacts = get_provider(provider).fetch(
        run, state, ("model", "output"), into, None, notes.append
    )
    return artifacts, sorted(notes)


def test_links_inside_are_kept_as_relative_ones_and_others_are_named(
    run: RunFolder, tmp_path: Path
) -> None:
    model = run.path / "model"
    write(tmp_path, {"secret": "s"})
    (model / "latest").symlink_to(model / "step-2")
    (model / "step-2" / "up").symlink_to("../weights")
    (model / "secret").symlink_to(tmp_path / "secret")
    (model / "up").symlink_to("../../../../secret")
    (model / "gone").symlink_to("nowhere")
    (model / "of-azure.cloudtrain-link").write_text("step-2/deep")
    artifacts, notes = fetched(run, tmp_path / "result")
    copy = tmp_path / "result" / "model"
    assert artifacts == ["model"]
    assert sorted(path.name for path in copy.iterdir()) == [
        "latest",
        "of-azure",
        "step-2",
        "weights",
    ]
    assert (copy / "latest").readlink() == Path("step-2")
    assert (copy / "step-2" / "up").read_text() == "w"
    assert (copy / "of-azure" / "x").read_text() == "x"
    assert notes == [
        "model/gone was left out: a broken link: nowhere does not exist or is not in the archive",
        (
            "model/secret was left out: a link that leads out of what the job left"
            f" ({tmp_path}/secret)"
        ),
        "model/up was left out: a link that leads out of what the job left (../../../../secret)",
    ]


def test_pipes_sockets_and_devices_are_named_and_never_opened(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = run.path / "model"
    os.mkfifo(model / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(model)  # a socket's path may have 107 bytes
        server.bind("socket")
    expected = [
        "model/pipe was left out: a FIFO, not a file",
        "model/socket was left out: a socket, not a file",
    ]
    try:
        os.mknod(model / "endless", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        expected.insert(0, "model/endless was left out: a device, not a file")
    except PermissionError:
        pass  # not for everyone to make
    assert fetched(run, tmp_path / "result") == (["model"], expected)
    assert (tmp_path / "result/model/weights").read_text() == "w"


def test_a_folder_that_was_replaced_by_a_link_is_not_followed(
    run: RunFolder, tmp_path: Path
) -> None:
    write(tmp_path, {"home/private": "s"})
    (run.path / "output").symlink_to(tmp_path / "home")
    artifacts, notes = fetched(run, tmp_path / "result")
    assert artifacts == ["model"]
    assert notes == [f"output was left out: a link in place of the folder ({tmp_path}/home)"]
    assert "output" not in get_provider("local").artifacts(run, RunState(run_id=run.run_id))


def test_files_keep_their_time_and_whether_they_can_be_run_and_no_other_right(
    run: RunFolder, tmp_path: Path
) -> None:
    tool = run.path / "model" / "tool"
    tool.write_text("x")
    tool.chmod(0o6755)
    os.utime(tool, ns=(1, 10**18))
    fetched(run, tmp_path / "result")
    info = (tmp_path / "result/model/tool").stat()
    assert info.st_mode & 0o7700 == 0o700
    assert info.st_mtime_ns == 10**18
    assert not (tmp_path / "result/model/weights").stat().st_mode & 0o100


def test_a_container_knows_its_folders_by_other_names(run: RunFolder, tmp_path: Path) -> None:
    (run.path / "model" / "latest").symlink_to("/cloudtrain/model/step-2")
    assert fetched(run, tmp_path / "result", "docker") == (["model"], [])
    assert (tmp_path / "result" / "model" / "latest").readlink() == Path("step-2")


# Checkpoints of an emulated node reach the run's folder whole, and deletions follow.


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_new_and_changed_files_are_copied_and_deletions_follow(tmp_path: Path) -> None:
    nodes = [tmp_path / "0", tmp_path / "1"]
    into = tmp_path / "into"
    states: list[FileStates] = [{}, {}]

    def sync() -> None:
        for node, state in zip(nodes, states, strict=True):
            sync_folder(node, into, state)

    sync()
    for node in nodes:
        write(node, {"step-1/model": "1", "step-2/model": "2", f"own/{node.name}": "x"})
        (node / "link").symlink_to("own")
    sync()
    shutil.rmtree(nodes[0] / "step-1")
    sync()
    assert contents(into) == {"own/0": "x", "own/1": "x", "step-2/model": "2"}
    assert not (into / "step-1").exists()

    (nodes[1] / "step-1/model").write_text("anew")
    (nodes[0] / "step-2/model").write_text("longer")
    sync()
    assert contents(into)["step-1/model"] == "anew"
    assert contents(into)["step-2/model"] == "longer"


@pytest.mark.parametrize("change", ["grows", "replaced", "vanishes"])
def test_a_file_that_changes_while_it_is_copied_is_left_to_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source = tmp_path / "source"
    into = tmp_path / "into"
    states: FileStates = {}
    write(source, {"model": "old"})
    sync_folder(source, into, states)
    (source / "model").write_text("newer")
    copy = shutil.copyfile

    def disturbed(path: Path, target: Path, *, follow_symlinks: bool) -> None:
        if change == "vanishes":
            path.unlink()
        copy(path, target, follow_symlinks=follow_symlinks)
        if change == "grows":
            path.write_text("newest, longer")
        if change == "replaced":
            before = path.stat()
            path.with_name("draft").write_text("NEWER")
            os.utime(path.with_name("draft"), ns=(0, before.st_mtime_ns))
            path.with_name("draft").replace(path)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", disturbed)
        sync_folder(source, into, states)
    assert contents(into) == {"model": "old"}
    sync_folder(source, into, states)
    after = {"grows": {"model": "newest, longer"}, "replaced": {"model": "NEWER"}, "vanishes": {}}
    assert contents(into) == after[change]


# Fetched files are not sent with the next job, and are fetched again to the same place.


@pytest.fixture
def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cloudtrain.Run:
    """Return a finished run with a model, in the folder of its job."""
    data = earlier_runs("local", tmp_path / "kept", tmp_path / "job")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", data)
    (tmp_path / "job").mkdir(exist_ok=True)
    (tmp_path / "job" / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path / "job")
    return cloudtrain.find_run("old-local")


@pytest.mark.parametrize("folder", [None, "results/here"])
def test_it_is_not_sent_with_the_next_job(run_command: cloudtrain.Run, folder: str | None) -> None:
    before = cloudtrain.plan(cloudtrain.load("train.py"), "local").context.source
    place = run_command.fetch(folder)
    assert (place / "model" / "model.txt").is_file()
    assert cloudtrain.plan(cloudtrain.load("train.py"), "local").context.source == before


def test_a_forced_fetch_replaces_what_an_earlier_one_brought_and_leaves_the_rest(
    run_command: cloudtrain.Run,
) -> None:
    place = run_command.fetch()
    (place / "model" / "model.txt").write_text("changed\n")
    (place / "model" / "stale.txt").touch()
    (place / "notes.txt").write_text("mine\n")
    with pytest.raises(UsageError, match="exists and is not empty") as refused:
        run_command.fetch()
    assert "--force replaces" in str(refused.value.hint)
    assert call("fetch", "old-local", "--force").code == 0
    assert (place / "model" / "model.txt").read_text() == "weights\n"
    assert [(place / "model" / "stale.txt").exists(), (place / "notes.txt").read_text()] == [
        False,
        "mine\n",
    ]


def test_a_forced_fetch_into_a_folder_of_ones_own_hides_nothing_in_it(
    run_command: cloudtrain.Run, tmp_path: Path
) -> None:
    run_command.fetch(".", force=True)
    assert (tmp_path / "job" / "model" / "model.txt").is_file()
    assert [(tmp_path / "job" / name).exists() for name in ("train.py", ".gitignore")] == [
        True,
        False,
    ]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="exists and is not empty"):
        run_command.fetch(tmp_path / "file", force=True)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model/weights", ""),
        ("checkpoints/step-1", "left checkpoints, but neither a model nor an output"),
        ("nodes/0/source/runs/events", "still in {run}/nodes/0/source"),
        ("nodes/1/ml/code/runs/events", "still in {run}/nodes/1/ml/code"),
        ("nodes/0/source/__pycache__/x.pyc", "left no files"),
        ("output/link", "output/link was left out: a link"),
        ("output/folder/", "left no files"),
    ],
)
def test_fetch_status_and_diagnose_agree_on_what_a_run_has_left(
    run_command: cloudtrain.Run, file: str, message: str
) -> None:
    folder = run_command.folder.path
    for name in ("model", "checkpoints", "nodes"):
        shutil.rmtree(folder / name, ignore_errors=True)

    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if file.endswith("/"):
        path.mkdir()
    elif "link" in file:
        path.symlink_to("/etc/passwd")
    else:
        path.touch()

    result = call("fetch", "old-local", "fetched")
    assert message.format(run=folder) in result.err
    assert (result.code == 0) is (message == "")
    for command in ("status", "diagnose"):
        shown = call(command, "old-local").out
        has_place = f"{folder}/" in shown
        assert has_place is (message != "left no files"), shown


# Local runs and rehearsals of version 0.1.0: listed, read, stopped, fetched and run again as if
# they were of today.

ENDS = {
    "old-local": "succeeded",
    "old-failed": "failed",
    "old-as-aws": "succeeded",
    "old-as-azure": "succeeded",
}


@pytest.fixture
def data(tmp_path: Path) -> str:
    return earlier_runs("local", tmp_path / "kept", tmp_path / "job")


def test_they_are_listed_and_read(data: str) -> None:
    assert {run["run"]: run["state"] for run in cloudtrain.list_runs(data_dir=data)} == ENDS
    failed = cloudtrain.find_run("old-failed", data_dir=data).status()
    assert failed.error is not None
    assert (failed.error.exception, failed.error.message) == ("ValueError", "the dog ate it")


@pytest.mark.parametrize("run_id", ENDS)
def test_their_lines_and_files_are_here_and_a_stop_changes_nothing(
    data: str, run_id: str, tmp_path: Path
) -> None:
    run = cloudtrain.find_run(run_id, data_dir=data)
    assert {"hello from 0", "hello from 1"} <= {line.text for line in run.logs()}
    assert (run.fetch(tmp_path / "result") / "model" / "model.txt").read_text() == "weights\n"
    assert run.stop().state == ENDS[run_id]


def test_a_trial_is_planned_again_without_its_search(data: str) -> None:
    old = cloudtrain.find_run("old-failed", data_dir=data)
    spec = old.folder.path / "spec.yaml"
    search = {"objective": {"metric": "loss", "goal": "minimize"}, "space": {"lr": [1, 2]}}
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "sweep": search}))
    assert old.plan_again(["args.lr=3"]).spec.sweep is None


@pytest.mark.parametrize("run_id", ENDS)
def test_each_is_planned_again_as_it_was(data: str, run_id: str) -> None:
    old = cloudtrain.find_run(run_id, data_dir=data)
    plan = old.plan_again()
    before = old.folder.document("request.json")
    after = cloudtrain.render(plan).document
    assert {**before.get("job", {}), "run_id": ""} == {**after.get("job", {}), "run_id": ""}
    assert before.keys() <= after.keys()  # newer versions send more
    assert plan.is_rehearsal == run_id.startswith("old-as-")
    if run_id == "old-failed":
        assert after["resume_from"] == str(old.folder.path / "checkpoints")
