"""Before a restart every node gets what any node has saved, and loses what any node has deleted."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cloudtrain_launcher.checkpoint_files import Entry, list_files
from cloudtrain_launcher.checkpoint_sync import CheckpointSync, DeletionSync
from tests.support.waiting import HANG_SECONDS, eventually

distributed = pytest.importorskip("torch.distributed")


class CountedStore:
    """A store of torch that counts the looks of each thread for deletions by other nodes."""

    def __init__(self, polls: Counter[int]) -> None:
        self.store = distributed.HashStore()
        self.polls = polls

    def add(self, key: str, amount: int) -> int:
        if (key, amount) == ("gone/count", 0):
            self.polls[threading.get_ident()] += 1

        return self.store.add(key, amount)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Nodes:
    """The nodes of one job, each with its checkpoint folder; the store is a real one of torch."""

    def __init__(self, base: Path, count: int) -> None:
        self.folders = [base / f"node-{node}" for node in range(count)]
        self.logged: list[list[str]] = [[] for _ in range(count)]
        for folder in self.folders:
            folder.mkdir()

        self.polls = Counter[int]()
        self.journals = [base / f"journal-{node}" for node in range(count)]
        self.shared = [
            CheckpointSync(folder, "127.0.0.1", journal, logged.append)
            for folder, journal, logged in zip(
                self.folders, self.journals, self.logged, strict=True
            )
        ]

    def start(self) -> list[BaseException]:
        """Do what torchrun does before it starts the programs; returns the errors of all nodes."""
        store = CountedStore(self.polls)
        errors = list[BaseException]()

        def node(rank: int) -> None:
            try:
                self.shared[rank].before_start(store, rank, len(self.folders))
            except (OSError, RuntimeError) as error:
                errors.append(error)

        threads = [
            threading.Thread(target=node, args=(rank,), daemon=True)
            for rank in range(len(self.folders))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_SECONDS)

        assert not any(thread.is_alive() for thread in threads)
        return errors

    def settle(self) -> None:
        """Wait until each node has looked at its folder twice and knows what is there."""
        before = Counter(self.polls)
        # The look before the first one may have begun before the call.
        assert eventually(
            lambda: (
                len(self.polls) == len(self.folders)
                and all(self.polls[thread] > before[thread] + 2 for thread in self.polls)
            )
        )

    def close(self) -> None:
        """Stop all threads."""
        for sync in self.shared:
            sync.stop()

    def write(self, node: int, name: str, text: str, when: int = 0) -> Path:
        path = self.folders[node] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if when:
            os.utime(path, ns=(when, when))

        return path

    def contents(self) -> list[dict[str, str]]:
        """Return the files that a program finds on each node."""
        return [
            {
                path.relative_to(folder).as_posix(): (
                    f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
                )
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }
            for folder in self.folders
        ]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes that have started once."""
    made = Nodes(tmp_path, 2)
    assert made.start() == []
    yield made
    made.close()


def test_every_node_gets_the_shards_of_all_nodes(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    nodes.start()
    for node in range(3):
        nodes.write(node, f"step-1/rank-{node}.pt", f"shard {node}")

    nodes.write(2, "step-1/empty", "")
    assert nodes.start() == []
    shards = {f"step-1/rank-{node}.pt": f"shard {node}" for node in range(3)}
    assert nodes.contents() == [{"step-1/empty": "", **shards}] * 3
    nodes.close()


def test_what_one_node_deletes_is_deleted_on_all_with_its_folder(nodes: Nodes) -> None:
    for step in range(4):
        nodes.write(0, f"step-{step}/model.pt", "weights")

    nodes.start()
    (nodes.folders[0] / "step-0/model.pt").unlink()
    (nodes.folders[0] / "step-0").rmdir()
    (nodes.folders[1] / "step-1/model.pt").unlink()
    (nodes.folders[1] / "step-1").rmdir()
    assert nodes.start() == []
    assert nodes.contents() == [{f"step-{step}/model.pt": "weights" for step in (2, 3)}] * 2
    assert [sorted(path.name for path in folder.iterdir()) for folder in nodes.folders] == [
        ["step-2", "step-3"]
    ] * 2


def test_the_newer_of_two_versions_wins_and_a_rewritten_file_is_not_deleted(nodes: Nodes) -> None:
    for name in ("last.pt", "best.pt"):
        nodes.write(0, name, "old", when=10**9)

    nodes.start()
    nodes.write(0, "last.pt", "newer", when=3 * 10**9)
    nodes.write(1, "last.pt", "new", when=2 * 10**9)
    (nodes.folders[0] / "best.pt").unlink()
    nodes.write(1, "best.pt", "best", when=2 * 10**9)
    assert nodes.start() == []
    assert nodes.contents() == [{"best.pt": "best", "last.pt": "newer"}] * 2


def test_unfinished_files_are_not_fetched_and_links_inside_are(nodes: Nodes) -> None:
    nodes.write(0, "step-1/model.pt", "weights")
    nodes.write(0, "step-2.partial/model.pt", "half")
    (nodes.folders[0] / "latest").symlink_to("step-1/model.pt")
    assert nodes.start() == []
    assert nodes.contents()[1] == {"step-1/model.pt": "weights", "latest": "-> step-1/model.pt"}


def test_a_folder_that_only_its_node_needs_is_not_fetched(nodes: Nodes) -> None:
    nodes.write(0, "step-1/shared.json", "{}")
    for node in range(2):
        nodes.write(node, f"step-1/weights-{node}/model.pt", "the whole model")
        nodes.write(node, f"step-1/weights-{node}/.own", "")

    assert nodes.start() == []
    names = [
        {f"step-1/weights-{node}/{name}" for name in ("model.pt", ".own")} for node in range(2)
    ]
    assert [set(names_on_node) for names_on_node in nodes.contents()] == [
        {*name, "step-1/shared.json"} for name in names
    ]


def test_nodes_that_share_a_disk_find_nothing_to_do(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 1)
    sync = nodes.shared[0]
    nodes.shared.append(
        CheckpointSync(
            nodes.folders[0], "127.0.0.1", tmp_path / "journal-1", nodes.logged[0].append
        )
    )
    nodes.folders.append(nodes.folders[0])
    nodes.write(0, "old", "old")
    nodes.start()
    nodes.write(0, "new", "new")
    (nodes.folders[0] / "old").unlink()
    assert nodes.start() == []
    assert (nodes.contents()[0], nodes.logged[0], sync) == ({"new": "new"}, [], nodes.shared[0])
    nodes.close()


def test_the_journal_lists_what_was_done_for_other_nodes(nodes: Nodes) -> None:
    nodes.write(0, "old.pt", "old")
    nodes.start()
    nodes.write(0, "new.pt", "new")
    (nodes.folders[0] / "old.pt").unlink()
    nodes.start()
    journal = [json.loads(line) for line in nodes.journals[1].read_text().splitlines()]
    new = list(list_files(nodes.folders[1])["new.pt"])
    assert journal[1:] == [
        [str(nodes.folders[1] / "old.pt"), None],
        [str(nodes.folders[1] / "new.pt"), new],
    ]
    assert not nodes.journals[0].exists()


def test_a_full_disk_on_one_node_fails_the_start_on_all_nodes(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = Path.open

    def full(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode != "wb":
            return open_file(path, mode, *args, **options)
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    nodes.write(0, "step-1", "weights")
    errors = nodes.start()
    assert [str(error) for error in errors] == [
        "node 1 cannot copy the checkpoints of other nodes: No space left on device"
    ] * 2
    assert nodes.contents()[1] == {}


def test_what_is_deleted_on_one_node_while_programs_run_is_deleted_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks save and the first one deletes: the files of its peers are deleted too, but nothing
    new or renamed.
    """
    monkeypatch.setattr("cloudtrain_launcher.checkpoint_sync.POLL_SECONDS", 0.02)
    nodes = Nodes(tmp_path, 2)
    steps = 12
    assert nodes.start() == []
    for node in range(2):
        for step in range(steps):
            nodes.write(node, f"step-{step}/rank-{node}.pt", "part")

        nodes.write(node, "draft/model.pt", f"of node {node}")

    nodes.settle()
    for step in range(steps - 2):
        shutil.rmtree(nodes.folders[0] / f"step-{step}")

    (nodes.folders[0] / "draft").rename(nodes.folders[0] / "final")
    assert eventually(lambda: not (nodes.folders[1] / f"step-{steps - 3}").exists())
    kept_steps = [
        {f"step-{step}/rank-{node}.pt": "part" for step in (steps - 2, steps - 1)}
        for node in range(2)
    ]
    assert eventually(
        lambda: nodes.contents()[1] == {**kept_steps[1], "draft/model.pt": "of node 1"}
    )
    assert nodes.contents()[0] == {**kept_steps[0], "final/model.pt": "of node 0"}
    journal = {
        path
        for path, entry in map(json.loads, nodes.journals[1].read_text().splitlines())
        if entry is None
    }
    assert str(nodes.folders[1] / "step-0/rank-1.pt") in journal
    nodes.write(0, "step-20/rank-0.pt", "of a draft that went at once")
    shutil.rmtree(nodes.folders[0] / "step-20")
    nodes.write(0, f"step-{steps - 2}/anew.pt", "new")
    assert nodes.start() == []
    both = {
        **kept_steps[0],
        **kept_steps[1],
        "final/model.pt": "of node 0",
        "draft/model.pt": "of node 1",
    }
    assert nodes.contents() == [{**both, f"step-{steps - 2}/anew.pt": "new"}] * 2
    nodes.close()


def test_a_file_that_is_replaced_at_once_stays_also_on_a_shared_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that empties its folder before it saves there again has not deleted what it saved."""
    monkeypatch.setattr("cloudtrain_launcher.checkpoint_sync.POLL_SECONDS", 0)
    store = distributed.HashStore()
    (tmp_path / "disk").mkdir()
    sync, peer = (
        DeletionSync(tmp_path / "disk", lambda path, _: pytest.fail(path)) for _ in range(2)
    )
    last = tmp_path / "disk" / "last" / "model.pt"
    removed = (tmp_path / f"removed-{number}" for number in count())
    last.parent.mkdir()
    for _ in range(2):
        for node, node_sync in enumerate((sync, peer)):
            node_sync.exchange(store, node)

    # Out of the folder, where it keeps its inode: one of the same number would pass for a rename.
    last.parent.rename(next(removed))
    for step in range(6):
        for node, node_sync in enumerate((sync, peer)):
            node_sync.exchange(store, node)

        if step % 2 == 0:
            last.parent.mkdir()
            last.write_text("weights")
        else:
            last.parent.rename(next(removed))

    last.parent.mkdir()
    last.write_text("weights")
    for _ in range(4):
        for node, node_sync in enumerate((sync, peer)):
            node_sync.exchange(store, node)

    assert last.read_text() == "weights"


def test_a_deletion_just_before_a_restart_includes_the_files_of_other_nodes(tmp_path: Path) -> None:
    """The poll interval is too long to notice it in time."""
    nodes = Nodes(tmp_path, 2)
    nodes.write(0, "step-1/rank-0.pt", "part")
    nodes.start()
    nodes.write(1, "step-1/rank-1.pt", "part")
    shutil.rmtree(nodes.folders[0] / "step-1")
    assert nodes.start() == []
    assert nodes.contents() == [{}, {}]
    nodes.close()


def test_a_path_to_outside_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cloudtrain_launcher.checkpoint_sync.list_files",
        lambda folder: {"../outside": Entry(1, 1)} if folder == nodes.folders[0] else {},
    )
    assert all(
        "which is not a path inside the checkpoint folder" in str(error) for error in nodes.start()
    )
    assert not (nodes.folders[1].parent / "outside").exists()
