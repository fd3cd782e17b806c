"""The program of a job: its folder, its imports, its notebooks and its factories."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.api.context import changed_files, pack_source
from cloudtrain.api.preflight import preflight
from cloudtrain.errors import Issue, SourceError
from cloudtrain.planning.plan import Plan
from cloudtrain.source.distributions import brought_along, distributions_of
from cloudtrain.source.programs import foreign_imports, install_lines, names_in, program_fault
from cloudtrain.source.stored_archive import packed_entries
from tests.support.in_process import call
from tests.support.samples import write

PROGRAM = {"entrypoint": "python -V"}
REST = ["data/x", "vocab.txt"]

# Steps that are left out in Python.


@pytest.mark.parametrize(
    ("call_it", "message", "hint"),
    [
        (lambda job: cloudtrain.submit(job), "expected a Plan, got Job", "cloudtrain.plan(job)"),
        (lambda job: cloudtrain.plan(job.folder), "expected a Job, got", "cloudtrain.load"),
        (lambda _: cloudtrain.load({}, "a=1"), "expected a list of texts, got 'a=1'", "['a=1']"),
        (lambda _: cloudtrain.load({}, arguments="--x 1"), "got '--x 1'", "['--x 1']"),
    ],
)
def test_a_value_of_another_step_is_named(
    call_it: Callable[[Any], Any], message: str, hint: str
) -> None:
    with pytest.raises(cloudtrain.UsageError) as refused:
        call_it(cloudtrain.load({"name": "hello"}))

    assert message in refused.value.message
    assert hint in (refused.value.hint or "")


# Source folders that planning refuses, and issues that a plan carries.


def test_runs_inside_the_source_are_fine_when_ignored(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: inner\n")
    (tmp_path / ".cloudtrainignore").write_text("/my/runs/\n")
    job = cloudtrain.load(tmp_path / "job.yaml")
    first, second = (cloudtrain.plan(job, data_dir=str(tmp_path / "my" / "runs")) for _ in range(2))
    assert first.context.source == second.context.source
    assert first.context.source.files == 2


@pytest.mark.parametrize("launcher", ["torchrun", "none"])
def test_an_entrypoint_that_is_ignored_is_refused_until_it_is_added(
    tmp_path: Path, launcher: str
) -> None:
    (tmp_path / "job.yaml").write_text(f"entrypoint: ./build/train.py\nlauncher: {launcher}\n")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "train.py").write_text("")
    (tmp_path / ".gitignore").write_text("build/\n")
    job = cloudtrain.load(tmp_path / "job.yaml")
    with pytest.raises(SourceError):
        cloudtrain.plan(job, data_dir=str(tmp_path.parent / "runs"))
    (tmp_path / ".cloudtrainignore").write_text("!build/train.py\n")
    assert cloudtrain.plan(job, data_dir=str(tmp_path.parent / "runs")).context.source.files == 4


@pytest.mark.parametrize(
    ("fields", "ignore", "sent"),
    [
        ({"inputs": {"train": "./data"}}, "", ["big", "vocab.txt"]),
        ({"inputs": {"train": {"local": "data/", "aws": "s3://b/x/"}}}, "", ["big", "vocab.txt"]),
        ({"inputs": {"train": "data/x"}}, "", ["big", "data/code/train.py", "vocab.txt"]),
        ({"inputs": {"a": "big", "b": "vocab.txt"}}, "", ["data/code/train.py", "data/x"]),
        ({"inputs": {"train": "./data"}}, "!/data/\n", ["big", "data/code/train.py", *REST]),
        ({"inputs": {"train": "."}}, "", ["big", "data/code/train.py", *REST]),
        (
            {"inputs": {"train": "data"}, "entrypoint": "data/code/train.py"},
            *("", ["big", "data/code/train.py", *REST]),
        ),
        ({"source": "data", "inputs": {"train": "data/code"}}, "", ["x"]),
    ],
)
def test_inputs_are_not_sent_as_source(
    tmp_path: Path, fields: dict[str, Any], ignore: str, sent: list[str]
) -> None:
    """`big` is a folder, or a link that leads out of the source if it is an input."""
    folder = tmp_path / "job"
    (folder / "data" / "code").mkdir(parents=True)
    for name in ("data/code/train.py", *REST):
        (folder / name).write_text("")
    if "big" in sent:
        (folder / "big").write_text("")
    else:
        (folder / "big").symlink_to(tmp_path)
    (folder / ".cloudtrainignore").write_text(f".cloudtrainignore\njob.yaml\n{ignore}")
    (folder / "job.yaml").write_text(json.dumps({"launcher": "none", **PROGRAM, **fields}))
    if "source" in fields:
        (folder / "big").unlink()
    plan = cloudtrain.plan(cloudtrain.load(folder), data_dir=str(tmp_path / "runs"))
    names = [entry.path for entry in packed_entries(pack_source(plan, None))]
    assert [name for name in names if not name.startswith(".cloudtrain/")] == sent


def test_a_program_that_setup_lines_build_may_be_ignored(tmp_path: Path) -> None:
    text = "entrypoint: ./train\nlauncher: none\nsetup: make\n"
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "train").touch(mode=0o755)
    (tmp_path / ".gitignore").write_text("/train\n")
    job = cloudtrain.load(tmp_path / "job.yaml")
    assert cloudtrain.plan(job, data_dir=str(tmp_path.parent / "runs")).context.source.files == 2


def test_an_entrypoint_behind_a_link_is_archived_with_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("entrypoint: link/train.py\n")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").write_text("")
    (tmp_path / "link").symlink_to("real")
    assert cloudtrain.plan(
        cloudtrain.load(tmp_path / "job.yaml"), data_dir=str(tmp_path.parent / "runs")
    )


def test_what_is_being_written_while_a_job_is_submitted_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "tee.log").write_text("planning\n")
    job = cloudtrain.load(tmp_path / "job.yaml")
    plan = cloudtrain.plan(job, data_dir=str(tmp_path.parent / "runs"))
    (tmp_path / "tee.log").write_text("planning\nstarting\n")
    (tmp_path / "new").touch()
    with pytest.raises(
        SourceError, match=r"changed after it was planned: new, tee\.log$"
    ) as refused:
        cloudtrain.submit(plan)
    assert "belongs elsewhere or in .cloudtrainignore" in str(refused.value.hint)


def test_files_that_changed_since_the_source_was_packed_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    code = folder / "code"
    code.mkdir(parents=True)
    (folder / "job.yaml").write_text("source: code\nentrypoint: train.py\n")
    for name in ("train.py", "run.sh", "gone.txt", "same.txt"):
        (code / name).write_text(name)
    (code / "link").symlink_to("run.sh")
    plan = cloudtrain.plan(cloudtrain.load(folder / "job.yaml"), data_dir=str(tmp_path / "runs"))
    pack_source(plan, None)
    assert changed_files(plan) == []

    (code / "train.py").write_text("edited")
    (code / "run.sh").chmod(0o755)
    (code / "gone.txt").unlink()
    (code / "new.txt").touch()
    (code / "link").unlink()
    (code / "link").symlink_to("same.txt")
    (folder / "job.yaml").write_text("source: code\nentrypoint: train.py\nargs: [x]\n")
    names = ["gone.txt", "job.yaml", "link", "new.txt", "run.sh", "train.py"]
    assert changed_files(plan) == names
    shutil.rmtree(folder)
    assert changed_files(plan) == []


def test_a_plan_finds_its_issues_once(tmp_path: Path) -> None:
    job = cloudtrain.load({"name": "once"})
    plan = cloudtrain.plan(job, "docker", data_dir=str(tmp_path))
    searches = []

    def find(plan: Plan) -> list[Issue]:
        searches.append(plan.run_id)
        return [Issue((), "wrong")]

    plan = replace(plan, checker=find)
    assert [preflight(plan)[0].message for _ in range(2)] == ["wrong", "wrong"]
    assert searches == [plan.run_id]


# Modules that a program imports at its start, by its syntax tree.


def imports_of(root: Path, program: str = "train.py") -> list[str]:
    return [
        f"{imported.module} {imported.file}:{imported.line}"
        for imported in foreign_imports(root, root / program)
    ]


def test_imports_are_followed_through_the_sources_own_modules(tmp_path: Path) -> None:
    files = {
        "train.py": "import a.b\nfrom pkg import part\nfrom pkg.deep import thing\n",
        "pkg/__init__.py": "from . import beside\n",
        "pkg/part.py": "import c\n",
        "pkg/beside.py": "from ..up import d\nimport e",
        "pkg/deep.py": "import f\n",
        "unused.py": "import g\n",
    }
    assert imports_of(write(tmp_path, files)) == [
        "a train.py:1",
        "c pkg/part.py:1",
        "f pkg/deep.py:1",
        "e pkg/beside.py:2",
    ]


def test_what_a_program_may_do_without_is_not_counted(tmp_path: Path) -> None:
    text = (
        "import os\nfrom typing import TYPE_CHECKING\n"
        "try:\n    import a\nexcept ImportError:\n    a = None\n"
        "if TYPE_CHECKING:\n    import b\n"
        "def late():\n    import c\n"
        "if os.name:\n    import d\n"
        "from . import e\n"
    )
    assert imports_of(write(tmp_path, {"train.py": text})) == ["d train.py:12"]


def test_notebook_is_read_by_code_cells_and_broken_program_is_empty(
    tmp_path: Path,
) -> None:
    cells = (
        '{"cells": [{"cell_type": "code", "source": "%magic\\nimport a"}, {"cell_type":'
        ' "markdown"}]}'
    )
    write(
        tmp_path,
        {
            "train.ipynb": cells,
            "broken.py": "import (",
            "folder/x.txt": "",
            "own.py": "import folder",
        },
    )
    assert imports_of(tmp_path, "train.ipynb") == ["a train.ipynb:2"]
    assert imports_of(tmp_path, "broken.py") == []
    assert imports_of(tmp_path, "own.py") == []


def test_names_of_modules_and_of_distributions_differ(tmp_path: Path) -> None:
    assert distributions_of("sklearn") == ["scikit-learn"]
    assert distributions_of("my_module") == ["my-module"]
    assert {"torchvision", "numpy", "huggingface-hub"} <= brought_along(["timm"])


# Scripts and notebooks are parsed before a machine is paid for, whatever is in them.

PROGRAMS = {
    "long chain of minus": b"-" * 1_000_000 + b"1",
    "long chain of not": b"not " * 200_000 + b"1",
    "long chain of elif": b"if a: pass\n" + b"elif b: pass\n" * 5_000,
    "long chain of attributes": b"a" + b".b" * 50_000,
    "long test for type checkers": b"if " + b"a + " * 3_000 + b"1: import b\n",
    "brackets": b"(" * 100_000,
    "long number": b"x = " + b"9" * 5_000,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_too_complex_to_parse_is_no_error_of_ours(tmp_path: Path, name: str) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(PROGRAMS[name])
    fault = program_fault(file)
    assert fault is None or fault.message.startswith("is not Python: ")
    assert len(foreign_imports(tmp_path, file)) <= 1
    names_in(file)


@pytest.mark.parametrize(
    ("content", "message", "depends_on_version"),
    [
        (b"import os\n", None, None),
        (b"def f(:\n", "is not Python: invalid syntax", True),
        (b"a = 1\0", "is not Python: source code string cannot contain null bytes", False),
        (b'a = "\xe4"\n', "is not Python: (unicode error) 'utf-8' codec can't decode", False),
        (b"# coding: latin-1\na = '\xe4'\n", None, None),
    ],
    ids=["right", "syntax", "NUL", "bad bytes", "declared encoding"],
)
def test_only_syntax_may_depend_on_the_version_of_python(
    tmp_path: Path, content: bytes, message: str | None, depends_on_version: bool | None
) -> None:
    (tmp_path / "train.py").write_bytes(content)
    fault = program_fault(tmp_path / "train.py")
    if message is None:
        assert fault is None
    else:
        assert fault is not None
        assert fault.message.startswith(message)
        assert fault.depends_on_version is depends_on_version


@pytest.mark.parametrize(
    "text",
    [
        '{"cells": [3]}',
        '{"cells": [{"cell_type": "code", "source": [1]}]}',
        '{"cells": ' + "9" * 5_000 + "}",
        '{"cells": {}}',
        "[" * 100_000,
        "{",
        "",
    ],
    ids=["cell", "source", "number", "mapping", "nesting", "cut", "empty"],
)
def test_a_file_that_is_not_a_notebook_has_no_cells(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.ipynb").write_text(text)
    fault = program_fault(tmp_path / "a.ipynb")
    assert fault is not None
    assert fault.message.startswith("is not a notebook: ")
    assert install_lines(tmp_path / "a.ipynb") == []


def test_a_few_more_processes_than_cores_are_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\nresources: {processes: 16}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert "share this machine" not in call("check").err


@pytest.mark.parametrize(
    ("files", "spot", "is_warned"),
    [
        ({"train.py": "import steps\n", "steps.py": "print('step')\n"}, True, True),
        ({"train.py": "print('step')\n"}, False, False),
        ({"train.py": "import steps\n", "steps.py": "torch.save(state, path)\n"}, True, False),
        ({"train.py": "Trainer(default_root_dir=folder)\n"}, True, False),
    ],
)
def test_a_spot_job_that_saves_nothing_is_warned_about(
    tmp_path: Path, files: dict[str, str], spot: bool, is_warned: bool
) -> None:
    write(tmp_path, files)
    resources = {"instance": {"aws": "ml.g5.xlarge"}, "spot": spot}
    spec = {"entrypoint": "train.py", "resources": resources, "limits": {"max_runtime": "1 h"}}
    account = {"region": "us-east-1", "role": "arn:aws:iam::123456789012:role/t", "bucket": "b"}
    (tmp_path / "job.yaml").write_text(str({**spec, "aws": account}))
    issues = cloudtrain.plan(cloudtrain.load(tmp_path), "aws").issues
    warned = [issue for issue in issues if "train.py saves nothing" in issue.message]
    assert [issue.path for issue in warned] == [("resources", "spot")] * is_warned


# Functions for the shared trainer, looked up in the source before anything is paid for.

NET = "import torch\nfrom deep import Head\nclass Net: pass\ndef build(): return Net()\n"
FILES = {
    "net.py": NET,
    "deep.py": "class Head: pass\n",
    "pk/__init__.py": "",
    "pk/models.py": "from torch.nn import *\n",
}


def problems(folder: Path, args: Any, **files: str) -> list[str]:
    """Return the mistakes of the job without their places."""
    write(folder / "job", {**FILES, **files})
    (folder / "job" / "job.yaml").write_text(str({"name": "t", "args": args}))
    planned = cloudtrain.plan(
        cloudtrain.load(folder / "job" / "job.yaml"), "local", data_dir=str(folder / "runs")
    )
    return [issue.line().partition(": ")[2] for issue in planned.issues]


@pytest.mark.parametrize(
    "named", ["net:build", "net:Net", "net:Head", "pk.models:anything", "torch.nn:Linear"]
)
def test_what_a_module_has_or_may_have_is_taken(tmp_path: Path, named: str) -> None:
    assert problems(tmp_path, {"model": named, "task": "digits"}) == []
