"""Runs that start from a warm process: torch is imported once for all, and a rank is what it is in
any other run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.providers import get_provider

pytestmark = [pytest.mark.torchrun, pytest.mark.linux("forks are safe on Linux only")]

PROBE = (Path(__file__).parents[1] / "entrypoints/process_probe.py").read_text()
RANKS = 2
RUNS = 3
COUNTER = """
import os, sys
class Counter:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            with open({file!r}, "a") as file:
                print(os.getpid(), file=file)
sys.meta_path.insert(0, Counter())
"""
"""A sitecustomize: each process that imports torch adds a line to a file."""
OF_A_RUN = ("CLOUDTRAIN_SUPERVISOR_PID", "CLOUDTRAIN_RUN_ID", "WARM", "COLUMNS", "LINES")
"""The last two are set by readline, which pytest imports, past `os.environ`."""


@dataclass
class Found:
    """Facts that the runs left."""

    warm: list[list[dict[str, Any]]]
    """By run and rank."""
    new: list[dict[str, Any]]
    """By rank, of a run that was started while the process was warm, with another variable."""
    imports: list[int]
    """How many processes had imported torch when each run had ended, the last one included."""


def shared(rank: dict[str, Any], name: str) -> Any:
    """Return a rank's facts under a name, as far as all runs must agree on them."""
    if name == "variables":
        return {key: value for key, value in rank[name].items() if key not in OF_A_RUN}
    return "" if name == "only" else rank[name]


def start(folder: Path, run_id: str, **env: str) -> list[dict[str, Any]]:
    """Run the probe; what its ranks have found."""
    out = folder / "found"
    out.mkdir(exist_ok=True)
    document = {"name": "probe", "entrypoint": "train.py", "args": [str(out), "brief"], "env": env}
    (folder / "job/job.yaml").write_text(json.dumps(document | {"resources": {"processes": RANKS}}))
    plan = cloudtrain.plan(
        cloudtrain.load(folder / "job/job.yaml"), run_id=run_id, data_dir=str(folder / "data")
    )
    run = cloudtrain.submit(plan)
    assert run.wait().state == "succeeded", run.logs()
    texts = [
        (out / f"rank-{rank}.json").read_text().replace(run_id, "RUN") for rank in range(RANKS)
    ]
    return [json.loads(text) for text in texts]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    folder = tmp_path_factory.mktemp("warm")
    (folder / "job").mkdir()
    (folder / "job/train.py").write_text(PROBE)
    (folder / "site").mkdir()
    counted = folder / "imports"
    (folder / "site/sitecustomize.py").write_text(COUNTER.format(file=str(counted)))
    with pytest.MonkeyPatch.context() as patch:
        for name in [
            name for name in os.environ if name.startswith(("CLOUDTRAIN_", "PET_", "TORCHELASTIC_"))
        ]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder))
        patch.setenv("PYTHONPATH", str(folder / "site"))
        result = Found([], [], [])
        with get_provider("local").warm(folder / "data"):
            for number in range(RUNS):
                result.warm.append(start(folder, f"run-{number}"))
                result.imports.append(len(counted.read_text().splitlines()))
            result.new = start(folder, "run-new", WARM="no")
            result.imports.append(len(counted.read_text().splitlines()))
        yield result


def test_runs_import_torch_once_together_unless_a_variable_differs(
    reports: Found,
) -> None:
    assert reports.imports == [1] * RUNS + [2]


def test_a_rank_finds_everything_as_in_any_other_run(reports: Found) -> None:
    for ranks in reports.warm:
        for warm_rank, new_rank in zip(ranks, reports.new, strict=True):
            for name in new_rank:
                assert shared(warm_rank, name) == shared(new_rank, name), name


def test_no_two_runs_have_the_same_random_numbers(reports: Found) -> None:
    for name in ("random", "numpy", "torch", "key"):
        values = [rank["only"][name] for ranks in (*reports.warm, reports.new) for rank in ranks]
        assert len(set(values)) == RANKS * (RUNS + 1), name
