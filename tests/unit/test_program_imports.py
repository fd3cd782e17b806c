"""Modules that a program imports at its start, by its syntax tree."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.source.distributions import brought_along, distributions_of
from cloudtrain.source.programs import foreign_imports
from tests.support.samples import write


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


@pytest.mark.parametrize("name", ["log_metrics", "activity", "timed"])
def test_a_name_of_a_jobs_program_says_where_it_comes_from(name: str) -> None:
    with pytest.raises(
        ImportError,
        match=f"{name} belongs to cloudtrain_job: in a job's program, import it from there",
    ):
        getattr(cloudtrain, name)
