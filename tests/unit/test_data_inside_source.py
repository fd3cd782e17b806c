"""Runs that are kept inside the source folder must be ignored, or each job would ship all earlier ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import SourceError


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
    assert first.facts.source == second.facts.source
    assert first.facts.source.files == 2
