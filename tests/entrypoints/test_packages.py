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
from uv import find_uv_bin

from cloudtrain_launcher import worker
from cloudtrain_launcher.notebook_code import plain_code
from cloudtrain_launcher.packages import archives, image, installers, layered
from cloudtrain_launcher.packages.install import Installation, Task, archive_name
from cloudtrain_launcher.packages.installation import activate, packages_folder
from cloudtrain_launcher.packages.installers import InstallationError
from cloudtrain_launcher.packages.requirement_files import Requested, requested_list
from tests.support.limits import HANG_SECONDS
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


def task(folder: Path, text: str, **more: Any) -> Task:
    (folder / "source").mkdir(exist_ok=True)
    (folder / "source" / "requirements.txt").write_text(text)
    return Task(
        source=str(folder / "source"),
        result=str(folder / "result.json"),
        folder=str(folder / "kept"),
        node=0,
        **{"file": "requirements.txt", **more},
    )


def run(folder: Path, task: Task, env: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Run the program; return its result and its output."""
    (folder / "task.json").write_text(json.dumps(asdict(task)))
    process = subprocess.run(
        [sys.executable, str(INSTALL), str(folder / "task.json")],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    )
    return json.loads((folder / "result.json").read_text()), process.stdout + process.stderr


def test_an_environment_goes_on_with_the_packages_below_and_keeps_their_torch(
    tmp_path: Path, wheels: Path
) -> None:
    installation = task(tmp_path, "sees\nfilelock==99.0\ntorch==1.0\n")
    result, output = run(tmp_path, installation, offline(wheels))
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
    second, output = run(tmp_path, installation, offline(wheels))
    assert second["reused"]
    assert "installing:" not in output


def with_uv(**variables: str) -> dict[str, str]:
    """The variables under which uv is found, and preferred to a machine's own pip.conf."""
    path = f"{Path(find_uv_bin()).parent}{os.pathsep}{os.environ['PATH']}"
    return {"UV_INDEX_STRATEGY": "first-index", "PATH": path, **variables}


def test_uv_installs_what_pip_would(tmp_path: Path, wheels: Path) -> None:
    env = with_uv(**offline(wheels))
    result, output = run(tmp_path, task(tmp_path, "sees\nfilelock==99.0\ntorch==1.0\n"), env)
    assert result["installed"] == {"sees": "1.0", "pure": "1.0", "filelock": "99.0"}, output
    assert result["warnings"][0].startswith(
        f"requirements.txt:3 asks for torch==1.0, but this image has torch {TORCH}"
    )
    assert "installing: Resolved 3 packages" in output, "which uv says, and pip does not"
    result, output = run(tmp_path, task(tmp_path, "pure\nno-such-package==3\n"), env)
    assert result["error"].startswith(
        "requirements.txt:2: no-such-package==3 cannot be installed for Python"
    ), output


def test_uv_asks_no_index_for_wheels_that_were_sent_with_the_job(
    tmp_path: Path, wheels: Path
) -> None:
    nowhere = with_uv(UV_DEFAULT_INDEX="http://127.0.0.1:1/simple", UV_HTTP_RETRIES="0")
    result, output = run(tmp_path, task(tmp_path, "sees\n", wheels=str(wheels)), nowhere)
    assert result.get("installed") == {"sees": "1.0", "pure": "1.0"}, output


def test_failed_installation_names_the_requirement_and_cleans_up(
    tmp_path: Path, wheels: Path
) -> None:
    installation = task(
        tmp_path,
        "pure\nno-such-package==3\n--extra-index-url https://me:s3cret@nowhere.invalid/simple\n",
    )
    result, output = run(tmp_path, installation, offline(wheels))
    assert result["error"].startswith(
        "requirements.txt:2: no-such-package==3 cannot be installed for Python"
    )
    assert "ERROR: No matching distribution found for no-such-package==3" in result["error"]
    assert "is the name right" in result["hint"]
    assert "s3cret" not in result["error"] + output
    assert [path.name for path in (tmp_path / "kept").iterdir() if path.is_dir()] == []


def test_what_a_killed_process_has_left_is_made_anew_from_wheels_that_were_sent(
    tmp_path: Path, wheels: Path
) -> None:
    made = Installation(task(tmp_path, "pure\n", wheels=str(wheels)))
    half = made._environment()
    layered.create(half, [])
    (layered.site_of(half) / "pure.py").write_text("half a fi")
    assert layered.contents(half) is None
    environment, result = made.run()
    assert environment == half
    assert result["reused"] is False
    assert (layered.site_of(half) / "pure.py").read_text() == "VERSION = '1.0'\n"


def test_of_two_at_once_one_makes_it_and_the_other_waits(tmp_path: Path) -> None:
    environment = tmp_path / "kept" / "abc"
    signal = threading.Event()
    made = []

    def second() -> None:
        with layered.making(environment, signal.set):
            made.append(layered.contents(environment))

    with layered.making(environment):
        thread = threading.Thread(target=second)
        thread.start()
        assert signal.wait(HANG_SECONDS)
        layered.create(environment, [])
        layered.complete(environment, {"installed": {}})
    thread.join(HANG_SECONDS)
    assert [installed and installed["installed"] for installed in made] == [{}]


def test_a_full_disk_ends_it_with_a_sentence_and_no_half_environment(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def full(self: Installation, environment: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Installation, "_install", full)
    made = Installation(task(tmp_path, "pure\n"))
    with pytest.raises(OSError, match="No space left"):
        made.run()
    assert not made._environment().exists()
    assert "resources.disk" in installers.hint_for_output("[Errno 28] No space left on device")


def test_the_next_attempt_takes_what_the_first_one_has_left_in_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(self: Installation, environment: Path) -> None:
        (layered.site_of(environment) / "pure.py").write_text("VERSION = 'kept'")

    monkeypatch.setattr(Installation, "_install", install)
    installation = task(tmp_path, "pure\n", archives=[str(tmp_path / "storage")])
    environment, _ = Installation(installation).run()
    assert environment is not None
    archives.save(environment, tmp_path / "storage" / archive_name(environment))
    layered.remove(environment)
    monkeypatch.setattr(Installation, "_install", lambda *_: pytest.fail("it installs again"))
    second, result = Installation(installation).run()
    assert second == environment
    assert result["reused"] is False
    code = "import pure; print(pure.VERSION)"
    assert (
        subprocess.check_output([str(layered.python_of(environment)), "-c", code], text=True)
        == "kept\n"
    )


def test_a_damaged_archive_is_passed_over(tmp_path: Path) -> None:
    layered.create(tmp_path / "e", [])
    (tmp_path / "a").write_bytes(b"\x1f\x8b nothing")
    assert not archives.restore(tmp_path / "e", tmp_path / "a")
    assert not archives.restore(tmp_path / "e", tmp_path / "none")


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


def test_what_is_built_from_the_source_itself_is_used_by_this_run_alone(tmp_path: Path) -> None:
    assert Installation(task(tmp_path, "-e .\n"))._environment().parent == tmp_path / "packages"
    assert Installation(task(tmp_path, "pure\n"))._environment().parent == tmp_path / "kept"


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


def test_versions_are_compared_where_nothing_here_reads_specifiers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(image, "packaging_module", lambda _: None)
    exact, open_ended = requested_list(["torch==2.8.0", "torch<2"]).to_install
    assert image.satisfies("2.8.0+cu128", exact)
    assert not image.satisfies("2.9.0", exact)
    assert image.satisfies("2.9.0", open_ended)


UV_OUTPUT = """Resolved 3 packages in 12ms
Would install 3 packages
 - filelock==4.2.11
 + filelock==99.0
 + my-lib==0.1 (from file:///src/my-lib)
 ~ pure==1.0
"""


def test_what_uv_would_install_is_taken_exactly_and_with_its_hashes() -> None:
    lines = requested_list(["pure==1.0 --hash=sha256:aa", "filelock"]).to_install
    names = installers.missing_packages(UV_OUTPUT.splitlines(), lines)
    assert names == ["filelock==99.0", "my-lib @ file:///src/my-lib", "pure==1.0 --hash=sha256:aa"]


def test_uv_is_taken_where_it_would_find_what_pip_finds(tmp_path: Path) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("")
    uv.chmod(0o700)
    path = {"PATH": str(uv.parent), "HOME": str(tmp_path), "UV_INDEX": "https://host/simple"}
    assert installers.find_uv(path) == str(uv)
    (tmp_path / ".config" / "pip").mkdir(parents=True)
    (tmp_path / ".config" / "pip" / "pip.conf").write_text(
        "[global]\nindex-url = https://own/simple\n"
    )
    assert installers.find_uv({**path, "UV_INDEX": ""}) == str(uv)
    assert installers.find_uv({"PATH": path["PATH"], "HOME": path["HOME"]}) == ""
    assert installers.find_uv({**path, "PATH": ""}) == ""


def test_uv_is_told_what_pips_variables_say_unless_its_own_do() -> None:
    variables = {
        "PIP_INDEX_URL": "https://a",
        "PIP_FIND_LINKS": "/x /y",
        "PIP_NO_INDEX": "1",
        "UV_DEFAULT_INDEX": "https://b",
    }
    uv_variables = installers.uv_environ(variables)
    assert (uv_variables["UV_DEFAULT_INDEX"], uv_variables["UV_FIND_LINKS"]) == (
        "https://b",
        "/x,/y",
    )


def test_settings_that_would_install_elsewhere_do_not_reach_pip() -> None:
    pip_variables = installers.pip_environ(
        {"PIP_TARGET": "/x", "PIP_USER": "1", "PIP_INDEX_URL": "https://a"}
    )
    assert "PIP_TARGET" not in pip_variables
    assert (pip_variables["PIP_USER"], pip_variables["PIP_INDEX_URL"]) == ("0", "https://a")


OUTPUTS = [
    ("ERROR: No matching distribution found for timm==99", "timm", "is the name right"),
    (
        "  cause: Because timm was not found in the package registry and you require timm",
        "timm",
        "is the name right",
    ),
    (
        "ERROR: Cannot install timm because these package versions have conflicting dependencies.",
        "timm",
        "torch stays",
    ),
    (
        "Because timm>=2.0 depends on torch>=99 and torch==2.13.0+cpu, we can conclude",
        "timm",
        "torch stays",
    ),
    ("ERROR: Failed building wheel for flash_attn", "flash-attn", "there is no wheel of it"),
    ("  × Failed to build `flash-attn==2.8`", "flash-attn", "there is no wheel of it"),
    (
        "Temporary failure in name resolution\nERROR: No matching distribution found for timm",
        "timm",
        "vendor: true",
    ),
    (
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE\n timm==1",
        "timm",
        "lock again",
    ),
    (
        "error: HTTP status client error (401 Unauthorized) for url (https://***@host/timm/)",
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


def test_without_pip_and_uv_the_image_is_to_blame(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o700)
    files = installers.Files(tmp_path / "r.txt", tmp_path / "c.txt", hashed=False)
    with pytest.raises(InstallationError, match="neither uv nor pip"):
        installers.install_by_pip(python, files, {}, print)


def test_a_line_of_a_notebook_that_installs_is_left_out_with_the_way_to_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, left_out = plain_code("%pip install einops\n!ls\nx = 1")
    assert code == "pass\npass\nx = 1\n"
    for line in left_out:
        worker._print_left_out("n.ipynb[cell 1]", line)
    first, second = capsys.readouterr().err.splitlines()
    assert (
        first
        == "n.ipynb[cell 1]: left out the line '%pip install einops': packages are installed before"
        " a job starts, those of requirements.txt beside it, or of dependencies"
    )
    assert second.endswith("'!ls': a notebook's magic does not run in a job")


def test_an_environment_is_active_for_all_that_is_started_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", sys.executable)
    environ = {"PATH": "/usr/bin", "PYTHONHOME": "/x"}
    activate(tmp_path, environ)
    assert environ == {"PATH": f"{tmp_path}/bin:/usr/bin", "VIRTUAL_ENV": str(tmp_path)}
    assert sys.executable == f"{tmp_path}/bin/python3"


def test_environments_are_kept_in_a_named_folder_the_cache_or_not_at_all(
    tmp_path: Path,
) -> None:
    assert packages_folder({"CLOUDTRAIN_PACKAGES_DIR": "/kept"}, tmp_path) == Path("/kept")
    assert (
        packages_folder({"HOME": str(tmp_path)}, tmp_path)
        == tmp_path / ".cache" / "cloudtrain" / "packages"
    )
    (tmp_path / "file").write_text("")
    assert packages_folder({"HOME": str(tmp_path / "file")}, tmp_path) == tmp_path / "kept-packages"


def test_nothing_is_made_where_only_torch_is_asked_for(tmp_path: Path) -> None:
    environment, result = Installation(task(tmp_path, "torch\n")).run()
    assert environment is None
    assert result == {"environment": "", "warnings": []}
    assert Requested().is_hashed is False
