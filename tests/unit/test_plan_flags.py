"""A plan lists each field that a flag sets, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.in_process import call


def test_a_field_that_a_flag_sets_is_named_and_the_sections_around_it_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text("name: flags\nentrypoint: train.py\n")
    output = call(
        "plan", "--provider", "local", "--set", "resources.nodes=2", "--set", "env.A=b"
    ).out
    fields = [line.split()[2] for line in output.splitlines() if line.startswith("  set by")]
    assert fields == ["resources.nodes", "env.A"]


def test_a_field_that_is_taken_back_is_not_said_to_be_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(
        "name: flags\nentrypoint: train.py\nresources: {disk: 200 GiB}\n"
    )
    note = "not used by the local provider: resources.disk"
    assert note in call("plan", "--provider", "local").out
    assert note not in call("plan", "--provider", "local", "--set", "resources.disk=null").out
