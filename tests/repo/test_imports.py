"""Imports by stage, and limits of planning: no network, no process but git, no SDK, no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SDKS = {"boto3", "botocore", "azure", "docker", "sagemaker"}
HEAVY = {"pydantic", "yaml", "jinja2", "torch", "numpy", "pathspec", "tarfile", *SDKS}


def modules_after(code: str, *path: str) -> set[str]:
    script = (
        f"import sys; sys.path[:0] = {list(path)!r}\n{code}\nprint(*sys.modules, file=sys.stderr)"
    )
    process = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    return set(process.stderr.split())


def loaded_after(code: str, *path: str) -> set[str]:
    return {name.partition(".")[0] for name in modules_after(code, *path)}


def of_providers(*modules: str) -> str:
    return "import " + ", ".join(f"cloudtrain.providers.{module}" for module in modules)


def test_importing_the_package_loads_next_to_nothing() -> None:
    assert not HEAVY & loaded_after("import cloudtrain")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "from cloudtrain.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    )
    assert not HEAVY & loaded_after(code)


ACCOUNT = """
aws: {region: us-east-1, role: "arn:aws:iam::123456789012:role/train", bucket: my-bucket}
azure: {subscription: 00000000-0000-0000-0000-000000000000, resource_group: rg, workspace: ws1, location: eastus}
"""


@pytest.mark.parametrize(
    "where", ["'local'", "'docker'", "'aws'", "'azure'", "as_='aws'", "as_='azure'"]
)
def test_planning_opens_no_socket_starts_no_process_but_git_and_loads_no_sdk(
    tmp_path: Path, where: str
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "job.yaml").write_text(
        f"args: {{epochs: 2}}\nresources: {{nodes: 2, processes: 2}}{ACCOUNT}"
    )
    subprocess.run(["git", "init", "-q", job], check=True)
    code = f"""
import os, socket, subprocess
def refuse(*args, **kwargs): raise AssertionError("planning did something")
class Recorded(subprocess.Popen):
    def __init__(self, argv, **kwargs):
        started.append(argv[0])
        super().__init__(argv, **kwargs)
socket.socket = os.fork = os.posix_spawn = os.system = refuse
subprocess.Popen = Recorded
started = []
import cloudtrain
job = cloudtrain.load({str(job / "job.yaml")!r})
plan = cloudtrain.plan(job, {where}, data_dir={str(tmp_path / "data")!r})
assert cloudtrain.render(plan) == cloudtrain.render(plan)
assert not [issue for issue in plan.issues if issue.is_error]
assert set(started) == {{"git"}}, started
"""
    assert not {"torch", "numpy", "jinja2", *SDKS} & loaded_after(code)


@pytest.mark.parametrize("provider", ["local", "aws", "azure"])
def test_a_plan_loads_neither_runs_nor_sweeps_nor_checkups(tmp_path: Path, provider: str) -> None:
    (tmp_path / "job.yaml").write_text(f"args: {{epochs: 2}}{ACCOUNT}")
    code = f"""
import cloudtrain
job = cloudtrain.load({str(tmp_path / "job.yaml")!r})
assert not cloudtrain.plan(job, {provider!r}, data_dir={str(tmp_path.parent / "data")!r}).issues
"""
    unused = ("runs.state", "runs.record", "spec.sweep", "checkup", "planning.registry")
    assert not {f"cloudtrain.{name}" for name in unused} & modules_after(code)


def test_the_launcher_needs_the_standard_library_only() -> None:
    folder = ROOT / "entrypoints"
    packages = {"cloudtrain_launcher", "cloudtrain_wire", "cloudtrain_job"}
    before = loaded_after("pass")
    for module in ("launch", "worker", "agent"):
        loaded = (
            loaded_after(f"import cloudtrain_launcher.{module}", str(folder), str(folder / "job"))
            - before
            - packages
        )
        assert loaded <= set(sys.stdlib_module_names), module


def test_the_supervisor_loads_neither_pydantic_nor_yaml() -> None:
    modules = ("local.supervisor", "rehearsal.sagemaker", "rehearsal.azureml", "docker.emulator")
    assert not {"pydantic", "yaml", "click"} & loaded_after(of_providers(*modules))


def test_every_public_name_can_be_imported() -> None:
    code = "import cloudtrain\nfor name in cloudtrain.__all__:\n    getattr(cloudtrain, name)"
    assert "cloudtrain" in loaded_after(code)


def test_looking_after_a_run_loads_neither_pydantic_nor_yaml() -> None:
    modules = [f"{name}.provider" for name in ("local", "docker", "aws", "azure")]
    modules += ["aws.status", "azure.status", "azure.stop", "docker.emulator", "docker.node"]
    commands = ", ".join(
        f"cloudtrain.cli.{name}" for name in ("logs", "wait", "stop", "fetch", "rerun")
    )
    code = f"import {commands}\n{of_providers(*modules)}"
    assert not {"pydantic", "yaml", *SDKS} & loaded_after(code)


def test_only_writing_a_report_loads_templates() -> None:
    modules = [path.stem for path in (ROOT / "cloudtrain/cli").glob("[!_]*.py")]
    code = "import " + ", ".join(f"cloudtrain.cli.{module}" for module in modules)
    assert "jinja2" not in loaded_after(code)
    assert "jinja2" in loaded_after("import cloudtrain.pages.run_page")


def test_showing_machines_loads_neither_pydantic_nor_yaml_nor_an_http_client() -> None:
    modules = "cloudtrain.providers.aws.price_list, cloudtrain.providers.azure.price_list"
    assert not {"pydantic", "yaml", "http", "ssl", *SDKS} & loaded_after(
        f"import cloudtrain.cli.gpus, {modules}"
    )
