"""Ranks run on the CPUs beside their GPUs, where a machine has several groups of both; else, and on
request, on all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain_launcher import numa
from cloudtrain_trainer import ranks
from tests.entrypoints.test_launcher_parts import ENTRYPOINTS, JOB

CPUS = sorted(os.sched_getaffinity(0))
FIRST = CPUS[:1]
REST = CPUS[1:]
pytestmark = pytest.mark.skipif(not REST, reason="one CPU has no two groups")


def machine(folder: Path, gpu_nodes: Sequence[int]) -> Path:
    """Write Linux's view of a machine whose GPUs are at these NUMA nodes: node 0 has the first CPU,
    node 1 the others.
    """
    for node, cpus in enumerate((FIRST, REST)):
        directory = folder / "devices" / "system" / "node" / f"node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(",".join(map(str, [*cpus, 99_999])) + "\n")
    for address, node in zip(addresses(len(gpu_nodes)), gpu_nodes, strict=True):
        directory = folder / "bus" / "pci" / "devices" / address
        directory.mkdir(parents=True)
        (directory / "numa_node").write_text(f"{node}\n")
    return folder


def addresses(gpus: int) -> list[str]:
    return [f"0000:{number:02x}:00.0" for number in range(gpus)]


def cpus_of_ranks(
    folder: Path, gpu_nodes: Sequence[int], processes: int = 4, **environ: str
) -> list[frozenset[int]]:
    job = replace(JOB, gpus=len(gpu_nodes), processes=processes)
    cpus = numa.rank_cpus(
        job, environ, lambda: addresses(len(gpu_nodes)), machine(folder, gpu_nodes)
    )
    return numa.bound_cpus({numa.RANK_CPUS: cpus})


def test_each_rank_gets_the_cpus_of_its_gpus_node_that_the_job_may_use(tmp_path: Path) -> None:
    assert cpus_of_ranks(tmp_path, [0, 0, 1, 1]) == [frozenset(FIRST)] * 2 + [frozenset(REST)] * 2


@pytest.mark.parametrize(
    ("gpu_nodes", "processes", "environ"),
    [
        ([0, 0, 0, 0], 4, {}),
        ([-1, -1, -1, -1], 4, {}),
        ([0, -1, 1, 1], 4, {}),
        ([0, 0, 1, 1], 1, {}),
        ([0], 1, {}),
        ([0, 0, 1, 1], 4, {"NUMA_BINDING": "no"}),
    ],
    ids=[
        "one node",
        "a machine that does not tell",
        "a GPU of unknown place",
        "one rank for all",
        "one GPU",
        "no",
    ],
)
def test_otherwise_ranks_run_on_all_cpus(
    tmp_path: Path, gpu_nodes: list[int], processes: int, environ: dict[str, str]
) -> None:
    assert cpus_of_ranks(tmp_path, gpu_nodes, processes, **environ) == []


def test_a_job_on_cpus_does_not_even_look_for_gpus() -> None:
    assert numa.rank_cpus(JOB, {}, gpus=lambda: pytest.fail("looked")) == ""


@pytest.mark.parametrize(("text", "cpus"), [("", set()), ("3", {3}), ("0-2,8", {0, 1, 2, 8})])
def test_lists_of_cpus_are_read_and_written_as_linux_writes_them(text: str, cpus: set[int]) -> None:
    assert numa.parse_cpus(text) == cpus
    assert numa._format(frozenset(cpus)) == text


def test_a_bound_rank_and_what_it_starts_run_on_its_cpus_only() -> None:
    environ = {
        numa.RANK_CPUS: f"{FIRST[0]};{','.join(map(str, REST))}",
        "PYTHONPATH": str(ENTRYPOINTS),
    }
    program = (
        "import os, subprocess, sys\n"
        "from cloudtrain_launcher.numa import bind_rank\n"
        "bind_rank(0, os.environ)\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(*os.sched_getaffinity(0))'])\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == [str(FIRST[0])]


def test_loader_processes_are_counted_by_the_cores_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(numa.RANK_CPUS, "0-11;0-11;12-23;12-23")
    assert ranks.available_cores() == 24
    monkeypatch.delenv(numa.RANK_CPUS)
    assert ranks.available_cores() == len(CPUS)
