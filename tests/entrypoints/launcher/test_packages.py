"""A job's packages on one node: what stays of the image, environments made once, what a failure
says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from cloudtrain_launcher.contract import Job
from cloudtrain_launcher.packages import image, installers, layered
from cloudtrain_launcher.packages.install import Installation
from cloudtrain_launcher.packages.installation import PACKAGES_DIR, RESULT, activate
from cloudtrain_wire.environments import COMPLETE
from cloudtrain_wire.requirement_files import requested_list
from tests.support.waiting import HANG_SECONDS
from tests.support.wheels import make_wheel, offline

INSTALL = Path(image.__file__).with_name("install.py")
TORCH = metadata.version("torch")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheels; the newer version of `sees` would pull another torch."""
    folder = tmp_path_factory.mktemp("wheels")
    make_wheel(folder, "pure", "1.0")
    make_wheel(folder, "sees", "1.0", requires=["torch>=2", "pure"])
    make_wheel(folder, "sees", "2.0", requires=["torch>=99"])
    make_wheel(folder, "torch", "99.0")
    make_wheel(folder, "filelock", "99.0")
    return folder


def job(folder: Path, text: str) -> Job:
    """Write the source of a job with these requirements, and its document; return the job."""
    (folder / "source").mkdir(exist_ok=True)
    (folder / "source" / "requirements.txt").write_text(text)
    dependencies = {"file": "requirements.txt"}
    job = Job("r", "n", "script", "t", [], {}, 1, 1, 0, 0, 30, 600, 3, dependencies=dependencies)
    (folder / "job.json").write_text(json.dumps(asdict(job)))
    return job


def installation(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Installation:
    made = job(folder, text)
    monkeypatch.chdir(folder / "source")
    monkeypatch.setenv(PACKAGES_DIR, str(folder / "kept"))
    return Installation(made, folder, 0)


def run(
    folder: Path, text: str, env: Mapping[str, str], kept: Path | None = None
) -> tuple[dict[str, Any], str]:
    """Run the program; return its result and its output."""
    job(folder, text)
    process = subprocess.run(
        [sys.executable, str(INSTALL), str(folder / "job.json"), str(folder), "0"],
        cwd=folder / "source",
        env={**os.environ, PACKAGES_DIR: str(kept or folder / "kept"), **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    )
    return json.loads((folder / RESULT).read_text()), process.stdout + process.stderr


def test_an_environment_goes_on_with_the_packages_below_and_keeps_their_torch(
    tmp_path: Path, wheels: Path
) -> None:
    text = "sees\nfilelock==99.0\ntorch==1.0\n"
    env = {**offline(wheels), "PIP_EXTRA_INDEX_URL": "https://me:s3cret@host/simple"}
    result, output = run(tmp_path, text, env)
    assert result["installed"] == {"sees": "1.0", "pure": "1.0", "filelock": "99.0"}, output
    assert result["warnings"][0].startswith(
        f"requirements.txt:3 asks for torch==1.0, but this image has torch {TORCH}"
    )
    python = layered.python_of(Path(result["environment"]))
    code = "import sees, filelock, sys, importlib.util as u"
    code += (
        "; print(sees.VERSION, filelock.VERSION, sys.prefix, u.find_spec('torch').origin,"
        " sep='\\n')"
    )
    lines = subprocess.check_output([str(python), "-c", code], text=True).splitlines()
    assert lines[:3] == ["1.0", "99.0", result["environment"]]
    assert lines[3].startswith(str(Path(sys.prefix)))
    assert metadata.version("filelock") != "99.0"
    second, output = run(tmp_path, text, env)
    assert second["reused"]
    assert "installing:" not in output
    texts = [path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert not [text for text in texts if b"s3cret" in text]


def test_failed_installation_names_the_requirement_and_cleans_up(
    tmp_path: Path, wheels: Path
) -> None:
    text = "pure\nno-such-package==3\n--extra-index-url https://me:s3cret@nowhere.invalid/simple\n"
    result, output = run(tmp_path, text, offline(wheels))
    assert result["error"].startswith(
        "requirements.txt:2: no-such-package==3 cannot be installed for Python"
    )
    assert "ERROR: No matching distribution found for no-such-package==3" in result["error"]
    assert "is the name right" in result["hint"]
    assert "s3cret" not in result["error"] + output
    assert [path.name for path in (tmp_path / "kept").iterdir() if path.is_dir()] == []


def test_what_a_killed_process_has_left_is_made_anew_from_wheels_that_were_sent(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = installation(tmp_path, f"--no-index\n--find-links {wheels}\npure\n", monkeypatch)
    half = made.environment()
    layered.create(half, [])
    (layered.site_of(half) / "pure.py").write_text("half a fi")
    assert layered.installed_in(half) is None
    assert made.run()["reused"] is False
    assert (layered.site_of(half) / "pure.py").read_text() == "VERSION = '1.0'\n"


def test_of_two_at_once_one_makes_it_and_the_other_waits(tmp_path: Path) -> None:
    environment = tmp_path / "kept" / "abc"
    signal = threading.Event()
    made = []

    def second() -> None:
        with layered.making(environment, signal.set):
            made.append(layered.installed_in(environment))

    with layered.making(environment):
        thread = threading.Thread(target=second)
        thread.start()
        assert signal.wait(HANG_SECONDS)
        layered.create(environment, [])
        layered.complete(environment, {"pure": "1.0"})
    thread.join(HANG_SECONDS)
    assert made == [{"pure": "1.0"}]


def test_a_full_disk_ends_it_with_a_sentence_and_no_half_environment(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(installers, "install", full)
    made = installation(tmp_path, "pure\n", monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        made.run()
    assert not made.environment().exists()
    assert "resources.disk" in installers.hint_for_output("[Errno 28] No space left on device")


def test_the_name_of_an_environment_stands_for_all_that_is_in_it_and_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site-packages" / "a-1.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    name = image.environment_digest(["einops"], tmp_path)
    assert name == image.environment_digest(["einops"], tmp_path)
    remaining = {
        image.environment_digest(["einops"], tmp_path / "x"),
        image.environment_digest(["timm"], tmp_path),
    }
    (tmp_path / "site-packages" / "b-1.dist-info").mkdir()
    remaining.add(image.environment_digest(["einops"], tmp_path))
    assert len(remaining - {name}) == 3


def test_torch_and_packages_built_for_it_stay_and_are_not_installed() -> None:
    held = {"torch": "2.8.0+cu128", "nvidia-nccl-cu12": "2.27"}
    requested = requested_list(
        [
            "torch",
            "einops",
            "nvidia-cublas-cu11==1",
            "torch==2.8.0",
            "nvidia_nccl_cu12==2.20",
            "torch<2",
        ]
    )
    to_install, notes = image.without_held(requested, held)
    assert [requirement.text for requirement in to_install] == ["einops"]
    assert [line.split(",")[0] for line in notes] == [
        "dependencies:5 asks for nvidia_nccl_cu12==2.20",
        "dependencies:6 asks for torch<2",
    ]
    assert image.held_packages()["torch"] == TORCH
    assert "filelock" not in image.held_packages()


def test_settings_that_would_install_elsewhere_do_not_reach_pip() -> None:
    pip_variables = installers.pip_environ(
        {"PIP_TARGET": "/x", "PIP_USER": "1", "PIP_INDEX_URL": "https://a"}
    )
    assert "PIP_TARGET" not in pip_variables
    assert (pip_variables["PIP_USER"], pip_variables["PIP_INDEX_URL"]) == ("0", "https://a")


OUTPUTS = [
    ("ERROR: No matching distribution found for timm==99", "timm", "is the name right"),
    (
        "ERROR: Cannot install timm because these package versions have conflicting dependencies.",
        "timm",
        "torch stays",
    ),
    ("ERROR: Failed building wheel for flash_attn", "flash-attn", "there is no wheel of it"),
    (
        "Temporary failure in name resolution\nERROR: No matching distribution found for timm",
        "timm",
        "--find-links",
    ),
    (
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE\n timm==1",
        "timm",
        "lock again",
    ),
    (
        "ERROR: HTTP error 401 while getting https://***@host/timm/",
        "timm",
        "secrets",
    ),
    (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "",
        "resources.disk",
    ),
]


@pytest.mark.parametrize(("output", "name", "hint"), OUTPUTS, ids=range(len(OUTPUTS)))
def test_what_an_installer_says_is_blamed_on_a_requirement_with_what_to_do(
    output: str, name: str, hint: str
) -> None:
    requirement = installers.blamed(
        output, requested_list(["einops", "timm", "flash-attn==2.8"]).to_install
    )
    assert (requirement.name if requirement else "") == name
    assert hint in installers.hint_for_output(output)


def test_an_environment_is_active_for_all_that_is_started_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", sys.executable)
    environ = {"PATH": "/usr/bin", "PYTHONHOME": "/x"}
    activate(tmp_path, environ)
    assert environ == {"PATH": f"{tmp_path}/bin:/usr/bin", "VIRTUAL_ENV": str(tmp_path)}
    assert sys.executable == f"{tmp_path}/bin/python3"


SETTINGS = {"PIP_INDEX_URL": "https://me:s3cret@host/simple", "PIP_FIND_LINKS": "wheels"}
FILES = ("home/.config/pip/pip.conf", "named.conf")


def test_another_index_gives_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "named.conf"))
    made = installation(tmp_path, "shared\n", monkeypatch)
    names = [made.environment().name]
    for variable, value in SETTINGS.items():
        monkeypatch.setenv(variable, value)
        names.append(made.environment().name)
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"[global]\nindex-url = https://{file}/simple\n")
        names.append(made.environment().name)
    assert len(set(names)) == 1 + len(SETTINGS) + len(FILES)
    assert not any("s3cret" in name for name in names)


@pytest.mark.parametrize("named", ["variable", "file", "option", "requirement", "itself"])
def test_environment_with_files_of_the_source_belongs_to_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    requirements = {
        "itself": "-e .\n",
        "option": "--find-links wheels\nshared\n",
        "requirement": "./wheels/shared-1.0-py3-none-any.whl\n",
    }
    source = tmp_path / "source"
    make_wheel(source / "wheels", "shared", "1.0")
    (source / "pip.conf").write_text("[global]\nfind-links = wheels\n")
    monkeypatch.chdir(source)
    if named == "variable":
        monkeypatch.setenv("PIP_FIND_LINKS", "https://host/simple wheels")
    if named == "file":
        monkeypatch.setenv("PIP_CONFIG_FILE", "pip.conf")

    made = installation(tmp_path, requirements.get(named, "shared\n"), monkeypatch)
    assert made.environment().parent == tmp_path / "packages"


@pytest.mark.once
def test_what_a_program_installs_or_edits_reaches_no_other_run(tmp_path: Path) -> None:
    info = "shared-1.0.dist-info"
    tool = "import sys\ndef main(): print('here', sys.prefix)\n"
    scripts = b"[console_scripts]\nshared-tool = shared:main\n"
    index = tmp_path / "index"
    files = {"shared.py": tool.encode(), f"{info}/entry_points.txt": scripts}
    make_wheel(index, "shared", "1.0", files=files)
    make_wheel(index, "other", "1.0")
    find = "import importlib.util as u, shared; print(bool(u.find_spec('other')), shared.__file__)"
    found = []
    reused = []
    for name in ("a folder, with 'spaces'", "second", "third"):
        (tmp_path / name).mkdir()
        result, _ = run(tmp_path / name, "shared\n", offline(index), tmp_path / "kept")
        reused.append(result["reused"])
        environment = result["environment"]
        output = subprocess.check_output([f"{environment}/bin/shared-tool"], text=True)
        assert output == f"here {environment}\n"
        python = str(layered.python_of(Path(environment)))
        other, file = subprocess.check_output([python, "-c", find], text=True).split()
        found.append(other)
        if not found[1:]:
            installed = [python, "-m", "pip", "install", "-q", "other"]
            subprocess.run(installed, env={**os.environ, **offline(index)}, check=True)
            assert subprocess.check_output([python, "-c", find], text=True).startswith("True ")
        elif not found[2:]:
            Path(file).write_text("raise ValueError('edited')\n")

    assert found == ["False", "False", "False"]
    assert reused == [False, True, False], "an import changes no package, and an edit does"
    assert "were changed after their installation" in result["warnings"][0]


@pytest.mark.parametrize("text", ["[]", "{}", '{"installed": 1}', "{", "\x00"])
def test_an_environment_whose_record_is_damaged_is_made_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / COMPLETE).write_text(text)
    assert layered.installed_in(tmp_path) is None
