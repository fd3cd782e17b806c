"""Jobs, settings and command lines with mistakes, and the output about each.

`messages.yaml` has them in groups. A group and each of its cases may have these fields, and a case
adds to those of its group:

    command   the words after `cloudtrain`; `check` if there are none
    set       more words, each an argument of `--set`
    job       the job.yaml beside it; none if it is null
    files     names and texts of more files: `x/` is a folder, `x*` may be executed, `x@` is a link,
              `x|` is a FIFO, `x/*` a folder that its group may write
    env       environment variables
    runs      whether there are two runs, digits-aaaa and digits-aabb
    case      what `@@` stands for in all of these

A case that is a text is `case`, or `job` in a group without `@@`; one that is a list is `set`.
`{x*9}` stands for nine times x, and `#` in it for the number of each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fcntl import LOCK_EX, flock
from functools import cache
from importlib.metadata import version
from pathlib import Path
from shlex import split
from typing import Any

import pytest
import yaml

from cloudtrain.providers.aws.service_model import model_name
from cloudtrain.runs.store import RunStore
from tests.support.samples import BORN, repeated, write_events

TABLE = Path(__file__).with_name("messages.yaml")
MESSAGES = Path(__file__).with_name("messages.txt")
HEAD = "### "
"""Beginning of a case's title in the file of messages."""

OF_CLICK = re.compile(r"no such option: (--?\w+)")
"""Words of click before 8.2."""
MEMORY = re.compile(r"\d+(\.\d+)? [MGT]B of memory")
LONG_RUN = re.compile(r"(.)\1{99,}")
OF_PYTHON = re.compile(r"(?:lstat: )?(is not (?:Python|JSON|TOML|valid TOML): |embedded null ).*")
"""Sentences of Python itself, which are other ones in other versions."""

PLACEHOLDER = "@@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An input, and the command that is to say what is wrong with it."""

    command: str = "check"
    set: tuple[str, ...] = ()
    job: str | None = "{}\n"
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    runs: bool = False

    @property
    def words(self) -> list[str]:
        """The words after `cloudtrain`."""
        overrides = [word for value in self.set for word in ("--set", value)]
        return [*split(self.command), *overrides]


@cache
def read_cases() -> dict[str, Case]:
    """Return the cases of the table by their titles."""
    cases: dict[str, Case] = {}
    for group_name, group in yaml.safe_load(TABLE.read_text()).items():
        for name, row in named(group.pop("cases")):
            title = f"{group_name}: {name}"
            assert title not in cases, title
            cases[title] = case_of(group, row)
    return cases


def named(rows: Mapping[str, Any] | list[str]) -> Iterator[tuple[str, Any]]:
    """Yield each row with its name; the row of a list is its own name."""
    if isinstance(rows, list):
        rows = {re.sub(r"\s*\n\s*", "; ", row.strip()): row for row in rows}
    yield from rows.items()


def case_of(group: Mapping[str, Any], row: Any) -> Case:
    """Return the case of one row of a group."""
    if isinstance(row, str):
        row = {"case" if PLACEHOLDER in str(group) else "job": row}
    if isinstance(row, list):
        row = {"set": row}
    fields = {**group, **row}
    for name in ("files", "env"):
        fields[name] = {**group.get(name, {}), **row.get(name, {})}
    fields["set"] = (*group.get("set", ()), *row.get("set", ()))
    case = fields.pop("case", PLACEHOLDER)
    return Case(**filled(fields, case))


def filled(value: Any, case: str) -> Any:
    """Return a value with the case in the place of `@@`, and with repetitions written out."""
    if isinstance(value, dict):
        return {filled(name, case): filled(item, case) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(filled(item, case) for item in value)
    if not isinstance(value, str):
        return value
    return repeated(value.replace(PLACEHOLDER, case))


def enter(case: Case, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with the files of a case, on eight cores, with its environment."""
    if case.runs:
        end_two_runs(RunStore(home / "data"))
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(home / "data"))
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, value in case.env.items():
        monkeypatch.setenv(name, value)

    (home / "job").mkdir()
    monkeypatch.chdir(home / "job")
    for name, text in case.files.items():
        put(name, text)
    if case.job is not None:
        Path("job.yaml").write_bytes(as_bytes(case.job))


def end_two_runs(store: RunStore) -> None:
    """Make two runs that have succeeded."""
    for run_id in ("digits-aaaa", "digits-aabb"):
        run = store.create(run_id, {"plan.json": '{"target": {"provider": "local"}}'})
        write_events(run, BORN, {"type": "ended", "time": 102.0, "state": "succeeded"})


def put(name: str, text: str) -> None:
    """Make a file, a folder, a link or a FIFO, as the end of its name says."""
    path = Path(name.rstrip("*@|"))
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.rstrip("*").endswith("/"):
        path.mkdir()
    elif name.endswith("@"):
        path.symlink_to(text)
    elif name.endswith("|"):
        os.mkfifo(path)
    else:
        path.write_bytes(as_bytes(text))
    if name.endswith("/*"):
        path.chmod(0o775)
    elif name.endswith("*"):
        path.chmod(0o755)


def as_bytes(text: str) -> bytes:
    """Return the bytes of a file, which need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def plain(text: str, home: Path) -> str:
    """Return printed text without what differs between machines and versions."""
    text = text.replace(str(home), "/home/me")
    text = text.replace(version("torch"), "VERSION-OF-TORCH")
    text = text.replace(model_name(), "botocore VERSION-OF-BOTOCORE")
    text = OF_CLICK.sub(r"no such option '\1'.", text)
    text = MEMORY.sub("64 GB of memory", text)
    text = OF_PYTHON.sub(r"\1…", text)
    return LONG_RUN.sub(r"\1…", text).encode("utf-8", "backslashreplace").decode()


def stored() -> dict[str, str]:
    """Return the messages of each case in the file."""
    text = MESSAGES.read_text() if MESSAGES.exists() else ""
    blocks = text.split(f"\n{HEAD}")[1:]
    return {title: body for title, _, body in (block.partition("\n") for block in blocks)}


def rewrite(title: str, messages: str, titles: Iterable[str]) -> None:
    """Put the messages of a case into the file, also while other processes do the same.

    `titles`: of all cases in their order; the file keeps no others.
    """
    with TABLE.open() as lock:
        flock(lock, LOCK_EX)
        known = {**stored(), title: messages}
        blocks = [f"\n{HEAD}{name}\n{known[name]}" for name in titles if name in known]
        new = MESSAGES.with_suffix(".new")
        new.write_text("".join(blocks))
        new.replace(MESSAGES)
