"""Drills: the verdicts from constructed histories, and checkpoints counted by their files."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.runs.fold import fold
from cloudtrain.submission.drills.history import (
    SavedFiles,
    history_of,
    newest_file,
    steps_done_again,
)
from cloudtrain.submission.drills.verdict import (
    DrillRun,
    Fault,
    Finding,
    JobFacts,
    Trained,
    Verdict,
    advice,
    judge,
    trained,
)
from cloudtrain_launcher.events import Event
from tests.support.samples import event

# Verdicts of a drill from constructed histories: the lost steps and the advice.

CAUSE = {
    "rank": 1,
    "node": 0,
    "time": 20.0,
    "exception": "OSError",
    "message": "[Errno 28] No space left on device",
}
JOB = JobFacts(
    restarts=1,
    retries=1,
    hang_seconds=1800,
    drilled_hang_seconds=10,
    is_trainer=False,
    saves=True,
    grace="120 s, as SageMaker gives it",
)


def reports(*steps: int) -> list[Event]:
    return [
        event("metrics", time=10.0 + step / 100, node=0, rank=0, step=step, values={"loss": 1})
        for step in steps
    ]


def ended(state: str, **fields: object) -> Event:
    return event("ended", time=30.0, state=state, **fields)


def restarted(why: str = "rank 1 (node 0) was killed by SIGKILL") -> Event:
    return event("restarted", time=20.0, node=0, attempt=1, why=why)


def drill_run(events: Sequence[Event], digest: str = "", *, overdue: bool = False) -> DrillRun:
    files = (
        Trained(by="parameters_sha256", values={"parameters_sha256": digest})
        if digest
        else Trained()
    )
    state = fold("digits-1", iter(events))
    return DrillRun(
        run="digits-1", state=state, history=history_of(events), trained=files, overdue=overdue
    )


REFERENCE = drill_run([*reports(10, 20, 30, 40), ended("succeeded")], "aa")


def test_in_place_restart_with_the_same_parameters_is_a_recovery() -> None:
    finding = judge(
        REFERENCE,
        [
            drill_run(
                [*reports(10, 20), restarted(), *reports(20, 30, 40), ended("succeeded")], "aa"
            )
        ],
    )
    assert (finding.verdict, finding.compared, finding.rerun) == (
        Verdict.SAME,
        "parameters_sha256",
        False,
    )
    assert finding.report == "rank 1 (node 0) was killed by SIGKILL"
    assert finding.steps_lost == 10


def test_a_failure_that_names_its_rank_is_one_by_name() -> None:
    failed = drill_run([*reports(10), ended("failed", reason="rank 1 failed", error=CAUSE)])
    finding = judge(REFERENCE, [failed])
    assert (finding.verdict, finding.steps_lost) == (Verdict.NAMED, None)
    assert "No space left" in finding.report


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
    assert judge(REFERENCE, [drill_run([ended("failed", **fields)])]).verdict is Verdict.UNNAMED


def test_steps_that_were_done_again_are_counted_over_restarts_and_reruns() -> None:
    first = history_of(
        [
            *reports(10, 20, 30),
            restarted(),
            event("resumed", step=20),
            *reports(30),
            ended("failed"),
        ]
    )
    second = history_of([event("resumed", step=20), *reports(30, 40), ended("succeeded")])
    assert steps_done_again([first, second], REFERENCE.history) == 10 + 10


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
    assert trained(tmp_path, state).differences(first) == ["model.txt"]
    result = event("result", node=0, rank=0, parameters_sha256="aa")
    assert trained(tmp_path, fold("digits-1", iter([result]))).by == "parameters_sha256"


def changes(
    fault: Fault, finding: Finding, facts: JobFacts = JOB, faulty: DrillRun | None = REFERENCE
) -> str:
    return " | ".join(advice(fault, finding, faulty, facts))


def test_each_shortcoming_has_its_advice() -> None:
    same_state = Finding(verdict=Verdict.SAME, steps_lost=0)
    other_state = Finding(verdict=Verdict.OTHER, steps_lost=0, differing=("model.pt",))
    assert changes(Fault.RANK_KILLED, same_state) == ""
    assert "limits.restarts is 0" in changes(
        Fault.RANK_KILLED, same_state, replace(JOB, restarts=0)
    )
    assert "limits.retries is 0" in changes(Fault.NODE_LOST, same_state, replace(JOB, retries=0))
    assert "seed the program" in changes(Fault.RANK_KILLED, other_state)
    assert "save on SIGTERM" in changes(Fault.SIGTERM, replace(same_state, saved_at_stop=False))
    assert changes(Fault.SIGTERM, replace(same_state, saved_at_stop=True, steps_lost=1)) == ""
    killed = drill_run(
        [ended("stopped", reason="stop requested (by force, after the grace period)")]
    )
    assert "within the grace period (120 s" in changes(Fault.SIGTERM, same_state, faulty=killed)
    named = Finding(verdict=Verdict.NAMED)
    unnoticed = Finding(verdict=Verdict.UNNOTICED)
    assert "the checkpoint before the newest" in changes(Fault.CHECKPOINT_TORN, named)
    assert "limits.hang is 0" in changes(
        Fault.LOADER_STALLED, unnoticed, replace(JOB, hang_seconds=0)
    )
    assert (
        changes(Fault.RANK_KILLED, Finding(verdict=Verdict.SKIPPED), replace(JOB, restarts=0)) == ""
    )


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
