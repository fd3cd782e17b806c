"""`cloudtrain check --forecast`: messages about the first steps, this machine and others."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cloudtrain.cli import cli
from cloudtrain.cli.check import forecast_lines
from cloudtrain.runs.forecast import Forecast, Span
from cloudtrain.submission import first_steps
from cloudtrain.submission import jobs as api
from cloudtrain.submission.first_steps import FirstSteps

FOUND = Forecast(
    total=Span(90.0, 100.0, 120.0), remaining=Span(60.0, 70.0, 90.0), usd=None,
    step=300, steps=1000, seen_steps=298,
)  # fmt: skip


def test_the_time_here_is_said_with_what_it_was_taken_from() -> None:
    [line] = forecast_lines(FirstSteps(forecast=FOUND))
    assert (
        line
        == "forecast: on this machine 1 min 40 s in all (1 min 30 s to 2 min); by 298 of 1000 steps"
    )
    assert forecast_lines(FirstSteps(forecast=FOUND, on_cpu=True))[0].startswith(
        "forecast: on this machine's CPU 1 min"
    )


def test_job_for_missing_gpus_runs_on_the_cpu_with_as_many_processes(
    tmp_path: Path,
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.yaml").write_text(
        "name: g\nargs: {task: gpt}\nresources: {nodes: 2, gpus: 4, gpu: T4}\nlimits: {restarts: 3,"
        " max_cost: 9 USD}\n"
    )
    job = api.load(tmp_path / "job" / "job.yaml")
    target = api.plan(job, "aws", data_dir=str(tmp_path / "data"), preview=True)
    plan = first_steps._plan_here(job, target, str(tmp_path / "data"))
    assert (plan.provider, plan.gpus, plan.processes, plan.spec.resources.nodes) == (
        "local",
        0,
        4,
        2,
    )
    assert (plan.spec.limits.restarts, plan.spec.limits.max_cost) == (0, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--forecast", "job.yaml"],
            "'job.yaml' is not a number of seconds; put JOB before --forecast",
        ),
        (["--forecast=0"], "0 is not between 1 and 3600 seconds"),
    ],
)
def test_a_wrong_number_of_seconds_is_refused(words: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["check", *words])
    assert result.exit_code == 2
    assert message in result.output


def test_folder_of_a_killed_forecast_is_removed_and_a_running_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    leftover = tmp_path / f"{first_steps.SCRATCH}left"
    leftover.mkdir()
    (leftover / first_steps.LOCK).touch()
    with first_steps._scratch_folder() as one, first_steps._scratch_folder() as second:
        assert {str(path) for path in tmp_path.iterdir()} == {one, second}
    assert [*tmp_path.iterdir()] == []
