"""Every command answers about damaged runs and foreign folders with a message."""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import StorageError
from cloudtrain.runs.files import as_text
from cloudtrain.runs.store import RunStore
from tests.e2e.test_bad_input import place
from tests.support.command_line import CommandResult
from tests.support.in_process import call

# Every command answers with a message about a damaged run folder, and a list still shows the
# others.

SEED = 20_261
CASES = int(os.environ.get("CASES", "0"))
"""Each kind of damage is done to each file once, and further ones by chance up to so many."""
LOG = b"2026-11-21T02:04:34.447Z [rank 0] epoch 1 loss 0.5\n"
HISTORY = """\
{"type": "submitting", "time": 1.7e9, "name": "digits", "provider": "local", \
  "contract": "plain", "nodes": 1, "processes": 1}
{"type": "submitted", "time": 1700000001, "ref": {"pid": 7}}
{"type": "node_started", "time": 1700000002, "node": 0, "rank": -1, "seq": 1}
{"type": "metrics", "time": 1700000003, "node": 0, "rank": 0, "seq": 2, "values": {"loss": 0.5}}
{"type": "checkpoint", "time": 1700000003, "node": 0, "rank": 0, "seq": 3, "step": 3}
{"type": "ended", "time": 1700000004, "state": "stopped", "reason": "stop requested"}
"""
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
    sign = b": " if b": " in file.read_bytes() else b":"
    parts = file.read_bytes().split(sign)
    at = chance.randrange(len(parts))
    word = parts[at].split(b",")
    parts[at] = b",".join([chance.choice(values).encode(), *word[1:]])
    file.write_bytes(b": ".join(parts))


def replaced(text: bytes) -> Damage:
    return lambda _, file: file.write_bytes(text)


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
    # It is a regular file, opens, and fails at the first read.
    "unreadable": make(lambda file: file.symlink_to("/proc/self/mem")),
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
        folder = store.create(run_id, documents)
        folder.events_file.write_text(HISTORY)
        (folder.path / "logs" / "node-0.log").write_bytes(LOG * 20)
        (folder.path / "supervisor.json").write_text("{}")
    return root


@pytest.fixture
def data(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that data folder, which commands take."""
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(whole / "data", tmp_path / "data"))


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


COMMANDS = ("status", "logs", "logs --tail 2", "wait", "stop", "fetch", "status --json")


def test_every_command_answers_a_damaged_run_with_a_message(
    whole: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("SEED", SEED))
    chance = random.Random(seed)
    monkeypatch.setattr("cloudtrain.providers.local.backend.ORPHAN_STOP_SECONDS", 0)
    every = [(name, kind) for name in FILES for kind in KINDS]
    cases = [*every, *chance.choices(every, k=max(0, CASES - len(every)))]
    for number, (name, kind) in enumerate(cases):
        message = f"SEED={seed}, case {number}: {name} {kind}"
        shutil.rmtree(data)
        shutil.copytree(whole / "data", data)
        if name.endswith("index.jsonl"):
            call("list")  # makes one
        KINDS[kind](chance, data / "runs" / "digits-aaaa" / name)
        the_state("digits-aaaa")
        for words in COMMANDS:
            command, *more = words.split()
            assert_in_words(call(command, "digits-aaaa", *more), f"{message}: {words}")
        with suppress(cloudtrain.CloudtrainError):
            cloudtrain.find_run("digits-aaaa").plan_again()
        assert the_state("digits-aaaa") in ("stopped", "damaged", "failed", "succeeded"), message


@pytest.mark.parametrize("kind", ["empty", "nested deeply", "a pipe"])
def test_a_run_without_a_history_is_told_as_damaged(data: Path, kind: str) -> None:
    KINDS[kind](random.Random(1), data / "runs" / "digits-aaaa" / "events.jsonl")
    assert the_state("digits-aaaa") == "damaged"
    listed = call("list")
    assert (listed.code, "damaged" in listed.out) == (0, True)
    result = call("status", "digits-aaaa")
    assert (result.code, "digits-aaaa" in result.err) == (4, True)


def test_a_rerun_sends_no_damaged_archive(data: Path) -> None:
    run = cloudtrain.find_run("digits-aaaa")
    archive = data / "sources" / f"{run.plan_again().context.source.digest}.tar.gz"
    with pytest.raises(StorageError, match="source of the earlier run is gone"):
        run.rerun()
    archive.parent.mkdir(exist_ok=True)
    archive.write_bytes(gzip.compress(b"source" * 1000)[:-9])
    with pytest.raises(StorageError, match="source of the earlier run is damaged"):
        run.rerun()


def test_lines_of_the_history_that_cannot_be_read_are_counted(data: Path) -> None:
    events = data / "runs" / "digits-aaaa" / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join([lines[0], '{"type": "metr\n', *lines[1:]]))
    result = call("status", "digits-aaaa")
    assert result.code == 0
    assert "damaged     1 line of its events cannot be read" in result.out


def test_a_run_of_an_earlier_version_is_told_as_old(data: Path) -> None:
    plan = data / "runs" / "digits-aaaa" / "plan.json"
    document = json.loads(plan.read_text())
    plan.write_text(json.dumps({**document, "version": "0.1.0", "target": {}}))
    error = call("rerun", "digits-aaaa").err
    assert f"hint: cloudtrain 0.1.0 made it, this is {cloudtrain.__version__}" in error
    assert "by hand" not in error

    plan.write_text(json.dumps({**document, "target": {}}))
    assert "changed by hand" in call("rerun", "digits-aaaa").err


def test_a_bill_below_zero_is_no_bill(data: Path) -> None:
    events = data / "runs" / "digits-aaaa" / "events.jsonl"
    bill = '"billing": {"billable_seconds": -5, "training_seconds": 0}, "reason"'
    events.write_text(events.read_text().replace('"reason"', bill))
    for words in (["status"], ["status", "--json"], ["wait"], ["report", "-o", "page.html"]):
        command, *more = words
        assert_in_words(call(command, "digits-aaaa", *more), command)
    assert "cost" not in call("status", "digits-aaaa").out


def test_the_last_line_of_a_log_is_shown_though_it_is_not_finished(data: Path) -> None:
    log = data / "runs" / "digits-aaaa" / "logs" / "node-0.log"
    log.write_bytes(LOG + LOG.replace(b"epoch 1 loss 0.5\n", b"cut o"))
    for more in ([], ["--tail", "2"], ["--follow"]):
        lines = call("logs", "digits-aaaa", *more).out.splitlines()
        assert lines == ["[rank 0] epoch 1 loss 0.5", "[rank 0] cut o"], more


# `plan`, `check` and `list` end with a message in a folder whose files never end, or never begin.

__all__ = ["place"]

Trap = Callable[[Path], None]
HUGE_BYTES = 1 << 40
SPARE_MEMORY_BYTES = 3 << 30
"""Memory that a command may take in addition to the tests."""


def huge(path: Path) -> None:
    """A file without any block on the disk."""
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)


TRAPS: dict[str, Trap] = {
    "FIFO": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "huge": huge,
    "loop": lambda path: path.symlink_to(path.name),
}


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """A command that reads without a bound fails by itself, before the machine does."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def job(place: Path) -> Path:
    """A job that is right, until a trap is laid beside it."""
    (place / "job.yaml").write_text("entrypoint: train.py\n")
    (place / "train.py").write_text("import a\n")
    return place


def assert_ends(*words: str, code: int | None = None, shown: str = "") -> None:
    result = call(*words)
    assert "Traceback" not in result.out + result.err
    assert "bug in cloudtrain" not in result.err
    assert code in (None, result.code), result.err
    assert shown in result.err, result.err


@pytest.mark.linux("/dev/zero and /proc")
@pytest.mark.parametrize("command", ["plan", "check"])
@pytest.mark.parametrize("trap", ["FIFO", "endless"])
@pytest.mark.parametrize("name", ["job.yaml", "cloudtrain.toml"])
def test_a_spec_or_settings_that_are_not_a_file_are_a_mistake(
    job: Path, name: str, trap: str, command: str
) -> None:
    (job / name).unlink(missing_ok=True)
    TRAPS[trap](job / name)
    assert_ends(command, "job.yaml", code=2, shown=f"{name}: cannot be read")


@pytest.mark.linux("/dev/zero and /proc")
@pytest.mark.parametrize(
    "text",
    ["-r /dev/zero\n", "-c /dev/zero\n", "-r more.txt\n", "-r huge.txt\n"],
    ids=["device", "constraint", "FIFO", "huge"],
)
def test_requirements_include_only_regular_files_up_to_a_limit(job: Path, text: str) -> None:
    (job / "requirements.txt").write_text(text)
    (job / ".cloudtrainignore").write_text("more.txt\nhuge.txt\n")
    os.mkfifo(job / "more.txt")
    huge(job / "huge.txt")
    for command in ("plan", "check"):
        assert_ends(command, code=2, shown="requirements.txt:1: ")


@pytest.mark.parametrize(("width", "depth"), [(10, 8), (1, 50)], ids=["wide", "deep"])
def test_includes_that_multiply_are_refused(job: Path, width: int, depth: int) -> None:
    for number in range(depth):
        (job / f"r{number}.txt").write_text(f"-r r{number + 1}.txt\n" * width)
    (job / f"r{depth}.txt").write_text("numpy\n")
    (job / "requirements.txt").write_text("-r r0.txt\n")
    assert_ends("plan", code=2, shown="requirements.txt")


@pytest.mark.linux("/dev/zero and /proc")
@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        (".gitignore", ""),
        (".cloudtrainignore", ""),
        ("a.py", ""),
        ("pyproject.toml", ""),
        ("requirements.txt", ""),
        ("Dockerfile", "image: {build: Dockerfile}\n"),
        (".dockerignore", "image: {build: Dockerfile}\n"),
        (".git", ""),
        ("note.ipynb", "entrypoint: note.ipynb\n"),
        ("train.py", ""),
        ("data", "inputs: {a: ./data}\n"),
    ],
)
def test_any_file_of_the_source_may_be_a_trap(job: Path, name: str, spec: str, trap: str) -> None:
    (job / "Dockerfile").write_text("FROM scratch\n")
    (job / name).unlink(missing_ok=True)
    TRAPS[trap](job / name)
    if spec:
        program = "" if "entrypoint" in spec else "entrypoint: train.py\n"
        (job / "job.yaml").write_text(program + spec)
    for words in (["plan"], ["plan", name], ["check"], ["plan", "--provider", "docker"], ["list"]):
        assert_ends(*words)


@pytest.mark.linux("/dev/zero and /proc")
@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("CLOUDTRAIN_PRICES", ""),
        ("AWS_CONFIG_FILE", ""),
        ("AWS_SHARED_CREDENTIALS_FILE", ""),
        ("AZURE_CONFIG_DIR", "config"),
        ("AZURE_CONFIG_DIR", "azureProfile.json"),
        ("DOCKER_CONFIG", "config.json"),
        ("XDG_CONFIG_HOME", "cloudtrain/config.toml"),
    ],
)
def test_a_file_that_settings_name_may_be_a_trap(
    job: Path, variable: str, name: str, trap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "trap" / name if name else tmp_path / "trap"
    place.parent.mkdir(parents=True, exist_ok=True)
    TRAPS[trap](place)
    monkeypatch.setenv(variable, str(tmp_path / "trap"))
    monkeypatch.setenv("AWS_PROFILE", "me")
    for provider in ("aws", "azure", "docker"):
        assert_ends("plan", "--provider", provider)
