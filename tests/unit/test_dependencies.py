"""Dependencies of a job: the section of job.yaml, and the files of requirements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.api import package_checks
from cloudtrain.api.package_checks import package_issues
from cloudtrain.planning.launch import dependencies_document
from cloudtrain.planning.plan import Plan
from cloudtrain_wire.requirement_files import (
    Requested,
    read_requested,
    requested_list,
)
from tests.support.in_process import call
from tests.support.samples import write

AWS: dict[str, Any] = {
    "aws": {"region": "us-east-1", "role": "arn:aws:iam::123456789012:role/t", "bucket": "b"}
}
LIMITS: dict[str, Any] = {
    "limits": {"max_runtime": "1 h"},
    "resources": {"instance": {"aws": "ml.g5.xlarge"}},
}


def plan(folder: Path, provider: str = "local", **spec: Any) -> Plan:
    files = {"entrypoint": "train.py", **spec}
    write(folder, {} if (folder / "train.py").exists() else {"train.py": "import os\n"})
    (folder / "job.yaml").write_text(str(files))
    return cloudtrain.plan(
        cloudtrain.load(folder / "job.yaml"), provider, data_dir=str(folder.parent / "runs")
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


def messages(planned: Plan) -> list[str]:
    return [issue.line() for issue in package_issues(planned)]


def test_a_file_of_the_source_counts_by_itself_and_the_job_document_names_it(job: Path) -> None:
    write(job, {"requirements.txt": "einops==0.8.1\n"})
    assert dependencies_document(plan(job)) == {"file": "requirements.txt"}
    assert dependencies_document(plan(job, dependencies="none")) == {}
    assert dependencies_document(plan(job, dependencies=["timm"])) == {"packages": ["timm"]}


def test_lock_file_without_requirements_is_warned_about(job: Path) -> None:
    project = "[project]\nname = 'x'\ndependencies = ['einops']\n"
    write(job, {"uv.lock": "version = 1\n", "pyproject.toml": project})
    assert len(messages(plan(job))) == 1
    write(job, {"requirements.txt": "einops==0.8.1\n"})
    assert messages(plan(job)) == []


@pytest.mark.parametrize("version", ["3.8", "3.11"])
def test_conda_file_that_azure_installs_counts_as_read_and_needs_a_new_python(
    job: Path, version: str
) -> None:
    write(job, {"conda.yaml": f"dependencies: [python={version}, pip]\n"})
    image = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
    azure = {"conda": "conda.yaml", "subscription": "0" * 36, "resource_group": "g"}
    azure["workspace"] = "my-workspace"
    planned = plan(job, "azure", image=image, azure=azure, limits={"max_runtime": "1 h"})
    assert messages(planned) == []
    faults = [issue for issue in planned.issues if issue.path == ("azure", "conda")]
    assert bool(faults) == (version == "3.8")


def test_plan_says_what_is_installed_where_and_from_which_file_without_a_password(
    job: Path,
) -> None:
    write(job, {"requirements.txt": "einops==0.8.1\nx @ git+https://tok3n@host/x\n"})
    planned = plan(job)
    (job / "job.yaml").write_text("entrypoint: train.py\n")
    result = call("plan", str(job / "job.yaml"))
    assert (
        "installs einops==0.8.1, x @ git+https://***@host/x  ← requirements.txt; into an"
        " environment" in result.out
    )
    assert "tok3n" not in result.out + result.err + str(planned.to_json())
    assert "requirements.txt:2: holds a password" in result.out


def test_another_torch_is_foreseen_wherever_the_image_is_known(job: Path) -> None:
    write(job, {"requirements.txt": "einops\ntorch==1.0\ntorchvision==0.1\n", "train.py": ""})
    local_messages = messages(plan(job))
    assert any(
        line.startswith("requirements.txt:2: asks for torch==1.0, and this machine has torch")
        for line in local_messages
    )
    on_aws = messages(plan(job, "aws", image="dlc:pytorch-2.8", **AWS, **LIMITS))
    [line] = on_aws
    assert line.startswith(
        "requirements.txt:2: asks for torch==1.0, and the image has torch 2.8.0, which stays"
    )
    assert messages(plan(job, dependencies={"replace_torch": True})) == []
    write(job, {"requirements.txt": "torch>=1.0\n"})
    assert messages(plan(job)) == []


@pytest.mark.parametrize(
    ("torch", "lines", "env", "is_warned"),
    [
        ("2.13.0+cpu", "torchvision", {}, True),
        ("2.13.0+cpu", "torchaudio>=2", {}, True),
        ("2.13.0+cpu", "--extra-index-url https://x.example/cpu\ntorchvision", {}, False),
        ("2.13.0+cpu", "torchvision", {"PIP_EXTRA_INDEX_URL": "https://x.example/cpu"}, False),
        ("2.13.0+cu130", "torchvision", {}, False),
        ("2.13.0+cpu", "einops", {}, False),
    ],
)
def test_packages_for_cuda_beside_a_torch_for_cpus_are_foreseen(
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    torch: str,
    lines: str,
    env: dict[str, str],
    is_warned: bool,
) -> None:
    monkeypatch.setattr(
        package_checks, "installed_version", lambda name: torch if name == "torch" else ""
    )
    write(job, {"requirements.txt": f"{lines}\n"})
    issues = package_issues(plan(job, env=env))
    warned = [issue for issue in issues if "builds for CUDA" in issue.line()]
    assert bool(warned) == is_warned
    if is_warned:
        assert str(warned[0].hint).startswith("add to requirements.txt: --extra-index-url https://")
        assert "builds for CUDA" in call("check", str(job)).err


def test_packages_of_a_known_image_are_not_missed_and_unknown_is_silent(
    job: Path,
) -> None:
    write(job, {"train.py": "import numpy, torch, cv2, timm\n"})
    (line,) = messages(plan(job, "aws", image="dlc:pytorch-2.8", **AWS, **LIMITS))
    assert "imports timm" in line
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1"
    assert messages(plan(job, "aws", image=image, **AWS, **LIMITS)) == []
    first, second = messages(plan(job, "docker", image="auto"))
    assert "imports cv2" in first
    assert "imports timm" in second


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
    assert links == f"--find-links {(tmp_path / 'more/wheels').as_uri()}"
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
    assert requested.to_install[1].text == (tmp_path / "libs/mine").as_uri()
    assert requested.to_install[0].text == f"-e {tmp_path.as_uri()}"
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


def test_a_project_asks_for_its_dependencies_and_a_mere_settings_file_for_nothing(
    tmp_path: Path,
) -> None:
    project = "[project]\nname = 'x'\ndependencies = ['einops>=0.8', 'timm']\n"
    write(
        tmp_path,
        {"pyproject.toml": project, "tools.toml": "[tool.ruff]\n"},
    )
    assert shown(read_requested(tmp_path, "pyproject.toml")) == ["einops>=0.8", "timm"]
    assert read_requested(tmp_path, "tools.toml").to_install == ()
