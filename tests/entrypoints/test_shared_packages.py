"""Stored packages match the request: the same index, unchanged by other jobs, from whole archives."""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain_launcher.packages import archives, layered
from cloudtrain_launcher.packages.install import Installation, Task, archive_name
from tests.entrypoints.test_packages import run, task
from tests.support.wheels import make_wheel, offline

DAMAGES = 60
CONSOLE_SCRIPT = b"[console_scripts]\nshared-tool = shared:main\n"


def make_index(folder: Path, value: str) -> Path:
    """A folder of wheels with one version of `shared`, which holds `value`, and one of `other`."""
    source = f"import sys\nVALUE = {value!r}\ndef main(): print(VALUE, sys.prefix)\n".encode()
    info = "shared-1.0.dist-info"
    make_wheel(
        folder,
        "shared",
        "1.0",
        files={"shared.py": source, f"{info}/entry_points.txt": CONSOLE_SCRIPT},
    )
    make_wheel(folder, "other", "1.0")
    return folder


def value_in(environment: str) -> str:
    """Return the value of `shared` for a program that runs in an environment."""
    command = [
        str(layered.python_of(Path(environment))),
        "-c",
        "import shared; print(shared.VALUE)",
    ]
    return subprocess.check_output(command, text=True).strip()


def kept_file(folder: Path, environment: str, name: str) -> Path:
    """A module as the programs of an environment find it, below the folder of kept environments."""
    code = f"import {name}; print({name}.__file__)"
    output = subprocess.check_output(
        [str(layered.python_of(Path(environment))), "-c", code], text=True
    ).strip()
    assert Path(output).is_relative_to(folder / "kept")
    return Path(output)


def shared_task(folder: Path, name: str) -> Task:
    """The task of one run; all keep their environments in one folder."""
    (folder / name).mkdir(exist_ok=True)
    return replace(task(folder / name, "shared==1.0\n"), folder=str(folder / "kept"))


def test_another_index_gives_another_environment(tmp_path: Path) -> None:
    values = {}
    for project in ("a", "b"):
        env = offline(make_index(tmp_path / f"index of {project}", project))
        result, _ = run(tmp_path / project, shared_task(tmp_path, project), env)
        values[project] = value_in(result["environment"]), result["reused"]
    assert values == {"a": ("a", False), "b": ("b", False)}


SETTINGS = {
    "PIP_INDEX_URL": "https://me:s3cret@host/simple",
    "PIP_EXTRA_INDEX_URL": "https://host/simple",
    "PIP_FIND_LINKS": "wheels",
    "PIP_NO_INDEX": "1",
    "PIP_PRE": "1",
    "UV_INDEX": "https://host/simple",
    "UV_DEFAULT_INDEX": "https://host/simple",
    "UV_FIND_LINKS": "wheels",
    "UV_EXCLUDE_NEWER": "2025-01-01",
}
FILES = {
    "home/.config/pip/pip.conf": "[global]\nindex-url = https://own/simple\n",
    "home/.pip/pip.conf": "[global]\nindex-url = https://own/simple\n",
    "named.conf": "[global]\nindex-url = https://own/simple\n",
    "home/.config/uv/uv.toml": "index-url = 'https://own/simple'\n",
    "source/uv.toml": "index-url = 'https://own/simple'\n",
    "source/pyproject.toml": (
        "[project]\nname = 'a'\n[[tool.uv.index]]\nurl = 'https://own/simple'\n"
    ),
}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of pip and uv from outside."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "XDG_CONFIG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def name_of(folder: Path) -> str:
    return Installation(task(folder, "shared\n"))._environment().name


@pytest.mark.parametrize("variable", SETTINGS)
@pytest.mark.usefixtures("bare")
def test_each_variable_that_names_an_index_counts(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = name_of(tmp_path)
    monkeypatch.setenv(variable, SETTINGS[variable])
    assert name_of(tmp_path) not in (before, SETTINGS[variable])
    monkeypatch.setenv(variable, SETTINGS[variable] + "0")
    assert name_of(tmp_path) != before


@pytest.mark.parametrize("file", FILES)
@pytest.mark.usefixtures("bare")
def test_each_file_that_names_an_index_counts(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if file == "named.conf":
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / file))
    before = name_of(tmp_path)
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FILES[file])
    first = name_of(tmp_path)
    path.write_text(FILES[file].replace("own", "another"))
    assert len({before, first, name_of(tmp_path)}) == 3


@pytest.mark.usefixtures("bare")
def test_wheels_that_a_variable_names_below_the_source_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels")
    names = set()
    for project in ("a", "b"):
        (tmp_path / project / "source").mkdir(parents=True)
        make_index(tmp_path / project / "source" / "wheels", project)
        names.add(Installation(shared_task(tmp_path, project))._environment())
    assert len(names) == 2


@pytest.mark.usefixtures("bare")
def test_settings_that_change_no_package_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = name_of(tmp_path)
    for variable in (
        "PIP_NO_CACHE_DIR",
        "UV_CACHE_DIR",
        "PIP_ROOT_USER_ACTION",
        "UV_RUN_RECURSION_DEPTH",
    ):
        monkeypatch.setenv(variable, "1")
    (tmp_path / "source" / "pyproject.toml").write_text("[project]\nname = 'a'\n[tool.ruff]\n")
    assert name_of(tmp_path) == before


def test_a_password_of_an_index_is_not_kept(tmp_path: Path) -> None:
    env = {
        **offline(make_index(tmp_path / "index", "a")),
        "PIP_EXTRA_INDEX_URL": "https://me:s3cret@host/simple",
    }
    result, output = run(tmp_path, task(tmp_path, "shared\n"), env)
    assert "s3cret" not in json.dumps(result) + output
    texts = [path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert not [text for text in texts if b"s3cret" in text]


def test_what_a_program_installs_or_edits_reaches_no_other_run(tmp_path: Path) -> None:
    env = offline(make_index(tmp_path / "index", "original"))
    results = []
    for name in ("first", "second", "third"):
        results.append(run(tmp_path / name, shared_task(tmp_path, name), env)[0])
        environment = results[-1]["environment"]
        assert value_in(environment) == "original"
        if name == "first":
            python = str(layered.python_of(Path(environment)))
            installed = [python, "-m", "pip", "install", "-q", "other"]
            subprocess.run(installed, env={**os.environ, **env}, check=True)
            assert subprocess.run([python, "-c", "import other"], check=False).returncode == 0
        if name == "second":
            python = str(layered.python_of(Path(environment)))
            assert (
                subprocess.run(
                    [python, "-c", "import other"], check=False, capture_output=True
                ).returncode
                == 1
            )
            module = kept_file(tmp_path, environment, "shared")
            assert module.stat().st_mode & 0o222 == 0
            module.chmod(0o600)
            module.write_text(module.read_text().replace("original", "modified"))
    assert [result["reused"] for result in results] == [False, True, False]
    assert "shared.py" in results[2]["warnings"][-1]
    assert value_in(results[0]["environment"]) == "modified", "a run that goes on keeps its files"


@pytest.mark.parametrize("change", ["added", "removed", "same size and time"])
def test_any_change_of_kept_files_is_found(tmp_path: Path, change: str) -> None:
    environment = tmp_path / "kept"
    layered.create(environment, [])
    module = layered.site_of(environment) / "module.py"
    module.write_text("VALUE = 1\n")
    layered.complete(environment, {"installed": {}})
    subprocess.run([str(layered.python_of(environment)), "-c", "import module"], check=True)
    assert layered.is_unchanged(environment), "bytecode does not count"
    if change == "added":
        module.with_name("sitecustomize.py").touch()
    elif change == "removed":
        module.unlink()
    else:
        status = module.stat()
        module.chmod(0o600)
        module.write_text("VALUE = 2\n")
        os.utime(module, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not layered.is_unchanged(environment)


def test_a_program_of_a_package_runs_in_the_layer_of_its_run(tmp_path: Path) -> None:
    name = "a folder, with 'spaces'"
    env = offline(make_index(tmp_path / "index", "here"))
    result, _ = run(tmp_path / name, shared_task(tmp_path, name), env)
    tool = Path(result["environment"]) / "bin" / "shared-tool"
    assert (
        subprocess.check_output([str(tool)], text=True).strip() == f"here {result['environment']}"
    )


def test_a_changed_environment_that_nobody_uses_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(self: Installation, environment: Path) -> None:
        (layered.site_of(environment) / "pure.py").touch()

    monkeypatch.setattr(Installation, "_install", install)
    first, _ = Installation(task(tmp_path, "pure\n")).run()
    assert first is not None
    (layered.site_of(first) / "extra.py").touch()
    second, _ = Installation(task(tmp_path, "pure\n")).run()
    os.utime(first / layered.COMPLETE, (1, 1))
    third, result = Installation(task(tmp_path, "pure\n")).run()
    assert (second == first, third == first, result["reused"]) == (False, True, False)
    assert not (layered.site_of(first) / "extra.py").exists()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of an environment with three modules."""
    folder = tmp_path_factory.mktemp("archive")
    environment = folder / "environment"
    layered.create(environment, [])
    for number in range(3):
        (layered.site_of(environment) / f"module_{number}.py").write_bytes(
            random.Random(number).randbytes(3000)
        )
    layered.complete(environment, {"installed": {"module": "1.0"}})
    archives.save(environment, folder / "whole")
    return folder / "whole"


def damaged(content: bytes, seed: int) -> bytes:
    """The content cut off, with a flipped byte, or with a hole."""
    chance = random.Random(seed)
    place = chance.randrange(len(content))
    if seed % 3 == 0:
        return content[:place]
    if seed % 3 == 1:
        return (
            content[:place]
            + bytes([content[place] ^ (1 << chance.randrange(8))])
            + content[place + 1 :]
        )
    end = min(len(content), place + chance.randrange(1, 500))
    hole = bytes(end - place)
    return content[:place] + hole + content[end:] if content[place:end] != hole else content[:place]


def test_no_damaged_archive_is_taken(tmp_path: Path, archive: Path) -> None:
    content = archive.read_bytes()
    taken = []
    for seed in range(DAMAGES):
        environment = tmp_path / f"environment {seed}"
        layered.create(environment, []) if seed < 6 else environment.mkdir()
        (tmp_path / "archive").write_bytes(damaged(content, seed))
        if archives.restore(environment, tmp_path / "archive"):
            taken.append(seed)
    assert taken == []


def test_a_damaged_archive_is_written_again(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Installation, "_install", lambda *_: None)
    installation = task(tmp_path, "pure\n", archives=[str(tmp_path / "storage")])
    stored = tmp_path / "storage" / archive_name(Installation(installation)._environment())
    stored.parent.mkdir()
    stored.write_bytes(damaged(archive.read_bytes(), 1))
    environment, result = Installation(installation).run()
    assert environment is not None
    assert result["reused"] is False
    archives.save(environment, stored)
    assert archives.is_whole(stored)
    layered.remove(environment)
    monkeypatch.setattr(Installation, "_install", lambda *_: pytest.fail("it installs again"))
    assert layered.is_unchanged(Installation(installation).run()[0] or tmp_path)


def test_packages_that_a_job_changes_meanwhile_are_not_archived(tmp_path: Path) -> None:
    layered.create(tmp_path / "environment", [])
    layered.complete(tmp_path / "environment", {"installed": {}})
    (layered.site_of(tmp_path / "environment") / "new.py").touch()
    archives.save(tmp_path / "environment", tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize("text", ["[]", "{}", '{"installed": 1}', "{", "\x00"])
def test_an_environment_whose_record_is_damaged_is_made_anew(tmp_path: Path, text: str) -> None:
    layered.create(tmp_path / "environment", [])
    (tmp_path / "environment" / layered.COMPLETE).write_text(text)
    assert layered.contents(tmp_path / "environment") is None
