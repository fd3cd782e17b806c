"""Drills: the verdicts from constructed histories, and checkpoints counted by their files."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.api.drills.cases import (
    CASES,
    CHECKPOINT_TORN,
    LOADER_STALLED,
    NODE_LOST,
    RANK_KILLED,
    SIGTERM,
    Case,
    advice,
    short_hang,
)
from cloudtrain.api.drills.saved_files import SavedFiles, newest_file
from cloudtrain.api.drills.verdict import EndedRun, Result, Trained, Verdict, judge, trained
from cloudtrain.planning.plan import Plan
from cloudtrain.runs.fold import fold
from cloudtrain_wire.events import Event
from tests.support.samples import event

# Verdicts of a drill from constructed events: the lost steps and the advice.

CAUSE = {
    "rank": 1,
    "node": 0,
    "time": 20.0,
    "exception": "OSError",
    "message": "[Errno 28] No space left on device",
}


def reports(*steps: int) -> list[Event]:
    return [
        event("metrics", time=10.0 + step / 100, node=0, rank=0, step=step, values={"loss": 1})
        for step in steps
    ]


def ended(state: str, **fields: object) -> Event:
    return event("ended", time=30.0, state=state, **fields)


def restarted(why: str = "rank 1 (node 0) was killed by SIGKILL") -> Event:
    return event("restarted", time=20.0, node=0, attempt=1, why=why)


def drill_run(events: Sequence[Event], digest: str = "") -> EndedRun:
    files = Trained()
    if digest:
        files = Trained(by="parameters_sha256", values={"parameters_sha256": digest})
    state = fold("digits-1", iter(events))
    return EndedRun(run="digits-1", state=state, events=events, trained=files, saves=2)


REFERENCE = drill_run([*reports(10, 20, 30, 40), ended("succeeded")], "aa")
verdict_on = partial(judge, "rank-killed", REFERENCE)


def test_in_place_restart_with_the_same_parameters_is_a_recovery() -> None:
    events = [*reports(10, 20), restarted(), *reports(20, 30, 40), ended("succeeded")]
    result = verdict_on([drill_run(events, "aa")])
    assert (result.verdict, result.is_rerun) == (Verdict.SAME, False)
    assert result.compared == "parameters_sha256"
    assert result.report == "rank 1 (node 0) was killed by SIGKILL"
    assert result.steps_lost == 10


def test_a_failure_that_names_its_rank_is_one_by_name() -> None:
    failed = drill_run([*reports(10), ended("failed", reason="rank 1 failed", error=CAUSE)])
    result = verdict_on([failed])
    assert (result.verdict, result.steps_lost) == (Verdict.NAMED, None)
    assert "No space left" in result.report


@pytest.mark.parametrize(
    "fields",
    [
        {"error": CAUSE | {"consequence": True}},
        {
            "error": (
                CAUSE | {"rank": -1, "exception": "exit", "message": "torchrun exited with code 1"}
            )
        },
        {"reason": ""},
    ],
    ids=["a victim is named", "only an exit code", "no word"],
)
def test_a_failure_that_only_says_that_there_was_one_is_without_a_name(
    fields: dict[str, object],
) -> None:
    assert verdict_on([drill_run([ended("failed", **fields)])]).verdict is Verdict.UNNAMED


def test_steps_that_were_done_again_are_counted_over_restarts_and_reruns() -> None:
    resumed = event("resumed", step=20)
    first = drill_run([*reports(10, 20, 30), restarted(), resumed, *reports(30), ended("failed")])
    second = drill_run([resumed, *reports(30, 40), ended("succeeded")])
    assert verdict_on([first, second]).steps_lost == 10 + 10


def test_a_job_that_repeats_its_first_step_began_anew() -> None:
    first = drill_run([*reports(10, 20, 30), ended("failed")])
    anew = verdict_on([first, drill_run([*reports(10, 20, 30, 40), ended("succeeded")])])
    assert (anew.began_anew, anew.steps_lost) == (True, 30)
    resumed = verdict_on([first, drill_run([*reports(40), ended("succeeded")])])
    assert (resumed.began_anew, resumed.steps_lost) == (False, 0)


def test_runs_are_compared_by_the_most_certain_thing_that_they_leave(tmp_path: Path) -> None:
    state = fold("digits-1", iter([*reports(10), ended("succeeded")]))
    assert trained(tmp_path, state).by == "the last metrics"
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "notes.txt").write_text("of this run")
    assert trained(tmp_path, state).by == "the last metrics"
    (tmp_path / "output" / "model.safetensors").write_text("weights")
    assert trained(tmp_path, state).by == "the files of weights in the output"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.txt").write_text("weights")
    first = trained(tmp_path, state)
    assert first.by == "the files of the model"
    (tmp_path / "model" / "model.txt").write_text("other weights")
    assert trained(tmp_path, state).values.keys() == first.values.keys()
    assert trained(tmp_path, state) != first
    result = event("result", node=0, rank=0, parameters_sha256="aa")
    assert trained(tmp_path, fold("digits-1", iter([result]))).by == "parameters_sha256"


def test_files_that_differ_are_named() -> None:
    result = verdict_on([drill_run([*reports(40), ended("succeeded")], "bb")])
    assert (result.verdict, result.differing) == (Verdict.OTHER, ["parameters_sha256"])


def plan_with(folder: Path, **limits: object) -> Plan:
    """The plan of a program of one's own, with these limits."""
    (folder / "train.py").touch()
    job = {
        "name": "digits",
        "source": str(folder),
        "entrypoint": "train.py",
        "limits": {"restarts": 1, "retries": 1, **limits},
    }
    return cloudtrain.plan(cloudtrain.load(job), "local")


def result_of(verdict: Verdict = Verdict.SAME, **fields: object) -> Result:
    """The result of a drill with one run, unless `fields` has others."""
    runs = [drill_run([ended("succeeded")])]
    return Result(drill="any", verdict=verdict, **{"runs": runs, **fields})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return plan_with(tmp_path_factory.mktemp("job"))


def test_a_job_that_is_ready_gets_no_advice(plan: Plan) -> None:
    for case in CASES:
        assert advice(case, result_of(), plan) == []


@pytest.mark.parametrize(
    ("case", "limits", "result", "words"),
    [
        (RANK_KILLED, {"restarts": 0}, result_of(), "limits.restarts is 0"),
        (NODE_LOST, {"retries": 0}, result_of(), "limits.retries is 0"),
        (LOADER_STALLED, {"hang": 0}, result_of(Verdict.UNNOTICED), "limits.hang is 0"),
    ],
    ids=["restarts", "retries", "hang"],
)
def test_a_limit_that_would_have_helped_is_named(
    case: Case, limits: dict[str, object], result: Result, words: str, tmp_path: Path
) -> None:
    (text,) = advice(case, result, plan_with(tmp_path, **limits))
    assert text.startswith(words)


def test_hangs_end_early_in_a_drill_if_they_end_at_all(tmp_path: Path) -> None:
    changes = [short_hang(plan_with(tmp_path, hang=hang)) for hang in (0, "5 s", "10 min")]
    assert changes == [[], ["limits.hang=5 s"], ["limits.hang=10 s"]]


def test_each_shortcoming_has_its_advice(plan: Plan) -> None:
    def changes(case: Case, **fields: object) -> str:
        return " | ".join(advice(case, result_of(**fields), plan))  # type: ignore[arg-type]

    killed = drill_run(
        [ended("stopped", reason="stop requested (by force, after the grace period)")]
    )
    assert "seed the program" in changes(RANK_KILLED, differing=["model.pt"])
    assert "started over" in changes(RANK_KILLED, began_anew=True)
    assert "save on SIGTERM" in changes(SIGTERM, saved_at_stop=False)
    assert "within the grace period (30 s" in changes(SIGTERM, runs=[killed])
    for damaged in ({"verdict": Verdict.NAMED}, {"began_anew": True}):
        assert "the checkpoint before the newest" in changes(CHECKPOINT_TORN, **damaged)


# Checkpoints of programs that do not report them: counted and found by their files.


def save(path: Path, size: int = 10, age: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (time.time() - age, time.time() - age))


def test_a_checkpoint_counts_once_when_its_files_have_come_to_rest(tmp_path: Path) -> None:
    files = SavedFiles(tmp_path / "checkpoints")
    assert files.look() == 0, "there is no folder yet"
    save(tmp_path / "checkpoints" / "latest.pt")
    assert (files.look(), files.look(), files.look()) == (0, 1, 1)
    save(tmp_path / "checkpoints" / "latest.pt", size=11)
    assert files.look() == 1, "it may still be written"
    assert files.look() == 2


def test_files_that_are_being_written_and_hidden_ones_are_no_checkpoints(tmp_path: Path) -> None:
    files = SavedFiles(tmp_path)
    for name in ("latest.tmp", "step-8.partial/weights.pt", ".lock"):
        save(tmp_path / name)
    assert (files.look(), files.look()) == (0, 0)


def test_the_largest_file_of_the_newest_checkpoint_is_torn(tmp_path: Path) -> None:
    assert newest_file(tmp_path) is None
    save(tmp_path / "step-1" / "weights.pt", size=1000, age=60)
    save(tmp_path / "step-2" / "weights.pt", size=100, age=10)
    save(tmp_path / "step-2" / "manifest.json", age=5)
    save(tmp_path / "best.pt", size=5000)
    assert newest_file(tmp_path) == tmp_path / "best.pt"
    checkpoints = ("step-1", "step-2")
    assert newest_file(tmp_path, checkpoints) == tmp_path / "step-2" / "weights.pt", (
        "what the program calls a checkpoint"
    )
