"""Settings: where they come from, how a file is edited, and other tools' settings."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.declaration import Setting
from cloudtrain.errors import SpecError, StorageError, UsageError
from cloudtrain.ownership import why_not_private
from cloudtrain.providers.infrastructure import SettingValue, settings_edit
from cloudtrain.settings import Settings, known_settings, load_settings, variable_of

# Settings: flags before environment before cloudtrain.toml before the user's own file, each with
# its origin.


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with a place for the user's own settings."""
    (tmp_path / "home" / ".config" / "cloudtrain").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's folder."""
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def write_user_file(home: Path, text: str) -> Path:
    path = home / ".config" / "cloudtrain" / "config.toml"
    path.write_text(text)
    return path


def write_job_file(job: Path, text: str) -> Path:
    path = job / "cloudtrain.toml"
    path.write_text(text)
    return path


def load(home: Path, job: Path, flags: dict[str, str] | None = None, **environ: str) -> Settings:
    return load_settings(job, flags, {"HOME": str(home), **environ})


def test_the_four_places_give_way_to_each_other_in_order(home: Path, job: Path) -> None:
    mine = write_user_file(home, 'provider = "own"\n')
    job_file = write_job_file(job, '\nprovider = "beside"\n')
    steps = [
        load(home, job, {"provider": "flag"}, CLOUDTRAIN_PROVIDER="env"),
        load(home, job, CLOUDTRAIN_PROVIDER="env"),
    ]
    steps.append(load(home, job))
    job_file.unlink()
    steps.append(load(home, job))
    assert [(step["provider"], step.origins["provider"]) for step in steps] == [
        ("flag", "--provider"),
        ("env", "environment CLOUDTRAIN_PROVIDER"),
        ("beside", f"{job_file}:2"),
        ("own", f"{mine}:1"),
    ]


def test_sizes_and_durations_are_read_once(home: Path, job: Path) -> None:
    write_job_file(job, 'source_limit = "2 GB"\nstop_grace = "1 min"\n')
    settings = load(home, job)
    assert (settings["source_limit"], settings["stop_grace"]) == (2_000_000_000, 60)


@pytest.mark.parametrize("text", ['subnets = ["a", "b"]', 'subnets = "a, b"', 'subnets = "a,b"'])
def test_a_list_may_be_written_as_one_text(home: Path, job: Path, text: str) -> None:
    write_job_file(job, f"[aws]\n{text}\n")
    assert load(home, job)["aws.subnets"] == ("a", "b")


def test_a_tilde_is_the_home_folder(home: Path, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    assert load(home, job, CLOUDTRAIN_DATA_DIR="~/runs")["data_dir"] == str(home / "runs")


def test_a_home_that_is_no_folder_has_no_settings(job: Path) -> None:
    write_job_file(job, 'provider = "beside"\n')
    assert load(Path("/dev/null"), job)["provider"] == "beside"


def test_the_xdg_folders_are_honoured(home: Path, job: Path, tmp_path: Path) -> None:
    (tmp_path / "xdg" / "cloudtrain").mkdir(parents=True)
    (tmp_path / "xdg" / "cloudtrain" / "config.toml").write_text('provider = "x"\n')
    settings = load(home, job, XDG_CONFIG_HOME=str(tmp_path / "xdg"), XDG_DATA_HOME="/data")
    assert (settings["provider"], settings["data_dir"]) == ("x", "/data/cloudtrain")


# Settings of a job's folder, which may be a stranger's.

OWN = {
    "data_dir": ('"../data"', "/own/data"),
    "python": ('"./evil"', "/own/python"),
    "prices": ('"cheap.csv"', "/own/prices.csv"),
    "confirm": ("false", "true"),
    "image.context_root": ('".."', "/own/root"),
    "mlflow.uri": ("'http://evil'", "http://mine"),
    "mlflow.experiment": ("'theirs'", "mine"),
    "notify.command": ("'evil'", "mine"),
    "notify.webhook": ("'env:THEIRS'", "env:mine"),
    "notify.slack": ("'env:THEIRS'", "env:mine"),
    "azure.tenant": ('"theirs"', "mine"),
}
"""A value beside the job, and one of the user, of each key that the folder never sets."""


def test_each_key_has_a_rule_for_the_folder_of_a_job() -> None:
    rules: dict[str, set[str]] = {}
    for key, setting in known_settings(third_parties=False).items():
        rules.setdefault(setting.beside_job, set()).add(key)

    assert rules["never"] == set(OWN)
    assert rules["harmless"] == {
        *("source_limit", "stop_grace", "policy", "image.args", "image.build_args"),
        *("docker.memory", "aws.region", "aws.poll"),
        *("azure.location", "azure.poll", "azure.stop_grace"),
    }
    assert Setting("of another provider").beside_job == "confirmed"


@pytest.mark.parametrize("key", OWN)
def test_only_the_users_own_places_set_what_is_run_and_where(
    home: Path, job: Path, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    before = load(home, job)
    theirs, own = OWN[key]
    variable = variable_of(key)
    job_file = write_job_file(job, f"\n{key} = {theirs}\n")

    for _ in range(2):
        settings = load(home, job)
        assert (settings.get(key), settings.origins.get(key)) == (
            before.get(key),
            before.origins.get(key),
        )

    [warning] = caplog.messages
    assert warning.startswith(f"{job_file}:2: {key} is not taken from the folder of a job")
    assert f"{variable}=" in warning

    caplog.clear()
    environ = {"HOME": str(home), variable: own}
    assert str(load_settings(job, None, environ)[key]).lower() == own
    mine = write_user_file(home, f"{key} = {own if key == 'confirm' else repr(own)}\n")
    assert load(home, job).origins[key] == f"{mine}:1"
    assert caplog.messages == []


def test_a_folder_may_make_the_policy_strict_but_not_loosen_it(home: Path, job: Path) -> None:
    write_job_file(job, 'policy = "strict"\n')
    assert load(home, job)["policy"] == "strict"
    write_user_file(home, 'policy = "strict"\n')
    write_job_file(job, 'policy = "warn"\n')
    assert load(home, job)["policy"] == "strict"


def test_what_is_confirmed_once_per_folder_is_what_the_folder_decides(
    home: Path, job: Path
) -> None:
    write_job_file(job, 'provider = "aws"\n[aws]\nbucket = "b"\nrole = "r"\nregion = "us-east-1"\n')
    assert load(home, job, CLOUDTRAIN_AWS_ROLE="own").redirects == {"provider", "aws.bucket"}


# A data folder that others may change: what lies in it is run.


@pytest.mark.parametrize("inside", ["", "runs", "sources", "sweeps", "packages", "cache"])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_data_folder_that_others_may_write_is_refused_with_what_to_type(
    home: Path, job: Path, tmp_path: Path, inside: str, mode: int
) -> None:
    place = tmp_path / "data" / inside
    place.mkdir(parents=True)
    place.chmod(mode)
    data = str(tmp_path / "data")
    with pytest.raises(SpecError) as caught:
        load(home, job, CLOUDTRAIN_DATA_DIR=data)

    [issue] = caught.value.issues
    assert issue.origin == "environment CLOUDTRAIN_DATA_DIR"
    assert issue.line().count(str(place)) == 1
    assert f"chmod -R go-w '{place}'" in (issue.hint or "")

    place.chmod(mode & ~0o022)
    assert load(home, job, CLOUDTRAIN_DATA_DIR=data)["data_dir"] == data


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to others")
OTHER = 12345


@as_root
@pytest.mark.parametrize("inside", ["", "sources", "packages", "confirmed.jsonl"])
def test_a_data_folder_of_somebody_else_is_refused(
    home: Path, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    place = tmp_path / "data" / inside
    place.mkdir(parents=True)
    os.chown(place, OTHER, OTHER)
    data = str(tmp_path / "data")
    with pytest.raises(SpecError, match=f"{place} belongs to user {OTHER}"):
        load(home, job, CLOUDTRAIN_DATA_DIR=data)

    monkeypatch.setenv("SUDO_UID", str(OTHER))
    assert load(home, job, CLOUDTRAIN_DATA_DIR=data)["data_dir"] == data


@as_root
def test_a_disk_that_gives_files_of_this_user_another_owner_is_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network disk does so with all files, or with root's."""
    os.chown(tmp_path, OTHER, OTHER)
    monkeypatch.chdir(tmp_path)  # the folders around it are private
    monkeypatch.setattr("os.geteuid", lambda: OTHER + 1)
    assert why_not_private(Path()) == f"belongs to user {OTHER}"

    os.seteuid(OTHER)
    try:
        assert why_not_private(Path()) == ""
    finally:
        os.seteuid(0)


def test_a_folder_where_each_keeps_what_is_their_own_may_hold_a_data_folder(
    home: Path, job: Path, tmp_path: Path
) -> None:
    (tmp_path / "data" / "sources").mkdir(parents=True)
    (tmp_path / "data").chmod(0o1777)
    assert load(home, job, CLOUDTRAIN_DATA_DIR=str(tmp_path / "data"))
    (tmp_path / "data" / "sources").chmod(0o777)
    with pytest.raises(SpecError, match="sources may be written by everybody"):
        load(home, job, CLOUDTRAIN_DATA_DIR=str(tmp_path / "data"))


# Edits of a cloudtrain.toml keep everything but the settings of a deployment.

NEW: dict[str, SettingValue] = {"aws.bucket": "b", "aws.subnets": ("s1", "s2")}
FILES = {
    "nothing": ("", '[aws]\nbucket = "b"\nsubnets = ["s1", "s2"]\n'),
    "other keys": (
        '# mine\nprovider = "aws"\n\n[aws]\nregion = "x"  # near\n\n[azure]\nlocation = "y"\n',
        '# mine\nprovider = "aws"\n\n[aws]\nregion = "x"  # near\nbucket = "b"\nsubnets = ["s1", "s2"]\n\n'
        '[azure]\nlocation = "y"\n',
    ),
    "other values": (
        '[aws]\nsubnets = [\n  "old",  # one\n  "older",\n]\nbucket = "was"\npoll = 5\n',
        '[aws]\nsubnets = ["s1", "s2"]\nbucket = "b"\npoll = 5\n',
    ),
    "the same values": (
        '[ "aws" ] # spaced\nbucket="b"\nsubnets=[ "s1" , "s2" ]',
        '[ "aws" ] # spaced\nbucket="b"\nsubnets=[ "s1" , "s2" ]',
    ),
    "a key of another table": (
        '[azure]\nbucket = "n"\n',
        '[azure]\nbucket = "n"\n\n[aws]\nbucket = "b"\nsubnets = ["s1", "s2"]\n',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_what_stands_in_the_file_stays(tmp_path: Path, case: str) -> None:
    before, after = FILES[case]
    path = tmp_path / "cloudtrain.toml"
    path.write_text(before)
    edit = settings_edit(path, NEW)
    assert edit.after == after
    assert edit.is_empty == (before == after) == (edit.diff() == [])
    edit.write()
    assert path.read_text() == after
    assert settings_edit(path, NEW).is_empty
    assert [path.name for path in tmp_path.iterdir()] == ["cloudtrain.toml"]


@pytest.mark.parametrize(
    "text",
    [
        'aws = {region = "x"}\n',
        'aws.region = "x"\n',
        '[aws]\nregion = "x"',
        "[aws.sub]\nx = 1\n\n[other]\ny = 2\n",
        '[aws]\nregion = "x"\n\n# next\n[[list]]\nx = 1\n',
        '"aws" = {}\r\nprovider = "aws"\r\n',
    ],
    ids=["inline", "dotted", "no last line end", "sub-table", "array of tables", "CRLF"],
)
def test_any_form_of_toml_gets_the_settings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cloudtrain.toml"
    path.write_bytes(text.encode())
    expected = tomllib.loads(text)
    expected.setdefault("aws", {}).update(bucket="b", subnets=["s1", "s2"])
    edit = settings_edit(path, NEW)
    assert tomllib.loads(edit.after) == expected
    edit.write()
    assert settings_edit(path, NEW).is_empty


def test_a_value_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cloudtrain.toml"
    path.write_text("aws = 5\n")
    with pytest.raises(UsageError, match="aws is not a table"):
        settings_edit(path, NEW)
    assert path.read_text() == "aws = 5\n"


def test_a_broken_file_and_a_folder_that_takes_none_are_told(tmp_path: Path) -> None:
    (tmp_path / "cloudtrain.toml").write_text("[aws\n")
    with pytest.raises(UsageError, match="cloudtrain"):
        settings_edit(tmp_path / "cloudtrain.toml", NEW)
    with pytest.raises(StorageError, match="cannot be written"):
        settings_edit(tmp_path / "none" / "cloudtrain.toml", NEW).write()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text("")
    link = tmp_path / "cloudtrain.toml"
    link.symlink_to("real.toml")
    settings_edit(link, NEW).write()
    assert link.is_symlink()
    assert "bucket" in (tmp_path / "real.toml").read_text()


@given(
    st.dictionaries(
        st.sampled_from(["aws.bucket", "aws.role", "azure.workspace"]),
        st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_every_text_is_read_back_as_it_was_written(settings: dict[str, SettingValue]) -> None:
    read = tomllib.loads(settings_edit(Path("/dev/null/new"), settings).after)
    assert {
        f"{table}.{key}": value for table, keys in read.items() for key, value in keys.items()
    } == settings
