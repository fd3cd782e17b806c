"""Source folders that planning refuses, and issues that a plan carries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import Issue, SourceError
from cloudtrain.planning.plan import Plan
from cloudtrain.submission.preflight import preflight, start_notes


def test_runs_inside_the_source_are_refused_with_the_line_to_add(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: inner\n")
    job = cloudtrain.load(tmp_path / "job.yaml")
    with pytest.raises(SourceError, match="inside the source folder") as refused:
        cloudtrain.plan(job, data_dir=str(tmp_path / "my" / "runs"))
    assert "add my/runs/ to .cloudtrainignore" in (refused.value.hint or "")


def test_runs_inside_the_source_are_fine_when_ignored(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: inner\n")
    (tmp_path / ".cloudtrainignore").write_text("/my/runs/\n")
    job = cloudtrain.load(tmp_path / "job.yaml")
    first, second = (cloudtrain.plan(job, data_dir=str(tmp_path / "my" / "runs")) for _ in range(2))
    assert first.context.source == second.context.source
    assert first.context.source.files == 2


def test_an_entrypoint_that_is_ignored_is_refused_with_the_line_to_add(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("entrypoint: ./build/train.py\n")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "train.py").write_text("")
    (tmp_path / ".gitignore").write_text("build/\n")
    job = cloudtrain.load(tmp_path / "job.yaml")
    with pytest.raises(SourceError, match="is not in the archive") as refused:
        cloudtrain.plan(job, data_dir=str(tmp_path.parent / "runs"))
    assert refused.value.hint == "add !build/train.py to .cloudtrainignore"
    (tmp_path / ".cloudtrainignore").write_text("!build/train.py\n")
    assert cloudtrain.plan(job, data_dir=str(tmp_path.parent / "runs")).context.source.files == 4


def test_an_entrypoint_behind_a_link_is_archived_with_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("entrypoint: link/train.py\n")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").write_text("")
    (tmp_path / "link").symlink_to("real")
    assert cloudtrain.plan(
        cloudtrain.load(tmp_path / "job.yaml"), data_dir=str(tmp_path.parent / "runs")
    )


def test_what_is_being_written_while_a_job_is_submitted_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "tee.log").write_text("planning\n")
    job = cloudtrain.load(tmp_path / "job.yaml")
    plan = cloudtrain.plan(job, data_dir=str(tmp_path.parent / "runs"))
    (tmp_path / "tee.log").write_text("planning\nstarting\n")
    (tmp_path / "new").touch()
    with pytest.raises(
        SourceError, match=r"changed after it was planned: new, tee\.log$"
    ) as refused:
        cloudtrain.submit(plan)
    assert ".cloudtrainignore" in str(refused.value.hint)


def test_a_large_source_is_warned_of_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.source.tree.WARN_BYTES", 1000)
    (tmp_path / "job.yaml").write_text("{}")
    (tmp_path / "data.bin").write_bytes(b"x" * 5000)
    plan = cloudtrain.plan(
        cloudtrain.load(tmp_path / "job.yaml"), data_dir=str(tmp_path.parent / "runs")
    )
    assert "data.bin (5.0 kB)" in start_notes(plan, [])[0]


def test_a_plan_finds_its_issues_once(tmp_path: Path) -> None:
    job = cloudtrain.load({"name": "once"})
    plan = cloudtrain.plan(job, "docker", data_dir=str(tmp_path))
    searches = []

    def find(plan: Plan) -> list[Issue]:
        searches.append(plan.run_id)
        return [Issue((), "wrong")]

    plan = replace(plan, checker=find)
    assert [preflight(plan)[0].message for _ in range(2)] == ["wrong", "wrong"]
    assert searches == [plan.run_id]
