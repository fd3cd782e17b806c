"""Which run a command is about when none is named, what other tools' words mean, and what --help tells."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cli import ALIASES, COMMANDS, VARIABLES
from cloudtrain.cli.variables import unknown_variables
from cloudtrain.runs.store import RunStore
from tests.house.tools import ROOT
from tests.support.in_process import call
from tests.support.samples import write_events

Ended = Callable[..., None]


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Writes the folder of a run that has ended, each later than the one before."""
    store = RunStore(tmp_path / "data")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(store.data_dir))
    monkeypatch.chdir(tmp_path)

    def write(run_id: str, state: str | None = "succeeded", provider: str = "local") -> None:
        plan = f'{{"host": null, "target": {{"provider": "{provider}", "contract": "plain"}}}}'
        folder = store.create(run_id, {"plan.json": plan, "request.json": "{}"})
        now = time.time() + len(store.ids())
        born = {"type": "submitting", "time": now, "name": "digits", "provider": provider, "contract": "plain"}
        write_events(folder, {**born, "nodes": 1, "processes": 1})
        if state:
            write_events(folder, {"type": "ended", "time": now + 1, "state": state})

    return write


@pytest.mark.parametrize("words", ["status", "logs", "wait"])
def test_the_last_run_is_meant_when_none_is_named_and_it_says_so(ended: Ended, words: str) -> None:
    ended("digits-aaaa", "failed")
    ended("digits-bbbb")
    result = call(words)
    assert (result.code, result.err.splitlines()[0]) == (0, "digits-bbbb, the last run")


def test_a_run_that_is_named_is_not_called_the_last(ended: Ended) -> None:
    ended("digits-aaaa")
    assert "the last run" not in call("status", "digits-aaaa").err


@pytest.mark.parametrize("word", ["stop", "rerun", "status", "logs", "wait"])
def test_an_empty_name_means_no_run(ended: Ended, word: str) -> None:
    ended("digits-aaaa")
    result = call(word, "")
    assert (result.code, result.out) == (2, "")
    assert "the name of the run is empty" in result.err


def test_a_folder_alone_is_where_fetch_writes_the_last_run(ended: Ended, tmp_path: Path) -> None:
    ended("digits-aaaa")
    ended("digits-bbbb")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    result = call("fetch", "./full")
    assert result.err.splitlines()[0] == "digits-bbbb, the last run"
    assert "full exists and is not empty" in result.err


def test_status_lists_what_runs_when_several_runs_go_on(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    ended("digits-aaaa")
    rows: list[dict[str, Any]] = [
        {
            "run": name,
            "state": "running",
            "reason": "",
            "provider": "local",
            "contract": "plain",
            "owner": "",
            "nodes": 1,
            "processes": 2,
            "created": 1.0,
            "started": 1.0,
            "ended": None,
            "submitted": True,
        }
        for name in ("digits-cccc", "digits-bbbb")
    ]
    monkeypatch.setattr("cloudtrain.cli.status.runs_going_on", lambda **_: rows)
    result = call("status")
    assert [line.split()[0] for line in result.out.splitlines()] == ["RUN", "digits-cccc", "digits-bbbb"]
    monkeypatch.setattr("cloudtrain.cli.status.runs_going_on", lambda **_: [{"run": "digits-aaaa"}])
    assert call("status").out.startswith("digits-aaaa  succeeded")


def test_a_stop_that_worked_exits_with_0_and_a_wait_for_it_with_5(ended: Ended) -> None:
    ended("digits-aaaa", "stopped")
    assert [call("stop").code, call("wait").code] == [0, 5]


@pytest.mark.parametrize(("word", "meant"), ALIASES.items())
def test_words_of_other_tools_are_understood(word: str, meant: str) -> None:
    assert (call(word, "--help").code, meant in COMMANDS, word in COMMANDS) == (0, True, False)
    assert call(word, "--help").out.splitlines()[1:] == call(meant, "--help").out.splitlines()[1:]


def test_help_groups_the_commands_and_names_variables() -> None:
    shown = call("--help").out
    titles = re.findall(r"^(\w+):$", shown, re.MULTILINE)
    assert titles == ["Options", "Start", "Watch", "Manage", "Tools", "Variables"]
    assert [name for name in (*COMMANDS, *VARIABLES) if f"  {name}" not in shown] == []


def test_a_variable_that_means_nothing_is_told_with_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_PROVDER", "docker")
    note = "note: the variable CLOUDTRAIN_PROVDER means nothing to cloudtrain (did you mean 'CLOUDTRAIN_PROVIDER'?)\n"
    assert note in call("schema").err


def test_variables_of_settings_and_of_jobs_are_known() -> None:
    sources = [path for folder in ("cloudtrain", "entrypoints") for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r'"(CLOUDTRAIN_[A-Z_]+[A-Z])"', path.read_text())}
    assert len(named) > 20
    assert unknown_variables(dict.fromkeys([*named, "CLOUDTRAIN_INPUT_TRAIN", "CLOUDTRAIN_AWS_REGION"], "x")) == []
