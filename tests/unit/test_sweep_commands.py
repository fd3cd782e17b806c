"""Commands that take a sweep where they take a run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cloudtrain.errors import StorageError
from cloudtrain.runs.logs import format_timestamp, log_file
from cloudtrain.runs.store import RunStore, sweep_named, sweep_of_run
from cloudtrain.spec.search_space import Choice, Uniform
from cloudtrain.sweeps.journal import (
    JOURNAL,
    RAY_DASHBOARD,
    Launching,
    Reported,
    RunEnded,
    Suggested,
    SweepEnded,
    SweepFolder,
)
from cloudtrain.sweeps.sweep import Sweep
from tests.support.function_trials import ended_sweep, sweep_of
from tests.support.in_process import call
from tests.support.native_sweeps import changed
from tests.support.samples import BORN, python_program, write_events
from tests.support.waiting import HANG_SECONDS, eventually

# Commands that take a sweep where they take a run. Its trials are a function: no process is
# started.

RATES = (1e-3, 1e-2, 1e-1)


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    """A grid of three trials that has ended; the second is the best. Each has a run, too."""
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    folder = ended_sweep(tmp_path / "data", sweep_of({"lr": Choice(RATES)}, trials=3))
    for trial in Sweep(folder).status().trials:
        a_run(tmp_path / "data", trial.run, float(trial.parameters["lr"]))
    return folder


def a_run(data: Path, run_id: str, lr: float) -> None:
    plan = {
        "provider": "local",
        "spec": {"name": "digits", "args": {"argv": [], "values": {"lr": lr}}},
    }
    folder = RunStore(data).create(run_id, {"plan.json": json.dumps(plan)})
    write_events(
        folder, {**BORN, "time": 100.0}, {"type": "ended", "time": 110.0, "state": "succeeded"}
    )


def test_a_sweep_is_one_line_of_the_list_unless_all_runs_are_asked_for(sweep: SweepFolder) -> None:
    a_run(sweep.path.parents[1], "other-k2x9", 0.5)
    listed = call("list").out.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["digits-k2x9", "other-k2x9"]
    assert "3/3 trials" in call("list").out
    assert call("list", "--all").out.count("digits-k2x9-t00") == 3


def test_more_trials_without_a_name_are_those_of_the_last_submission(
    sweep: SweepFolder, tmp_path: Path
) -> None:
    place = json.dumps({"facts": {"submitted_from": str(tmp_path)}})
    (sweep.path / "plan.json").write_text(place)
    os.utime(sweep.path / "plan.json", (1, 1))  # before the run below
    result = call("sweep", "more", "3")
    assert "digits-k2x9, the last sweep from this folder" in result.err
    assert "has tried all 3 combinations of its values" in result.err
    assert "no trial of sweep digits-k2x9 was interrupted" in call("sweep", "more").err
    RunStore(tmp_path / "data").create("later-k2x9", {"plan.json": place})
    result = call("sweep", "more", "3")
    assert (result.code, "later-k2x9 is a run, not a sweep" in result.err) == (2, True)
    assert "hint: cloudtrain sweep more SWEEP 3" in result.err


def test_the_dashboard_of_a_local_ray_is_shown_while_the_sweep_runs(sweep: SweepFolder) -> None:
    (sweep.path / RAY_DASHBOARD).write_text("http://127.0.0.1:8265")
    assert "dashboard" not in call("status", "digits-k2x9").out
    journal = sweep.path / JOURNAL
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))
    assert "Ray's dashboard    http://127.0.0.1:8265" in call("status", "digits-k2x9").out
    (sweep.path / RAY_DASHBOARD).write_bytes(b"\xff\n")
    assert call("status", "digits-k2x9").code == 0


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits for its driver on a slow machine, too."""
    monkeypatch.setattr("cloudtrain.sweeps.sweep.DRIVER_START_SECONDS", HANG_SECONDS)


@pytest.mark.usefixtures("patience")
def test_a_driver_that_cannot_start_says_why(tmp_path: Path) -> None:
    space = {"lr": Choice(RATES)}
    folder = SweepFolder.create(tmp_path, sweep_of(space, sampler="grid", trials=3), {})
    with pytest.raises(StorageError, match=r"ended at once: .*plan\.json"):
        Sweep(folder).start_driver()


KILLED_DRIVER = """
import os, signal, sys
from pathlib import Path
from cloudtrain.sweeps.journal import SweepFolder

with SweepFolder(Path(sys.argv[-1])).driving():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("patience")
def test_a_driver_that_is_killed_once_it_drives_has_not_failed_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SweepFolder.create(tmp_path, sweep_of({"lr": Choice(RATES)}, trials=3), {})
    python = python_program(tmp_path / "python", KILLED_DRIVER)
    monkeypatch.setattr(sys, "executable", str(python))

    Sweep(folder).start_driver()

    eventually(lambda: not folder.is_driven())
    assert folder.last_driver() > 0
    assert Sweep(folder).status().state == "running"


DRIVER_THAT_STARTS_A_TRIAL = """
import sys
from pathlib import Path

(Path(sys.argv[-1]) / "started").touch()
sys.exit(7)
"""


@pytest.fixture
def interrupted(sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File that a new driver of the interrupted sweep writes."""
    journal = sweep.path / JOURNAL
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))
    python = python_program(sweep.path / "python", DRIVER_THAT_STARTS_A_TRIAL)
    monkeypatch.setattr(sys, "executable", str(python))
    return sweep.path / "started"


@pytest.mark.parametrize("command", ["wait", "attach", "logs -f", "status", "list"])
def test_who_only_looks_at_an_interrupted_sweep_starts_nothing(
    interrupted: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("cloudtrain.sweeps.sweep.DRIVER_START_SECONDS", 0)
    name = [] if command == "list" else ["digits-k2x9"]
    printed = call(*command.split(), *name)
    assert not interrupted.exists()
    if command not in ("status", "list"):
        assert printed.code == 2
        assert "cloudtrain sweep more digits-k2x9" in printed.err


@pytest.mark.usefixtures("interrupted")
def test_waiting_for_a_sweep_is_over_after_the_timeout() -> None:
    printed = call("wait", "digits-k2x9", "--timeout", "0.1 s", "--json")
    assert printed.code == 5
    assert "digits-k2x9 has not ended after" in printed.err
    assert json.loads(printed.out)["state"] == "running"


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("command", ["sweep more", "stop"])
def test_an_interrupted_sweep_continues_by_its_own_command_or_to_be_stopped(
    interrupted: Path, command: str
) -> None:
    assert "ended at once" in call(*command.split(), "digits-k2x9").err
    assert interrupted.exists()


def test_the_status_of_a_sweep_shows_its_trials_and_marks_the_best(sweep: SweepFolder) -> None:
    lines = call("status", "digits-k2x9").out.splitlines()
    assert lines[0].startswith(
        "digits-k2x9  succeeded  3 of 3 trials done, 0 running; best accuracy 0.75 (trial 1)"
    )
    assert lines[1].split() == ["TRIAL", "LR", "REPORTS", "ACCURACY", "STATE"]
    assert lines[3].split() == ["*1", "0.01", "1", "0.75", "completed"]
    report = json.loads(call("status", "digits-k2x9", "--json").out)
    assert (report["state"], report["best"], [trial["value"] for trial in report["trials"]]) == (
        "succeeded",
        1,
        [0.25, 0.75, 0.25],
    )


def test_what_is_about_one_run_means_the_best_trial_of_a_sweep(sweep: SweepFolder) -> None:
    result = call("metrics", "digits-k2x9")
    assert "digits-k2x9-t001, the best trial of digits-k2x9: accuracy 0.75" in result.err


def test_the_trials_of_a_sweep_are_compared(sweep: SweepFolder) -> None:
    head, *rows = call("compare", "digits-k2x9").out.splitlines()
    assert head.split() == [f"digits-k2x9-t00{number}" for number in range(3)]
    assert ["args.lr", "0.001", "0.01", "0.1"] in [row.split() for row in rows]


def log(sweep: SweepFolder, run: str, *lines: tuple[float, str]) -> None:
    folder = sweep.path.parents[1] / "runs" / run / "logs"
    folder.mkdir(exist_ok=True)
    (folder / "node-0.log").write_text(
        "".join(f"{format_timestamp(time)} [rank 0] {text}\n" for time, text in lines)
    )


@pytest.fixture
def logs(sweep: SweepFolder) -> None:
    log(sweep, "digits-k2x9-t000", (101.0, "a"), (103.0, "c"))
    log(sweep, "digits-k2x9-t002", (102.0, "b"), (104.0, "d"))


@pytest.mark.usefixtures("logs")
def test_the_logs_of_a_sweep_are_those_of_all_trials_in_the_order_of_time() -> None:
    lines = [
        f"[trial {trial}] [rank 0] {text}"
        for trial, text in ((0, "a"), (2, "b"), (0, "c"), (2, "d"))
    ]
    assert call("logs", "digits-k2x9").out.splitlines() == lines
    assert call("logs", "digits-k2x9", "--tail", "3").out.splitlines() == lines[1:]
    assert call("logs", "digits-k2x9", "--grep", "c|d", "--rank", "0").out.splitlines() == [
        "[trial 0] c",
        "[trial 2] d",
    ]
    records = [json.loads(line) for line in call("logs", "digits-k2x9", "--json").out.splitlines()]
    assert [(record["trial"], record["text"]) for record in records] == [
        (0, "a"),
        (2, "b"),
        (0, "c"),
        (2, "d"),
    ]


@pytest.mark.parametrize("command", ["fetch", "rerun"])
def test_the_best_can_be_asked_for_by_name_and_only_of_a_sweep(
    sweep: SweepFolder, command: str
) -> None:
    assert (
        "digits-k2x9-t001, the best trial of digits-k2x9"
        in call(command, "digits-k2x9", "--best").err
    )
    result = call(command, "digits-k2x9-t002", "--best")
    assert (result.code, "--best is for a sweep; digits-k2x9-t002 is a run" in result.err) == (
        2,
        True,
    )


def test_a_beginning_that_another_run_has_too_means_no_sweep(tmp_path: Path) -> None:
    (tmp_path / "sweeps" / "digits-k2x9").mkdir(parents=True)
    assert sweep_named("digits-k2x9", tmp_path, ["digits-k2x9-t001"]) == "digits-k2x9"
    assert sweep_named("dig", tmp_path, ["digits-k2x9-t001", "digits-k2x9-t001-2"]) == "digits-k2x9"
    assert sweep_named("dig", tmp_path, ["digits-abcd"]) == ""
    assert sweep_named("", tmp_path, []) == ""
    assert sweep_of_run("digits-k2x9-t001-2", ["digits-k2x9"]) == "digits-k2x9"
    assert sweep_of_run("digits-k2x9-t1", ["digits-k2x9"]) == ""
    assert sweep_of_run("digits-k2x9-001-f1bffb27", ["digits-k2x9"]) == "digits-k2x9"
    assert sweep_of_run("digits-k2x9_12", ["digits-k2x9"]) == "digits-k2x9"


@pytest.mark.parametrize("name", ["digits-k2x9-001-f1bffb27", "digits-k2x9_0"])
def test_a_trial_that_a_cloud_started_is_not_run_again(
    name: str, sweep: SweepFolder, tmp_path: Path
) -> None:
    plan = {"provider": "local", "spec": {"name": "digits"}, "adopted": 100.0}
    folder = RunStore(tmp_path / "data").create(name, {"plan.json": json.dumps(plan)})
    write_events(
        folder, {**BORN, "time": 100.0}, {"type": "ended", "time": 110.0, "state": "succeeded"}
    )
    refused = call("rerun", name)
    assert refused.code == 2
    assert "by the cloud's service for sweep digits-k2x9" in refused.err
    assert len(call("list").out.splitlines()) == 2  # the sweep is one line


def test_a_plan_is_not_compared_with_a_sweep(
    sweep: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")  # the data folder is not part of the source
    Path("train.py").write_text("")
    refused = call("plan", "train.py", "--diff", "digits-k2x9")
    assert "digits-k2x9 is a sweep, and plan compares one job" in refused.err


# `cloudtrain diagnose` of a sweep: its failed trials by cause.

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
FULL = "OSError: [Errno 28] No space left on device"


@pytest.fixture
def failed_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    definition = sweep_of(
        {"lr": Uniform(0, 1), "model": Choice(("small", "large"))}, sampler="random", trials=5
    )
    return SweepFolder.create(tmp_path / "data", definition, {"spec.yaml": "", "plan.json": "{}"})


def a_trial(
    failed_sweep: SweepFolder, number: int, lr: float, model: str, failure: str = ""
) -> None:
    run = f"{failed_sweep.sweep_id}-t{number:03d}"
    failed_sweep.append(
        Suggested(time=1.0, trial=number, parameters={"lr": lr, "model": model}),
        Launching(time=1.0, trial=number, run=run),
    )
    folder = RunStore(failed_sweep.path.parents[1]).create(
        run, {"plan.json": '{"provider": "local", "spec": {"name": "x"}}'}
    )
    state = "failed" if failure else "succeeded"
    write_events(folder, {**BORN, "time": 100.0}, {"type": "ended", "time": 160.0, "state": state})
    log_file(folder.path, 0).parent.mkdir(exist_ok=True)
    log_file(folder.path, 0).write_text(f"{format_timestamp(120.0)} [rank 0] {failure or 'done'}\n")
    if not failure:
        failed_sweep.append(Reported(time=1.5, trial=number, report=1, value=lr))
    failed_sweep.append(
        RunEnded(time=2.0, trial=number, run=run, outcome="failed" if failure else "completed")
    )


def diagnosed(failed_sweep: SweepFolder, *words: str) -> str:
    failed_sweep.append(SweepEnded(time=3.0, state="succeeded"))
    result = call("diagnose", failed_sweep.sweep_id, *words)
    assert result.code == 0, result.err
    return result.out


def test_failed_trials_are_shown_by_cause(failed_sweep: SweepFolder) -> None:
    a_trial(failed_sweep, 0, 0.1, "small")
    a_trial(failed_sweep, 1, 0.2, "large", OOM)
    a_trial(failed_sweep, 2, 0.3, "small", FULL)
    a_trial(failed_sweep, 3, 0.4, "large", OOM)
    out = diagnosed(failed_sweep)
    assert out.splitlines()[0] == f"{failed_sweep.sweep_id}: 3 of 4 trials failed"
    memory = out.index("more memory than the GPU had left")
    disk = out.index("a disk, or your share of it, was full")
    assert memory < disk, "the most frequent comes first"
    assert "trials      1, 3" in out[:disk]
    assert f"cloudtrain diagnose {failed_sweep.sweep_id}-t001" in out


def test_where_no_trial_failed_the_best_one_is_diagnosed(failed_sweep: SweepFolder) -> None:
    a_trial(failed_sweep, 0, 0.1, "small")
    assert f"{failed_sweep.sweep_id}-t000 succeeded" in diagnosed(failed_sweep)


@pytest.mark.parametrize("cloud", ["aws", "azure"])
def test_a_dry_run_has_placeholders_of_an_account_for_people_alone(
    cloud: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(changed())
    shown = call("sweep", "--dry-run", "--provider", cloud)
    assert (shown.code, "shown as placeholders" in shown.err) == (0, True)
    for words in (["--dry-run", "--json"], ["--yes"]):
        assert call("sweep", *words, "--provider", cloud).code == 2


def test_a_search_of_one_value_has_nothing_to_vary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    result = call("sweep", "train.py", "--set", "args.lr=0.01", "--objective", "loss:minimize")
    assert result.code == 2
    assert "leaves nothing to vary" in result.err
