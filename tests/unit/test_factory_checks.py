"""Functions for the shared trainer, looked up in the source before anything is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from tests.support.samples import write

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


@pytest.mark.parametrize(
    ("named", "mistake"),
    [
        ("net:bild", "args.model: --model: net.py has nothing named bild (did you mean 'build'?)"),
        ("pk.nets:Net", "args.model: --model: pk has no module pk.nets"),
        (
            "net",
            (
                "args.model: the shared trainer says: argument --model: expected"
                " package.module:factory, got 'net'"
            ),
        ),
        (
            "net:",
            (
                "args.model: the shared trainer says: argument --model: expected"
                " package.module:factory, got 'net:'"
            ),
        ),
        (
            "nett:build",
            (
                "args.model: neither the source, requirements.txt nor this machine is known to"
                " bring the module"
            ),
        ),
    ],
)
def test_what_no_module_has_is_a_mistake_at_its_line(
    tmp_path: Path, named: str, mistake: str
) -> None:
    (line,) = problems(tmp_path, {"model": named, "task": "digits"})
    assert line.startswith(mistake)


def test_what_the_module_imports_must_be_brought(tmp_path: Path) -> None:
    (line,) = problems(
        tmp_path,
        {"model": "net:build", "task": "digits"},
        **{"deep.py": "import no_such_thing as Head\n"},
    )
    assert line.startswith(
        "imports no_such_thing, which neither the source, requirements.txt nor this machine"
    )


def test_a_program_of_ones_own_may_have_such_arguments(tmp_path: Path) -> None:
    write(tmp_path / "job", {"train.py": "print(1)\n"})
    (tmp_path / "job" / "job.yaml").write_text("entrypoint: train.py\nargs: {model: 'nett:bild'}\n")
    planned = cloudtrain.plan(
        cloudtrain.load(tmp_path / "job" / "job.yaml"), "local", data_dir=str(tmp_path / "runs")
    )
    assert planned.issues == ()
