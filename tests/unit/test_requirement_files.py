"""Requirements of the source folder: requirements.txt with everything pip allows, pyproject.toml,
uv.lock.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain_launcher.packages.lock_file import read_lock, read_requested
from cloudtrain_launcher.packages.requirement_files import (
    InvalidRequirements,
    Requested,
    requested_list,
)
from tests.support.samples import write


def shown(requested: Requested) -> list[str]:
    return [requirement.shown for requirement in requested.to_install]


def test_comments_continued_lines_and_extras_are_read_as_pip_reads_them(tmp_path: Path) -> None:
    text = (
        "# top\nEinops == 0.8.1  # why\n\nuvicorn[standard] >= 0.1, \\\n  < 2\nx; python_version <"
        " '3'\n"
    )
    requested = read_requested(write(tmp_path, {"requirements.txt": text}), "requirements.txt")
    assert shown(requested) == [
        "Einops == 0.8.1",
        "uvicorn[standard] >= 0.1, < 2",
        "x; python_version < '3'",
    ]
    assert [(requirement.name, requirement.place) for requirement in requested.to_install] == [
        ("einops", "requirements.txt:2"),
        ("uvicorn", "requirements.txt:4"),
        ("x", "requirements.txt:6"),
    ]
    assert [requirement.exact for requirement in requested.to_install] == ["0.8.1", "", ""]


def test_included_files_constraints_and_options_each_go_where_they_belong(tmp_path: Path) -> None:
    files = {
        "requirements.txt": (
            "-r more/base.txt\n-c limits.txt\n--extra-index-url https://me:secret@host/simple\n"
        ),
        "more/base.txt": "einops\n--find-links=wheels\n-rdeeper.txt",
        "more/deeper.txt": "timm",
        "more/wheels/x.whl": "",
        "limits.txt": "numpy<2",
    }
    requested = read_requested(write(tmp_path, files), "requirements.txt")
    assert shown(requested) == ["einops", "timm"]
    assert [
        requirement.text for requirement in requested.requirements if requirement.constraint
    ] == ["numpy<2"]
    assert requested.files == ("requirements.txt", "more/base.txt", "more/deeper.txt", "limits.txt")
    links, index = requested.options
    assert links == f"--find-links file://{tmp_path}/more/wheels"
    assert index.startswith("--extra-index-url")
    assert set(requested.passwords) == {"me:secret", "me", "secret"}


def test_a_password_in_a_requirement_is_never_shown(tmp_path: Path) -> None:
    (requirement,) = requested_list(["x @ git+https://token@host/x.git"]).to_install
    assert requirement.shown == "x @ git+https://***@host/x.git"
    assert requirement.has_password
    assert not requested_list(["x @ git+https://${TOKEN}@host/x.git"]).to_install[0].has_password


def test_projects_of_the_source_itself_are_told_from_names(tmp_path: Path) -> None:
    text = "-e .\n./libs/mine\nwheels/x-1-py3-none-any.whl\neinops\n"
    requested = read_requested(write(tmp_path, {"requirements.txt": text}), "requirements.txt")
    assert [requirement.is_local for requirement in requested.to_install] == [
        True,
        True,
        False,
        False,
    ]
    assert requested.to_install[1].text == f"file://{tmp_path}/libs/mine"
    assert requested.to_install[0].text == f"-e file://{tmp_path}"
    assert requested.to_install[2].wheel == f"{tmp_path}/wheels/x-1-py3-none-any.whl"
    assert requested.is_local


def test_hashes_count_once_every_requirement_has_them(tmp_path: Path) -> None:
    text = "einops==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    requested = read_requested(write(tmp_path, {"requirements.txt": text}), "requirements.txt")
    assert requested.is_hashed
    assert shown(requested) == ["einops==1"]
    assert requested.to_install[0].exact == "1"
    more = read_requested(
        write(tmp_path, {"requirements.txt": text + "timm\n"}), "requirements.txt"
    )
    assert not more.is_hashed


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"requirements.txt": "-r requirements.txt"},
            "requirements.txt:1: requirements.txt includes itself",
        ),
        (
            {"requirements.txt": "\n-r gone.txt"},
            "requirements.txt:2: gone.txt cannot be read: No such file",
        ),
    ],
)
def test_an_include_that_cannot_be_followed_is_named_with_its_line(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequirements, match=message):
        read_requested(write(tmp_path, files), "requirements.txt")


def test_a_project_asks_for_its_dependencies_and_a_mere_settings_file_for_nothing(
    tmp_path: Path,
) -> None:
    project = "[project]\nname = 'x'\ndependencies = ['einops>=0.8', 'timm']\n"
    write(
        tmp_path,
        {
            "pyproject.toml": project,
            "tools.toml": "[tool.ruff]\n",
            "bad.toml": "[[",
            "odd.toml": ODD,
        },
    )
    assert shown(read_requested(tmp_path, "pyproject.toml")) == ["einops>=0.8", "timm"]
    assert read_requested(tmp_path, "tools.toml").to_install == ()
    with pytest.raises(InvalidRequirements, match=r"bad\.toml is not valid TOML"):
        read_requested(tmp_path, "bad.toml")
    with pytest.raises(InvalidRequirements, match="not a list"):
        read_requested(tmp_path, "odd.toml")


ODD = "[project]\ndependencies = 'einops'\n"
LOCK = """
version = 1
requires-python = ">=3.9"

[[package]]
name = "project"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
    { name = "einops" },
    { name = "windows-only", marker = "sys_platform == 'win32'" },
    { name = "forked", version = "2.0", marker = "python_version >= '3'" },
    { name = "with-extra", extra = ["more"] },
]

[[package]]
name = "einops"
version = "0.8.1"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://files/einops.whl", hash = "sha256:aa", size = 1 }]

[[package]]
name = "windows-only"
version = "1"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://files/w.whl", hash = "sha256:bb" }]

[[package]]
name = "forked"
version = "1.0"
source = { registry = "https://pypi.org/simple" }
sdist = { url = "https://files/f1.tar.gz", hash = "sha256:cc" }

[[package]]
name = "forked"
version = "2.0"
source = { registry = "https://own/simple" }
sdist = { url = "https://files/f2.tar.gz", hash = "sha256:dd" }

[[package]]
name = "with-extra"
version = "3"
source = { registry = "https://pypi.org/simple" }
sdist = { url = "https://files/e.tar.gz", hash = "sha256:ee" }

[package.optional-dependencies]
more = [{ name = "deep" }]

[[package]]
name = "deep"
version = "4"
source = { registry = "https://pypi.org/simple" }
sdist = { url = "https://files/d.tar.gz", hash = "sha256:ff" }
dependencies = [{ name = "einops" }]
"""


def test_lock_file_gives_locked_versions_with_hashes_for_this_platform(
    tmp_path: Path,
) -> None:
    write(tmp_path, {"uv.lock": LOCK})
    requested = read_lock(tmp_path, "uv.lock", lambda marker: "win32" not in marker)
    assert [requirement.text for requirement in requested.to_install] == [
        "einops==0.8.1 --hash=sha256:aa",
        "forked==2.0 --hash=sha256:dd",
        "with-extra==3 --hash=sha256:ee",
        "deep==4 --hash=sha256:ff",
    ]
    assert requested.is_hashed
    assert requested.options == ("--extra-index-url https://own/simple",)
    assert len(read_requested(tmp_path, "uv.lock").to_install) == 5


def test_what_only_a_package_of_the_image_needs_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"uv.lock": LOCK})
    requested = read_lock(tmp_path, "uv.lock", lambda marker: not marker, {"with-extra"})
    assert [requirement.name for requirement in requested.to_install] == ["einops", "with-extra"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 2", "version 2, but only version 1"),
        ("version = 1", "locks 0 projects"),
        (
            LOCK.replace('name = "deep"\nversion', 'name = "other"\nversion'),
            "lacks package deep",
        ),
    ],
)
def test_a_lock_file_that_cannot_be_followed_says_why(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidRequirements, match=message):
        read_lock(write(tmp_path, {"uv.lock": text}), "uv.lock")
