"""Every command answers with a message about a damaged run folder, and a list still shows the
others.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import StorageError
from cloudtrain.runs.files import as_text
from cloudtrain.runs.store import RunStore
from tests.support.command_line import CommandResult
from tests.support.in_process import call
from tests.support.samples import write_events

SEED = 20_261
CASES = int(os.environ.get("CASES", "160"))
LOG = b"2026-11-21T02:04:34.447Z [rank 0] epoch 1 loss 0.5\n"
Damage = Callable[[random.Random, Path], object]


def truncate(chance: random.Random, file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: chance.randrange(len(data))])


def flip(chance: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, 20)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    file.write_bytes(data)


def cut_lines(chance: random.Random, file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(chance.sample(lines, chance.randrange(len(lines)))))


def retype(chance: random.Random, file: Path) -> None:
    """One value somewhere is of another kind: what was written by another program, or by hand."""
    values = ["null", "[]", "{}", '"x"', "-1", "1e400", "9" * 5000, "true", '"\\ud800"', "0.5"]
    parts = (
        file.read_bytes().split(b": ")
        if b": " in file.read_bytes()
        else file.read_bytes().split(b":")
    )
    at = chance.randrange(len(parts))
    word = parts[at].split(b",")
    parts[at] = b",".join([chance.choice(values).encode(), *word[1:]])
    file.write_bytes(b": ".join(parts))


def replaced(text: bytes) -> Damage:
    def act(chance: random.Random, file: Path) -> None:
        file.write_bytes(text)

    return act


def make(how: Callable[[Path], object]) -> Damage:
    def act(chance: random.Random, file: Path) -> None:
        file.unlink()
        how(file)

    return act


KINDS: dict[str, Damage] = {
    "truncated": truncate,
    "bytes changed": flip,
    "lines lost": cut_lines,
    "another kind of value": retype,
    "empty": replaced(b""),
    "zeros": replaced(bytes(4096)),
    "no text": replaced(b"\xff\xfe\x00" * 99),
    "a list": replaced(b"[1]\n"),
    "nothing": replaced(b"null\n"),
    "nested deeply": replaced(b"[" * 100_000 + b"\n"),
    "gone": lambda _, file: file.unlink(),
    "a folder": make(lambda file: file.mkdir()),
    "a pipe": make(os.mkfifo),
    "a link to itself": make(lambda file: file.symlink_to(file.name)),
    "a device": make(lambda file: file.symlink_to("/dev/zero")),
}
FILES = (
    "events.jsonl",
    "plan.json",
    "spec.yaml",
    "request.json",
    "logs/node-0.log",
    "supervisor.json",
    "../../index.jsonl",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with two runs as a real plan makes them, both ended."""
    root = tmp_path_factory.mktemp("whole")
    job = root / "job"
    job.mkdir()
    (job / "train.py").write_text("print(1)\n")
    (job / "job.yaml").write_text("name: digits\nentrypoint: train.py\nargs: {epochs: 3}\n")
    store = RunStore(root / "data")
    for run_id in ("digits-aaaa", "digits-bbbb"):
        plan = cloudtrain.plan(
            cloudtrain.load(job / "job.yaml"), "local", run_id=run_id, data_dir=str(store.data_dir)
        )
        documents = {"spec.yaml": plan.spec_text, "plan.json": as_text(plan.to_json())}
        documents["request.json"] = as_text(dict(cloudtrain.render(plan).document))
        born = {
            "type": "submitting",
            "time": 1.7e9,
            "name": "digits",
            "provider": "local",
            "contract": "plain",
        }
        folder = store.create(run_id, documents)
        write_events(
            folder,
            {**born, "nodes": 1, "processes": 1},
            {"type": "submitted", "time": 1.7e9 + 1, "ref": {"pid": 7}},
            {"type": "node_started", "time": 1.7e9 + 2, "node": 0, "rank": -1, "seq": 1},
            {
                "type": "metrics",
                "time": 1.7e9 + 3,
                "node": 0,
                "rank": 0,
                "seq": 2,
                "values": {"loss": 0.5},
            },
            {"type": "checkpoint", "time": 1.7e9 + 3, "node": 0, "rank": 0, "seq": 3, "step": 3},
            {"type": "ended", "time": 1.7e9 + 4, "state": "stopped", "reason": "stop was asked"},
        )
        (folder.path / "logs" / "node-0.log").write_bytes(LOG * 20)
        (folder.path / "supervisor.json").write_text("{}")
    return root


def assert_in_words(result: CommandResult, message: str) -> None:
    assert "Traceback" not in result.out + result.err, f"{message}\n{result.err}"
    assert result.code in (0, 1, 2, 3, 4, 5), message
    assert result.code == 0 or result.err.strip(), (
        f"{message}: it ends with {result.code} and says nothing"
    )


def the_state(run: str) -> str:
    listed = call("list", "--json")
    assert_in_words(listed, "list")
    states = {item["run"]: item["state"] for item in json.loads(listed.out)}
    assert states["digits-bbbb"] == "stopped", "the other run is told as it is"
    return str(states[run])


def test_every_command_answers_a_damaged_run_with_a_message(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("SEED", SEED))
    chance = random.Random(seed)
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cloudtrain.providers.local.backend.ORPHAN_STOP_SECONDS", 0)
    every = [(name, kind) for name in FILES for kind in KINDS]
    cases = [*every, *chance.choices(every, k=max(0, CASES - len(every)))]
    for number, (name, kind) in enumerate(cases):
        message = f"SEED={seed}, case {number}: {name} {kind}"
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        shutil.copytree(whole / "data", tmp_path / "data")
        file = tmp_path / "data" / "runs" / "digits-aaaa" / name
        if name.endswith("index.jsonl"):
            call("list")  # makes one
        KINDS[kind](chance, file)
        the_state("digits-aaaa")
        for words in (
            "status",
            "logs",
            "logs --tail 2",
            "wait",
            "stop",
            "fetch",
            "status --json",
            "plan-again",
        ):
            command, *more = words.split()
            if command == "plan-again":
                try:
                    cloudtrain.find_run("digits-aaaa").plan_again()
                except cloudtrain.CloudtrainError:
                    continue
                continue
            result = call(command, "digits-aaaa", *more)
            assert_in_words(result, f"{message}: {words}")
        assert the_state("digits-aaaa") in ("stopped", "damaged", "failed", "succeeded"), message


@pytest.mark.parametrize("kind", ["empty", "nested deeply", "a pipe"])
def test_a_run_without_a_history_is_told_as_damaged(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    shutil.copytree(whole / "data", tmp_path / "data")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    KINDS[kind](random.Random(1), tmp_path / "data" / "runs" / "digits-aaaa" / "events.jsonl")
    assert the_state("digits-aaaa") == "damaged"
    listed = call("list")
    assert (listed.code, "damaged" in listed.out) == (0, True)
    result = call("status", "digits-aaaa")
    assert (result.code, "digits-aaaa" in result.err) == (4, True)


def test_a_rerun_sends_no_damaged_archive(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole / "data", tmp_path / "data")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    run = cloudtrain.find_run("digits-aaaa")
    archive = tmp_path / "data" / "sources" / f"{run.plan_again().context.source.digest}.tar.gz"
    with pytest.raises(StorageError, match="source of the earlier run is gone"):
        run.rerun()
    archive.parent.mkdir()
    archive.write_bytes(gzip.compress(b"source" * 1000)[:-9])
    with pytest.raises(StorageError, match="source of the earlier run is damaged"):
        run.rerun()


def test_lines_of_the_history_that_cannot_be_read_are_counted(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole / "data", tmp_path / "data")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    events = tmp_path / "data" / "runs" / "digits-aaaa" / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join([lines[0], '{"type": "metr\n', *lines[1:]]))
    result = call("status", "digits-aaaa")
    assert (result.code, "damaged     1 line of its events cannot be read" in result.out) == (
        0,
        True,
    )
