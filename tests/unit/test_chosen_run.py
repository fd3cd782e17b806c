"""The run that a command uses by default, the words of other tools, and the text of --help."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudtrain.cli import ALIASES, COMMANDS
from cloudtrain.runs.store import RunStore
from cloudtrain.sweeps.events import SweepEnded
from cloudtrain.sweeps.journal import SweepFolder
from tests.support.in_process import call
from tests.support.samples import write_events
from tests.support.sweep_lives import definition_of

Ended = Callable[..., None]


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Writes the folder of a run that has ended, each later than the one before."""
    store = RunStore(tmp_path / "data")
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(store.data_dir))
    monkeypatch.chdir(tmp_path)

    def write(
        run_id: str,
        state: str | None = "succeeded",
        provider: str = "local",
        place: Path = tmp_path,
    ) -> None:
        plan = {
            "host": None,
            "provider": provider,
            "target": {"provider": provider, "contract": "plain"},
            "facts": {"folder": str(place)},
        }
        folder = store.create(run_id, {"plan.json": json.dumps(plan), "request.json": "{}"})
        moment = time.time() + len(store.ids())
        born = {
            "type": "submitting",
            "time": moment,
            "name": "digits",
            "provider": provider,
            "contract": "plain",
        }
        write_events(folder, {**born, "nodes": 1, "processes": 1})
        if state:
            write_events(folder, {"type": "ended", "time": moment + 1, "state": state})

    return write


@pytest.mark.parametrize("name", [(), ("last",)])
@pytest.mark.parametrize("words", ["stop", "status"])
def test_runs_of_other_folders_are_never_the_default(
    ended: Ended, tmp_path: Path, words: str, name: tuple[str, ...]
) -> None:
    ended("digits-aaaa")
    ended("other-bbbb", place=tmp_path / "other")
    assert call(words, *name).err.startswith("digits-aaaa, the last run from this folder\n")


def test_a_folder_without_runs_names_the_newest_of_another(ended: Ended, tmp_path: Path) -> None:
    ended("other-bbbb", None, place=tmp_path / "other")
    result = call("stop")
    assert result.code == 2
    assert f"nothing was submitted from this folder, {tmp_path}" in result.err
    assert f"the newest is other-bbbb, from {tmp_path}/other" in result.err


@pytest.mark.parametrize("words", ["stop", "rerun"])
def test_several_running_submissions_are_listed_and_none_is_chosen(
    ended: Ended, words: str
) -> None:
    for name in ("digits-aaaa", "digits-bbbb"):
        ended(name, None, provider="aws")
    ended("digits-cccc")
    result = call(words)
    assert (result.code, result.out) == (2, "")
    assert "2 submissions from this folder are running: digits-bbbb, digits-aaaa" in result.err


def test_the_default_is_the_newest_sweep_and_not_its_newest_trial(
    ended: Ended, tmp_path: Path
) -> None:
    sweep = SweepFolder.create(
        tmp_path / "data",
        definition_of(),
        {"spec.yaml": "", "plan.json": json.dumps({"facts": {"submitted_from": str(tmp_path)}})},
    )
    sweep.append(SweepEnded(time=1.0, state="stopped", reason=""))
    ended(f"{sweep.sweep_id}-t000")
    result = call("stop")
    assert (result.code, result.err) == (
        0,
        f"{sweep.sweep_id}, the last sweep from this folder\n{sweep.sweep_id} had ended already\n",
    )


@pytest.mark.parametrize("word", ["stop", "logs"])
def test_an_empty_name_means_no_run(ended: Ended, word: str) -> None:
    ended("digits-aaaa")
    result = call(word, "")
    assert (result.code, result.out) == (2, "")
    assert "the name of the run is empty" in result.err


@pytest.mark.parametrize(("word", "meant"), ALIASES.items())
def test_words_of_other_tools_are_understood(word: str, meant: str) -> None:
    assert (call(word, "--help").code, meant in COMMANDS, word in COMMANDS) == (0, True, False)
    assert call(word, "--help").out.splitlines()[1:] == call(meant, "--help").out.splitlines()[1:]
